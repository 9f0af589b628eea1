// Caches the tokens of words that were encoded before, in a table of fixed size. A word has one place, given by its
// hash, and replaces the word that was there, so nothing is allocated or searched. Text repeats its words, so nearly
// all words are found. Not thread-safe.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace trainyard {

// Holds words of at most `kBytes` bytes with at most `kIds` tokens; other words are never found.
template <size_t kBytes, size_t kIds>
class WordCache {
 public:
  static constexpr size_t kMaxBytes = kBytes;

  // Appends the tokens of `word` to `ids` if the word is in the cache; returns whether it is.
  bool Find(absl::string_view word, uint64_t hash, std::vector<int32_t>& ids) const {
    const Entry& entry = entries_[hash % kEntries];
    if (entry.size != word.size() || std::memcmp(entry.word, word.data(), word.size()) != 0) return false;
    ids.insert(ids.end(), entry.ids, entry.ids + entry.count);
    return true;
  }

  // REQUIRES: 0 < word.size() <= kMaxBytes.
  void Insert(absl::string_view word, uint64_t hash, absl::Span<const int32_t> ids) {
    if (ids.size() > kIds) return;
    Entry& entry = entries_[hash % kEntries];
    entry.size = static_cast<uint8_t>(word.size());
    entry.count = static_cast<uint8_t>(ids.size());
    std::memcpy(entry.word, word.data(), word.size());
    std::memcpy(entry.ids, ids.data(), ids.size() * sizeof(int32_t));
  }

  // REQUIRES: word is not empty.
  static uint64_t Hash(absl::string_view word) {
    const char* const data = word.data();
    const size_t size = word.size();
    const auto load = [](const char* from, size_t count) {
      uint64_t value = 0;
      std::memcpy(&value, from, count);
      return value;
    };
    uint64_t state = size * 0x9E3779B97F4A7C15u;
    if (size >= 8) {
      for (size_t at = 0; at + 8 < size; at += 8) state = Mix(state ^ load(data + at, 8));
      return Mix(state ^ load(data + size - 8, 8));
    }
    if (size >= 4) return Mix(state ^ (load(data, 4) | load(data + size - 4, 4) << 32));
    const auto byte = [data](size_t index) { return static_cast<uint64_t>(static_cast<unsigned char>(data[index])); };
    return Mix(state ^ (byte(0) | byte(size / 2) << 8 | byte(size - 1) << 16));
  }

 private:
  static constexpr size_t kEntries = size_t{1} << 15;
  struct alignas(64) Entry {
    uint8_t size = 0;  // 0: empty
    uint8_t count = 0;
    char word[kBytes];
    int32_t ids[kIds];
  };
  static_assert(kBytes < 256 && kIds < 256);

  static uint64_t Mix(uint64_t value) {
    const unsigned __int128 product = static_cast<unsigned __int128>(value) * 0xD6E8FEB86659FD93u;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }

  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
};

}  // namespace trainyard
