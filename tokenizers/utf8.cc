#include "tokenizers/utf8.h"

#include <cstring>

namespace trainyard::utf8 {
namespace {

// The length of the valid character at the beginning of `text`, or 0 if there is none. If 0, `bad` is the length of the
// invalid part: the longest prefix of `text` that could begin a valid character, at least 1.
size_t Character(absl::string_view text, size_t& bad) {
  const auto byte = [&text](size_t index) { return static_cast<unsigned char>(text[index]); };
  const unsigned char lead = byte(0);
  bad = 1;
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  // The second byte excludes overlong forms, surrogates and codes beyond U+10FFFF.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (text.size() < 2 || byte(1) < low || byte(1) > high) return 0;
  for (const size_t length = Length(lead); bad + 1 < length;) {
    ++bad;
    if (text.size() <= bad || (byte(bad) & 0xC0) != 0x80) return 0;
  }
  return bad + 1;
}

}  // namespace

void Append(uint32_t code, std::string& text) {
  const auto add = [&text](uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xC0 | code >> 6);
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F));
  }
  add(0x80 | (code & 0x3F));
}

size_t ValidPrefix(absl::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    while (at + sizeof eight <= text.size()) {  // ASCII, eight at a time
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if (eight & 0x8080808080808080u) break;
      at += sizeof eight;
    }
    if (at == text.size()) break;
    size_t bad;
    const size_t length = Character(text.substr(at), bad);
    if (length == 0) return at;
    at += length;
  }
  return at;
}

std::string Replaced(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t valid = ValidPrefix(text);
    out.append(text.data(), valid);
    text.remove_prefix(valid);
    if (text.empty()) break;
    size_t bad;
    Character(text, bad);
    out += "\xEF\xBF\xBD";
    text.remove_prefix(bad);
  }
  return out;
}

}  // namespace trainyard::utf8
