// The way to a coordinator: address rules, a connection that is made again when it is lost, and statuses that name the
// address.
#pragma once

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
  std::string token_file = {};  // empty: found by itself (common/dial.h)
};

// Possible errors: InvalidArgument: neither host:port nor unix:PATH. FailedPrecondition: not this machine, and plain
// text was not allowed.
absl::Status CheckTarget(const Target& target);

// Whether a call ended because the coordinator was not there, or left meanwhile: worth another try.
bool IsAway(const absl::Status& status);

// Thread-safe.
class Connection {
 public:
  // Connects, trying for `wait`: a coordinator that is just being started is no error. Possible errors: those of
  // CheckTarget; Unavailable: nothing answers there (the message says what was tried), or a program of another user
  // does (common/dial.h); those of the token file.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const Target& target, absl::Duration wait);

  using Stub = std::shared_ptr<v1::JobService::StubInterface>;

  // Begins a call: gives its context what shows who calls, and returns what to call. Connects again where the call
  // before was not answered. Possible errors: Unavailable: nothing answers there now, or a program of another user
  // does.
  absl::StatusOr<Stub> Begin(grpc::ClientContext& context);

  const std::string& address() const { return options_.address; }

  // The caller's status of a call, to be asked for once each has ended: the server's own words, or, when it could not
  // be reached, its address. Unavailable also where the coordinator has been started anew, with another token.
  absl::Status ToStatus(const grpc::Status& status);

 private:
  explicit Connection(DialOptions options) : options_(std::move(options)) {}
  absl::Status Dial() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const DialOptions options_;
  absl::Mutex mu_;
  CoordinatorChannel dialed_ ABSL_GUARDED_BY(mu_);
  Stub stub_ ABSL_GUARDED_BY(mu_);  // null: to be dialed
};

// How long a command waits for a coordinator that does not answer yet: as long as a daemon tries for a taken port.
inline constexpr absl::Duration kConnectWait = absl::Seconds(2);
// A call that answers at once on any coordinator that is well.
inline constexpr absl::Duration kCallTimeout = absl::Seconds(30);

}  // namespace trainyard::client
