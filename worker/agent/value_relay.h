// Carries rendezvous values between this host's trainers and the coordinator: puts up, everybody's values down into the
// value cache. The coordinator's store is soft, so what this host's trainers have put is kept until the store is sealed
// and put again after every re-attaching.
//
// Thread-safe. Calls of the coordinator end on gRPC's threads; nothing blocks but Shutdown, which waits for them.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "trainyard/v1/agent.grpc.pb.h"
#include "worker/agent/trainer_id.h"
#include "worker/agent/value_cache.h"

namespace trainyard::agent {

class ValueRelay {
 public:
  using Done = std::function<void(absl::Status)>;

  // Does not own `cache`; it must outlive this object. `wake` is called, on any thread, when NextRetry() has changed.
  ValueRelay(ValueCache& cache, Incarnation incarnation, std::function<void()> wake)
      : cache_(cache), incarnation_(incarnation), wake_(std::move(wake)) {}
  ~ValueRelay() { Shutdown(); }
  ValueRelay(const ValueRelay&) = delete;
  ValueRelay& operator=(const ValueRelay&) = delete;

  // The coordinator can be called over `channel` from here on; after Detach it cannot.
  void Attach(std::shared_ptr<grpc::Channel> channel);
  void Detach();
  // Detaches, and waits until nothing of the channel is held any more.
  void Shutdown();

  // Opens again what broke while the coordinator is there, each a moment after it broke. By the event thread.
  void RetryWhenDue(absl::Time now);
  absl::Time NextRetry() const;

  // Values of this group are wanted, until it is sealed or over.
  void Follow(const GroupId& group);
  void Forget(const GroupId& group);

  // Possible errors that `done` gets: those of AgentService.PutValue, and Unavailable while there is no coordinator:
  // the value is kept and put as soon as there is one; ask again to hear of it.
  void Put(const TrainerId& id, const std::string& name, const std::string& value, Done done);

 private:
  class Watch;
  struct PutCall;
  struct Group {
    std::map<std::string, v1::PutValueRequest> puts;  // by name; none once it is sealed
    bool sealed = false;
    absl::Time retry_at = absl::InfiniteFuture();
  };

  void StartWatch(const GroupId& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartPut(const v1::PutValueRequest& request, Done done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndWatch(Watch* watch, const GroupId& group, const absl::Status& status);
  // A call is over: nobody may cancel it any more, then it is deleted, then it no longer counts. [Note: last reference]
  void ForgetCall(grpc::ClientContext* context);
  void CallDeleted();

  ValueCache& cache_;
  const Incarnation incarnation_;
  const std::function<void()> wake_;

  mutable absl::Mutex mu_;
  std::unique_ptr<v1::AgentService::Stub> stub_ ABSL_GUARDED_BY(mu_);  // null: detached
  std::map<GroupId, Group> groups_ ABSL_GUARDED_BY(mu_);               // that are followed
  absl::Time now_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();         // when the event thread last looked
  std::map<GroupId, Watch*> watches_ ABSL_GUARDED_BY(mu_);
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
  int undeleted_calls_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace trainyard::agent
