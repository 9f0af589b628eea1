// The way to a coordinator: address rules, a channel, and statuses that name the address.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "trainyard/v1/service.grpc.pb.h"

namespace trainyard::client {

struct Target {
  std::string address;  // host:port
  bool allow_plaintext = false;
};

// Possible errors: InvalidArgument: not host:port. FailedPrecondition: not loopback, and plain text was not allowed.
absl::Status CheckTarget(const Target& target);

// localhost, 127.x.y.z or [::1].
bool IsLoopback(absl::string_view address);

// Whether a call ended because the coordinator was not there, or left meanwhile: worth another try.
bool IsAway(const absl::Status& status);

// Thread-safe, as its stub is.
class Connection {
 public:
  // Connects, trying for `wait`: a coordinator that is just being started is no error. Possible errors: those of
  // CheckTarget; Unavailable: nothing answers there (the message says what was tried).
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const Target& target, absl::Duration wait);

  v1::JobService::StubInterface& stub() { return *stub_; }
  const std::string& address() const { return address_; }

  // The caller's status of a call: the server's own words, or, when it could not be reached, its address.
  absl::Status ToStatus(const grpc::Status& status) const;

 private:
  Connection() = default;

  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::StubInterface> stub_;
};

// How long a command waits for a coordinator that does not answer yet: as long as a daemon tries for a taken port.
inline constexpr absl::Duration kConnectWait = absl::Seconds(2);
// A call that answers at once on any coordinator that is well.
inline constexpr absl::Duration kCallTimeout = absl::Seconds(30);

}  // namespace trainyard::client
