// The connection to a coordinator: checks of its address, reconnecting after a loss, and statuses that name the
// address.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/dial.h"
#include "trainyard/v1/service.grpc.pb.h"

namespace trainyard::client {

struct Target {
  std::string address;  // host:port, or unix:PATH
  bool allow_plaintext = false;
  std::string token_file = {};  // empty: the default location (common/dial.h)
};

// Possible errors: InvalidArgument: the address is neither host:port nor unix:PATH. FailedPrecondition: the coordinator
// is not on this machine and plain text is not allowed.
absl::Status CheckTarget(const Target& target);

// Returns whether a call failed because the coordinator did not answer or disconnected; the call can be retried.
bool IsUnanswered(const absl::Status& status);

// Thread-safe.
class Connection {
 public:
  // Connects, retrying for up to `wait`, so that a coordinator that is still starting is not an error. Possible errors:
  // those of CheckTarget and of the token file; Unavailable: no coordinator answers (the message says what was tried),
  // or another user's process listens there (common/dial.h).
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const Target& target, absl::Duration wait);

  using Stub = std::shared_ptr<v1::JobService::StubInterface>;

  // Begins a call: adds the credentials to its context and returns the stub to call. Reconnects if the previous call
  // was not answered. Possible errors: Unavailable: no coordinator answers, or another user's process listens there;
  // those of the token file.
  absl::StatusOr<Stub> Begin(grpc::ClientContext& context);

  const std::string& address() const { return options_.address; }

  // Converts the status of a finished RPC; must be called once for each RPC. Keeps the server's message and details, or
  // names the address if the coordinator could not be reached. Returns Unavailable, too, if the coordinator was
  // restarted with a new token, and FailedPrecondition if it supports no version of the API that we support. Reports
  // once if the coordinator has another version than this program.
  absl::Status ToStatus(const grpc::Status& status, const grpc::ClientContext& context);

  // Called with a sentence for the user, at most once. The default prints it to standard error.
  using OnDifference = std::function<void(const std::string& text)>;
  void set_on_difference(OnDifference on_difference);

 private:
  explicit Connection(DialOptions options);
  absl::Status Dial() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckServer(const grpc::ClientContext& context) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const DialOptions options_;
  absl::Mutex mu_;
  CoordinatorChannel dialed_ ABSL_GUARDED_BY(mu_);
  Stub stub_ ABSL_GUARDED_BY(mu_);                   // null: not connected
  OnDifference on_difference_ ABSL_GUARDED_BY(mu_);  // null: nothing is left to report
};

// How long a command waits for a coordinator that does not answer yet.
inline constexpr absl::Duration kConnectWait = absl::Seconds(2);
// Timeout of a call that any healthy coordinator answers immediately.
inline constexpr absl::Duration kCallTimeout = absl::Seconds(30);

}  // namespace trainyard::client
