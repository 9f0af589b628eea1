// Carries rendezvous values between this host's trainers and the coordinator, over the daemon's one stream: sends puts
// to the coordinator, and stores the values of all hosts in the value cache. The coordinator keeps values in memory
// only, so the values that this host's trainers have put are kept until the group has formed, and are put again after
// every new attachment.
//
// Thread-safe; nothing blocks. Callbacks run on the thread that ends the wait, with no lock held.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "trainyard/v1/agent.pb.h"
#include "worker/agent/trainer_id.h"
#include "worker/agent/value_cache.h"

namespace trainyard::agent {

class ValueRelay {
 public:
  using Done = std::function<void(absl::Status)>;

  // Does not own `cache` and `clock`; they must outlive this object. `send` sends a message on the stream to the
  // coordinator, or drops it if there is none; called from any thread.
  ValueRelay(ValueCache& cache, Clock& clock, std::function<void(v1::AgentMessage)> send)
      : cache_(cache), clock_(clock), send_(std::move(send)) {}
  ~ValueRelay() { Detach(); }
  ValueRelay(const ValueRelay&) = delete;
  ValueRelay& operator=(const ValueRelay&) = delete;

  // Attach: the coordinator has welcomed this daemon; the puts of groups that are not sealed are sent again. Detach:
  // the stream has ended.
  void Attach();
  void Detach();
  // Handles values that the coordinator has sent.
  void Receive(const v1::StoreValues& values);

  // Values of this group are needed, until it is sealed or ends.
  void Follow(const GroupId& group);
  // The group has formed: no rank needs to put values any more.
  void Seal(const GroupId& group);
  void Forget(const GroupId& group);

  // Possible errors of `done`: those of RefusedValue (proto/trainyard/v1/agent.proto), and Unavailable if there is no
  // coordinator or it does not answer. After Unavailable, the value is stored and will be put as soon as possible;
  // repeat the call to get the result.
  void Put(const TrainerId& id, const std::string& name, const std::string& value, Done done);

  // Ends waits for a coordinator that has not answered in time. Called by the event thread, at least once a second.
  void Expire(absl::Time now);
  absl::Time NextDeadline() const;

 private:
  struct Wait {
    absl::Time deadline;
    Done done;
  };
  struct Value {
    std::string value;
    bool known = false;  // the coordinator of this stream has accepted it
    std::vector<Wait> waits;
  };
  struct Group {
    std::map<std::string, Value> puts;  // by name
    size_t bytes = 0;                   // of all values
    bool sealed = false;
  };
  using EndedWaits = std::vector<std::pair<Done, absl::Status>>;

  void Send(const GroupId& id, const Group& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the result if it is known already. If the value was sent to the coordinator instead, returns OK and moves
  // `done`, which is called when the coordinator has answered.
  absl::Status PutLocked(const TrainerId& id, const std::string& name, const std::string& value, Done& done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void ErasePut(Group& group, std::map<std::string, Value>::iterator put);
  static void EndWaits(Value& value, const absl::Status& status, EndedWaits& ended);
  static void CallDone(EndedWaits ended);

  ValueCache& cache_;
  Clock& clock_;
  const std::function<void(v1::AgentMessage)> send_;

  mutable absl::Mutex mu_;
  bool attached_ ABSL_GUARDED_BY(mu_) = false;
  std::map<GroupId, Group> groups_ ABSL_GUARDED_BY(mu_);  // groups that are followed
};

}  // namespace trainyard::agent
