// Lets other threads abort a rank's communicators and channels when the generation is over, and read their progress.
// Those threads may outlive the communicators: after Detach the switch does nothing. Thread-safe.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "worker/collectives/channel.h"
#include "worker/collectives/communicator.h"

namespace trainyard {

struct NamedProgress {
  std::string name;
  CollectiveProgress progress;
};

class AbortSwitch {
 public:
  // Does not take ownership: call Detach before the communicator is destroyed. A communicator that is attached after
  // Abort is aborted immediately.
  void Attach(absl::string_view name, Communicator* communicator);
  void Attach(Channel* channel);  // under its own name
  void Detach();                  // detaches all
  // Aborts all that are attached: this rank may wait in one of them while a peer waits for this rank in another, and
  // both waits must end.
  void Abort(absl::string_view reason);
  // In the order in which they were attached.
  std::vector<NamedProgress> Progress();

 private:
  struct Attached {
    std::string name;
    std::function<void(absl::string_view reason)> abort;
    std::function<CollectiveProgress()> progress;
  };
  void Attach(Attached attached);

  absl::Mutex mu_;
  std::vector<Attached> attached_ ABSL_GUARDED_BY(mu_);
  bool aborted_ ABSL_GUARDED_BY(mu_) = false;
  std::string reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
