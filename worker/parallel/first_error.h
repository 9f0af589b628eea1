// Remembers the first error. Belongs to the loop's thread.
#pragma once

#include "absl/status/status.h"

namespace trainyard {

class FirstError {
 public:
  const absl::Status& status() const { return status_; }
  // Returns `status`, and stores it if it is the first error.
  absl::Status Record(absl::Status status) {
    if (status_.ok()) status_ = status;
    return status;
  }

 private:
  absl::Status status_;
};

}  // namespace trainyard
