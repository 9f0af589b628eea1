// The rendezvous values known on this host, by group (a generation of a job), and the waits for them. The value relay
// adds values from the coordinator; trainers read them through the link server. Also knows the trainers' tokens,
// because only trainers of the group may read values.
//
// A wait ends when the value arrives, at its deadline, at the end of the group (Aborted), or when the group is sealed
// without the value. Thread-safe; callbacks run on the thread that ends the wait, with no lock held.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/agent/trainer_id.h"

namespace trainyard::agent {

class ValueCache {
 public:
  using Done = std::function<void(absl::StatusOr<std::string>)>;
  using WaitId = NumberId<struct WaitIdTag>;

  void Admit(const TrainerId& id, const std::string& token);
  // Whether all trainers of an earlier incarnation of the daemon are admitted; true unless this is called.
  void SetComplete(bool is_complete);
  // Possible errors: Aborted: the trainer's generation is over. PermissionDenied: wrong token. NotFound: no such
  // trainer. Unavailable: it is not known, but not all trainers are admitted yet.
  absl::Status Check(const TrainerId& id, const std::string& token) const;

  void Add(const GroupId& group, const std::string& name, const std::string& value);
  void Seal(const GroupId& group);
  bool IsSealed(const GroupId& group) const;
  bool Holds(const GroupId& group, const std::string& name, const std::string& value) const;
  void End(const GroupId& group, const std::string& reason);

  // `done` is called once, perhaps before this returns. Its possible errors: DeadlineExceeded, Aborted,
  // FailedPrecondition (sealed, and no such value), ResourceExhausted (too many waits).
  WaitId Get(const GroupId& group, const std::string& name, absl::Time deadline, Done done);
  // `done` will not be called any more, unless the call is under way.
  void Cancel(WaitId wait);

  // Ends waits whose deadline has passed.
  void Expire(absl::Time now);
  absl::Time NextDeadline() const;

 private:
  struct Group {
    std::map<std::string, std::string> values;
    bool sealed = false;
    std::string over;  // why the group has ended; empty: it has not
  };
  struct Wait {
    GroupId group;
    std::string name;
    absl::Time deadline;
    Done done;
  };
  using EndedWaits = std::vector<std::pair<Done, absl::StatusOr<std::string>>>;

  // Removes the waits for which `answer` returns a result.
  template <typename Answer>
  EndedWaits RemoveWaits(const Answer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void CallDone(EndedWaits ended);

  mutable absl::Mutex mu_;
  bool is_complete_ ABSL_GUARDED_BY(mu_) = true;
  std::map<TrainerId, std::string> tokens_ ABSL_GUARDED_BY(mu_);
  std::map<GroupId, Group> groups_ ABSL_GUARDED_BY(mu_);
  std::map<WaitId, Wait> waits_ ABSL_GUARDED_BY(mu_);
  uint64_t last_wait_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace trainyard::agent
