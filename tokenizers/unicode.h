// What the Python library `tokenizers` knows about characters: classes, lower case and the normalization forms. The
// tables are made by tools/unicode_tables.py from the pinned version of that library. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace trainyard::unicode {

// Bits, so that one look-up tests several classes.
enum Class : uint16_t {
  kSpace = 1,
  kLetter = 2,         // \p{L}
  kNumber = 4,         // \p{N}
  kNewline = 8,        // \r or \n
  kWord = 16,          // \w for AddedToken::single_word and for the pre-tokenizer Whitespace
  kPatternWord = 32,   // \w in a pattern
  kNumeric = 64,       // what the pre-tokenizer Digits splits
  kPunctuation = 128,  // what the pre-tokenizer Punctuation splits
  kNfcInert = 256,     // NFC neither changes it nor joins it to the character before
  kMark = 512,         // has a combining class other than 0
};

inline constexpr uint32_t kCodes = 0x110000;

// The classes of every character, by its code.
const uint16_t* Classes();

using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;  // first and last of each, ascending

// The characters of one class.
Ranges RangesOf(Class one);
// The characters of a general category (Lu) or of a group of categories (L). Empty: there is no such category.
Ranges RangesOfCategory(absl::string_view name);

enum class Form { kNfc, kNfd, kNfkc, kNfkd };
// REQUIRES for both functions: valid UTF-8.
std::string Normalize(Form form, absl::string_view text);
std::string Lower(absl::string_view text);

}  // namespace trainyard::unicode
