// UTF-8 for the tokenizers: decoding that trusts its input, a check for input from outside, and the replacement of
// invalid bytes. Pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::utf8 {

// The number of bytes of the character that begins with `lead`. REQUIRES: valid UTF-8.
inline size_t Length(unsigned char lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

// The character at `text[at]`; advances `at` past it. REQUIRES: valid UTF-8 and at < text.size().
inline uint32_t Next(absl::string_view text, size_t& at) {
  const auto byte = [&text](size_t index) { return static_cast<unsigned char>(text[index]); };
  const uint32_t lead = byte(at);
  if (lead < 0x80) return ++at, lead;
  if (lead < 0xE0) return at += 2, (lead & 0x1F) << 6 | (byte(at - 1) & 0x3F);
  if (lead < 0xF0) return at += 3, (lead & 0x0F) << 12 | (byte(at - 2) & 0x3Fu) << 6 | (byte(at - 1) & 0x3F);
  at += 4;
  return (lead & 0x07) << 18 | (byte(at - 3) & 0x3Fu) << 12 | (byte(at - 2) & 0x3Fu) << 6 | (byte(at - 1) & 0x3F);
}

// Where the character that ends at `at` begins. REQUIRES: valid UTF-8 and at > 0.
inline size_t Previous(absl::string_view text, size_t at) {
  do --at;
  while ((text[at] & 0xC0) == 0x80);
  return at;
}

void Append(uint32_t code, std::string& text);

// The length of the longest prefix of `text` that is valid UTF-8: text.size() if all of it is.
size_t ValidPrefix(absl::string_view text);

// Replaces every maximal invalid part by U+FFFD, as Python's errors="replace" and Rust's from_utf8_lossy do.
std::string Replaced(absl::string_view text);

}  // namespace trainyard::utf8
