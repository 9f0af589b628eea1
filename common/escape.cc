#include "common/escape.h"

#include <cstddef>
#include <cstdint>

namespace trainyard {
namespace {

// Bytes of the character of valid UTF-8 that `text` starts with; 0: there is none. (Unicode 15, table 3-7.)
size_t LengthOfCharacter(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto follows = [&](size_t i, uint8_t first = 0x80, uint8_t last = 0xBF) {
    return i < text.size() && byte(i) >= first && byte(i) <= last;
  };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return follows(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    // Neither overlong nor a surrogate.
    return follows(1, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF) && follows(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    // Neither overlong nor beyond U+10FFFF.
    return follows(1, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

// Also U+2028 and U+2029, which end lines, and U+202A to U+202E and U+2066 to U+2069, which show text in another order
// than it has.
bool IsControl(absl::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7F;
  if (character.size() == 2) return byte(0) == 0xC2 && byte(1) < 0xA0;  // C1
  if (character.size() != 3 || byte(0) != 0xE2) return false;
  if (byte(1) == 0x80) return byte(2) >= 0xA8 && byte(2) <= 0xAE;
  return byte(1) == 0x81 && byte(2) >= 0xA6 && byte(2) <= 0xA9;
}

void AppendEscaped(absl::string_view bytes, std::string* escaped) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    escaped->append({'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]});
  }
}

std::string Escape(absl::string_view text, bool keep_lines) {
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const size_t length = LengthOfCharacter(text);
    const absl::string_view character = text.substr(0, length == 0 ? 1 : length);
    const bool stays = length > 0 && (!IsControl(character) || (keep_lines && character == "\n"));
    if (stays) escaped.append(character.data(), character.size());
    if (!stays) AppendEscaped(character, &escaped);
    text.remove_prefix(character.size());
  }
  return escaped;
}

}  // namespace

std::string EscapeText(absl::string_view text) { return Escape(text, /*keep_lines=*/false); }

std::string EscapeLines(absl::string_view text) { return Escape(text, /*keep_lines=*/true); }

}  // namespace trainyard
