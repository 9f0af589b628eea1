// Byte pair encoding: the part of a tokenizer that turns a word into tokens. A word is first divided into its
// characters (or bytes). Then, of all pairs of neighbours that have a merge rule, the pair with the lowest rank is
// merged, until no pair has a rule.
//
// Immutable and thread-safe; the scratch memory belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tokenizers/word_cache.h"

namespace trainyard {

// The values of the object "model" of a tokenizer.json.
struct BpeParts {
  std::vector<std::pair<std::string, int32_t>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::string unknown;                                      // token of unknown characters; empty: none
  std::string subword_prefix, word_suffix;
  bool fuse_unknown = false;
  bool byte_fallback = false;
  bool ignore_merges = false;  // a word that is in the vocabulary becomes that token without merges
};

class Bpe {
 public:
  // The memory that encoding needs. It also caches the tokens of earlier words, so callers use it for many words.
  struct Scratch {
    WordCache<30, 8> words;     // the key is the bytes of a word
    WordCache<60, 15> symbols;  // the key is the ids of the characters of a word
    std::vector<int32_t> ids;
    std::vector<int32_t> previous, next, made;
    std::vector<uint32_t> ranks;
    std::vector<uint64_t> heap;
    absl::Status status;  // the first error; the words after it are ignored

    // Frees the memory that an unusually large word needed.
    void Trim() {
      if (ids.capacity() < size_t{1} << 20) return;
      ids = previous = next = made = std::vector<int32_t>();
      ranks = std::vector<uint32_t>();
      heap = std::vector<uint64_t>();
    }
  };

  Bpe(Bpe&&) = default;
  Bpe& operator=(Bpe&&) = default;

  // Possible errors: InvalidArgument: a merge names a token that is not in the vocabulary, or an id is negative or
  // belongs to two tokens.
  static absl::StatusOr<Bpe> Make(const BpeParts& parts);

  // Append the tokens of a word. For EncodeBytes, its characters are the letters of its bytes (byte_letters.h).
  // REQUIRES: word is not empty; for EncodeText it is valid UTF-8.
  void EncodeBytes(absl::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;
  void EncodeText(absl::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

  // TokenOf returns an empty text if there is no such id; IdOf returns -1 if there is no such token.
  absl::string_view TokenOf(int32_t id) const;
  int32_t IdOf(absl::string_view token) const;
  size_t size() const { return ids_.size(); }
  int32_t max_id() const { return max_id_; }
  bool ignores_merges() const { return ignore_merges_; }

  // Whether no token contains the character `code` and a character after it, so that words can be cut after `code`.
  // False if `code` may become part of an unknown token.
  bool NothingJoinsAfter(uint32_t code) const;

 private:
  struct Merge {
    uint32_t rank;
    int32_t made;
  };
  static uint64_t Pair(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  Bpe() = default;
  absl::Status AddMerges(const BpeParts& parts);
  void PrepareBytes();
  void PrepareJoins(const BpeParts& parts);
  int32_t IdOfCharacter(uint32_t code) const;
  void Symbolize(absl::string_view word, Scratch& scratch) const;
  bool ByteTokens(absl::string_view text, std::vector<int32_t>& ids) const;
  void EncodeSymbols(absl::Span<int32_t> symbols, Scratch& scratch, std::vector<int32_t>& ids) const;
  void MergeFew(absl::Span<int32_t> symbols, std::vector<int32_t>& ids) const;
  void MergeMany(absl::Span<int32_t> symbols, Scratch& scratch, std::vector<int32_t>& ids) const;
  bool SizeIsAllowed(size_t size, Scratch& scratch) const;

  absl::flat_hash_map<std::string, int32_t> ids_;
  absl::flat_hash_map<int32_t, absl::string_view> tokens_;  // views of the keys of ids_, which never change
  absl::flat_hash_map<uint64_t, Merge> merges_;
  int32_t max_id_ = -1;
  std::string unknown_, subword_prefix_, word_suffix_;
  int32_t unknown_id_ = -1;
  bool fuse_unknown_ = false, byte_fallback_ = false, ignore_merges_ = false;
  std::vector<int32_t> byte_fallback_ids_;                  // of <0x00> to <0xFF>, -1 where there is none
  std::vector<int32_t> byte_ids_;                           // of the letters of all bytes; empty: not all are tokens
  absl::flat_hash_map<std::string, int32_t> ids_of_bytes_;  // by the bytes that a token stands for; for ignore_merges_
  std::vector<int32_t> characters_;                         // the id of each character below U+10000; -1: not a token
  // For each merge, the last character of its left side and the first character of its right side. No merge crosses the
  // boundary between two neighbours that are not such a pair, so a word may be encoded in two parts there.
  absl::flat_hash_set<uint64_t> joins_;
  bool joins_known_ = false;
};

}  // namespace trainyard
