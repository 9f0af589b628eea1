// The way of other threads to the communicators of a rank, which those threads outlive: breaks them when the generation
// is over, and reads how far they are. Does nothing once they are detached. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "worker/collectives/communicator.h"

namespace trainyard {

struct NamedProgress {
  std::string name;
  CollectiveProgress progress;
};

class AbortSwitch {
 public:
  // Does not own it: Detach before it goes. One that is attached after Abort is aborted at once.
  void Attach(absl::string_view name, Communicator* communicator);
  void Detach();  // all of them
  // Breaks all: a rank that waits in one of them is out, and so is the peer that waits for it in another.
  void Abort(absl::string_view reason);
  // In the order of their attaching.
  std::vector<NamedProgress> Progress();

 private:
  struct Attached {
    std::string name;
    Communicator* communicator;
  };
  absl::Mutex mu_;
  std::vector<Attached> attached_ ABSL_GUARDED_BY(mu_);
  bool aborted_ ABSL_GUARDED_BY(mu_) = false;
  std::string reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
