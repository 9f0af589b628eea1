// Puts and gets rendezvous values by RPCs to the daemon, with retries: if the daemon or the coordinator is away, the
// call is repeated after 50 ms, doubling up to 1 s. Thread-safe; Abort ends calls that are under way.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/steady_cond_var.h"
#include "trainyard/v1/trainer.grpc.pb.h"

namespace trainyard {

class ValueCalls {
 public:
  // Does not own `stub`.
  ValueCalls(v1::TrainerLink::Stub& stub, const v1::TrainerKey& key, std::string token)
      : stub_(stub), key_(key), token_(std::move(token)) {}

  // Put and Get do what KeyValueStore specifies.
  absl::Status Put(absl::string_view name, absl::string_view value);
  absl::StatusOr<std::string> Get(absl::string_view name, absl::Duration timeout);

  // Puts all values of this rank again, because a new daemon does not know them.
  void RepeatPuts();
  // The values are no longer needed: drops them and stores no further ones.
  void Forget();

  // Ends all calls, present and future, with `reason`.
  void Abort(const absl::Status& reason);

 private:
  template <typename Call>
  absl::Status CallOnce(absl::string_view what, absl::Duration timeout, const Call& call);
  absl::Status PutOnce(absl::string_view name, absl::string_view value);
  // Ends early if aborted; the next call then returns the reason.
  void Pause(absl::Duration duration);

  v1::TrainerLink::Stub& stub_;
  const v1::TrainerKey key_;
  const std::string token_;

  absl::Mutex mu_;
  SteadyCondVar aborted_changed_;
  absl::Status aborted_ ABSL_GUARDED_BY(mu_);
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mu_);
  bool forgotten_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace trainyard
