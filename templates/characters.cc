#include "templates/characters.h"

#include <algorithm>

#include "tokenizers/unicode.h"
#include "tokenizers/utf8.h"

namespace trainyard::templates {
namespace {

bool IsIn(const unicode::Ranges& ranges, uint32_t code) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), code,
                                      [](uint32_t value, const auto& range) { return value < range.first; });
  return after != ranges.begin() && code <= std::prev(after)->second;
}

}  // namespace

bool IsSpace(uint32_t code) {
  return (code >= 0x09 && code <= 0x0D) || (code >= 0x1C && code <= 0x20) || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

bool IsLineEnd(uint32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

bool IsPrintable(uint32_t code) {
  if (code < 0x7F) return code >= 0x20;
  static const auto* const kGroups = new std::vector<unicode::Ranges>{
      unicode::RangesOfCategory("L"), unicode::RangesOfCategory("M"), unicode::RangesOfCategory("N"),
      unicode::RangesOfCategory("P"), unicode::RangesOfCategory("S")};
  return std::any_of(kGroups->begin(), kGroups->end(),
                     [code](const unicode::Ranges& ranges) { return IsIn(ranges, code); });
}

size_t CountCharacters(absl::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

absl::string_view StripSpaceBefore(absl::string_view text) {
  size_t begin = 0;
  while (begin < text.size()) {
    size_t next = begin;
    if (!IsSpace(utf8::Next(text, next))) break;
    begin = next;
  }
  return text.substr(begin);
}

absl::string_view StripSpaceAfter(absl::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t before = utf8::Previous(text, end);
    size_t at = before;
    if (!IsSpace(utf8::Next(text, at))) break;
    end = before;
  }
  return text.substr(0, end);
}

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace trainyard::templates
