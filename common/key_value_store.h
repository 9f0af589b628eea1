// The store through which ranks exchange their addresses: write-once values that all ranks of a generation share. The
// daemon's link implements it for real jobs; tests have their own classes. Used only while communicators are created.
//
// Must not depend on torch. Implementations are thread-safe: gloo calls from its own threads, and a waiting Get blocks
// no other call.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace trainyard {

class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;

  // Writes a value once. Possible errors: AlreadyExists if the name holds a different value (writing the same value
  // again succeeds); Aborted if the generation is over; FailedPrecondition if the store is closed for writes.
  virtual absl::Status Put(absl::string_view name, absl::string_view value) = 0;

  // Waits until the value exists. Possible errors: DeadlineExceeded if it was not written within `timeout` (zero:
  // checks once); Aborted if the generation is over.
  virtual absl::StatusOr<std::string> Get(absl::string_view name, absl::Duration timeout) = 0;
};

}  // namespace trainyard
