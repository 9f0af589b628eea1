#include "tokenizers/byte_letters.h"

#include <array>

#include "tokenizers/utf8.h"

namespace trainyard {
namespace {

constexpr uint32_t kLetters = 256 + 68;  // 68 bytes are not printable

struct Alphabet {
  std::array<std::string, 256> letters;
  std::array<int16_t, kLetters> bytes;

  Alphabet() {
    bytes.fill(-1);
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const bool prints = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
      const uint32_t code = prints ? byte : next++;
      utf8::Append(code, letters[byte]);
      bytes[code] = static_cast<int16_t>(byte);
    }
  }
};

const Alphabet& TheAlphabet() {
  static const Alphabet* const alphabet = new Alphabet;
  return *alphabet;
}

}  // namespace

const std::string& ByteLetter(uint8_t byte) { return TheAlphabet().letters[byte]; }

int ByteOfLetter(uint32_t code) { return code < kLetters ? TheAlphabet().bytes[code] : -1; }

std::string ToByteLetters(absl::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) out += ByteLetter(static_cast<uint8_t>(c));
  return out;
}

bool FromByteLetters(absl::string_view text, std::string& bytes) {
  bytes.clear();
  for (size_t at = 0; at < text.size();) {
    const int byte = ByteOfLetter(utf8::Next(text, at));
    if (byte < 0) return false;
    bytes += static_cast<char>(byte);
  }
  return true;
}

}  // namespace trainyard
