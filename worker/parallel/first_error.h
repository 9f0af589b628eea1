// Remembers the first error of its owner. Used only by the thread of the training loop.
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
