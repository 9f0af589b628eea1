#include "common/plain_text.h"

#include "absl/strings/str_cat.h"

namespace trainyard {

Character DecodeUtf8(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {.code = lead, .length = 1};
  const size_t length = lead >= 0xC2 && lead < 0xE0   ? 2
                        : (lead & 0xF0) == 0xE0       ? 3
                        : lead >= 0xF0 && lead < 0xF5 ? 4
                                                      : 0;
  if (length == 0 || length > text.size()) return {};
  uint32_t code = lead & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  if (overlong || surrogate || code > 0x10FFFF) return {};
  return {.code = code, .length = length};
}

bool AppendUtf8(uint32_t code, std::string* text) {
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
  const auto add = [text](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    add(code);
    return true;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  add((0xF00u >> (more + 1) & 0xFFu) | code >> (6 * more));
  for (int i = more - 1; i >= 0; --i) add(0x80u | (code >> (6 * i) & 0x3Fu));
  return true;
}

std::string ValidUtf8(absl::string_view text, size_t bytes_max, absl::string_view replacement) {
  std::string valid;
  while (!text.empty()) {
    const size_t length = DecodeUtf8(text).length;
    const absl::string_view piece = length > 0 ? text.substr(0, length) : replacement;
    if (valid.size() + piece.size() > bytes_max) break;
    valid.append(piece.data(), piece.size());
    text.remove_prefix(length > 0 ? length : 1);
  }
  return valid;
}

bool IsControl(uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x2028 || code == 0x2029;
}

std::string WhyNotPlainText(absl::string_view text) {
  while (!text.empty()) {
    const Character c = DecodeUtf8(text);
    if (c.length == 0) return "is not UTF-8 text";
    if (IsControl(c.code)) return absl::StrCat("holds the control character ", c.code);
    text.remove_prefix(c.length);
  }
  return "";
}

}  // namespace trainyard
