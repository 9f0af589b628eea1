#include "common/escape.h"

#include <cstdint>

#include "common/plain_text.h"

namespace trainyard {
namespace {

// Controls, and U+202A to U+202E and U+2066 to U+2069, which change the order in which text is displayed.
bool IsDeceptive(uint32_t code) {
  return IsControl(code) || (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
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
    const Character decoded = DecodeUtf8(text);
    const absl::string_view character = text.substr(0, decoded.length == 0 ? 1 : decoded.length);
    const bool is_safe = decoded.length > 0 && (!IsDeceptive(decoded.code) || (keep_lines && character == "\n"));
    if (is_safe) escaped.append(character.data(), character.size());
    if (!is_safe) AppendEscaped(character, &escaped);
    text.remove_prefix(character.size());
  }
  return escaped;
}

}  // namespace

std::string EscapeText(absl::string_view text) { return Escape(text, /*keep_lines=*/false); }

std::string EscapeLines(absl::string_view text) { return Escape(text, /*keep_lines=*/true); }

}  // namespace trainyard
