// The hash that detects damage: of job specs on their way to the ranks, and of files and pieces of checkpoints. XXH3
// with 128 bits, written as 32 hex digits in the order of `xxhsum -H2`. It does not protect against forgery.
//
//   std::string digest = HashHex(spec_bytes);
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

std::string HashHex(absl::string_view bytes);

// Computes the same hash of bytes that arrive piece by piece. Not thread-safe.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void Add(absl::string_view bytes);
  // The hash of all bytes added so far. More may be added afterwards.
  std::string Hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainyard
