// The alphabet of byte-level BPE: the letter of a printable byte is the character with the same number, and the other
// bytes have the characters from U+0100 on. Pure and thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

// The letter of a byte, in UTF-8.
const std::string& ByteLetter(uint8_t byte);
// The byte of a letter, or -1.
int ByteOfLetter(uint32_t code);
// Replaces every byte by its letter.
std::string ToByteLetters(absl::string_view bytes);
// Replaces every letter by its byte. False: `text` has other characters, and `bytes` is unspecified.
bool FromByteLetters(absl::string_view text, std::string& bytes);

}  // namespace trainyard
