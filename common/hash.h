// The hash of everything that must prove itself: job specs on their way to the ranks, files and pieces of checkpoints.
// XXH3, 128 bits, written as 32 hex digits in the order of `xxhsum -H2`. It finds damage; it is no defence against
// forgery.
//
//   std::string digest = HashHex(spec_bytes);
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

std::string HashHex(absl::string_view bytes);

// The same hash of bytes that come piece by piece. Not thread-safe.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void Add(absl::string_view bytes);
  // Of all that was added so far; more may follow.
  std::string Hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainyard
