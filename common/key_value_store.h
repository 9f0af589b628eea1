// Where ranks find each other: write-once values that all ranks of a generation share. The daemon's link implements it
// for real jobs; tests have their own. Needed only while communicators are built.
//
// No torch here. Implementations are thread-safe: gloo asks from threads of its own, and a Get that waits holds up
// nobody.
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

  // Writes a value, once. Possible errors: AlreadyExists when the name holds another value (the same again is fine);
  // Aborted when the generation is over; FailedPrecondition when the store is sealed.
  virtual absl::Status Put(absl::string_view name, absl::string_view value) = 0;

  // Waits until the value is there. Possible errors: DeadlineExceeded when it did not come within `timeout` (zero:
  // looks once); Aborted when the generation is over.
  virtual absl::StatusOr<std::string> Get(absl::string_view name, absl::Duration timeout) = 0;
};

}  // namespace trainyard
