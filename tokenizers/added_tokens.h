// Tokens that are searched for literally in a text, before the text is split into words: special tokens, and tokens
// that were added to a trained vocabulary. Among the tokens that begin at the leftmost position, the longest is found.
// Immutable and thread-safe once made.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace trainyard {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // it is found only where no character of a word is next to it
  bool lstrip = false;       // the spaces before it become part of it
  bool rstrip = false;       // the spaces after it become part of it
  bool normalized = false;   // it is searched for in the normalized text
  bool special = false;      // Decode leaves it out on request
};

class TokenFinder {
 public:
  // Adds a token that is found where `text`, its content or its normalized content, occurs; an empty `text` is never
  // found. If two tokens have the same text, the first one is found.
  void Add(absl::string_view text, const AddedToken& token);

  // Calls `part` with each part of `text` in order: each token with its id, and the text between tokens with -1. No
  // part is empty.
  using Part = absl::FunctionRef<void(absl::string_view part, int32_t id)>;
  void Cut(absl::string_view text, Part part) const;

 private:
  struct Node {
    int32_t token = -1;  // the index in tokens_ of the token that ends here
  };
  // The longest token that begins at `at`; null: none. `size` is the size of its text.
  const AddedToken* LongestAt(absl::string_view text, size_t at, size_t& size) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_ = std::vector<Node>(1);          // of a trie of bytes; 0 is the root
  absl::flat_hash_map<uint64_t, uint32_t> children_;        // by node << 8 | byte
  std::array<bool, 256> begins_ = std::array<bool, 256>();  // bytes with which a token begins
};

}  // namespace trainyard
