#include "client/connection.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/network.h"
#include "common/status_macros.h"

namespace trainyard::client {

bool IsLoopback(absl::string_view address) {
  absl::optional<HostPort> split = SplitHostPort(address);
  return split.has_value() && IsLoopbackHost(split->host);
}

absl::Status CheckTarget(const Target& target) {
  if (!SplitHostPort(target.address).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("'", target.address,
                                                   "' is not the address of a coordinator: expected ",
                                                   "host:port, for example 127.0.0.1:7070"));
  }
  if (!IsLoopback(target.address) && !target.allow_plaintext) {
    return absl::FailedPreconditionError(
        absl::StrCat("the coordinator at ", target.address,
                     " is not on this machine, and this version speaks plain text "
                     "only: anyone on the way could read along and run jobs. Give --allow-plaintext if the network is "
                     "trusted, or use a tunnel to a loopback address"));
  }
  return absl::OkStatus();
}

bool IsAway(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable || status.code() == absl::StatusCode::kDeadlineExceeded;
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const Target& target, absl::Duration wait) {
  RETURN_IF_ERROR(CheckTarget(target));
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // A coordinator whose machine is gone without a word is noticed by the pings of a long Watch.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(limits::kGrpcMessageBytes));
  auto connection = std::unique_ptr<Connection>(new Connection());
  connection->address_ = target.address;
  connection->channel_ = grpc::CreateCustomChannel(target.address, grpc::InsecureChannelCredentials(), arguments);
  connection->stub_ = v1::JobService::NewStub(connection->channel_);
  if (!connection->channel_->WaitForConnected(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(wait))) {
    return absl::UnavailableError(
        absl::StrCat("no coordinator answers at ", target.address, "; tried to connect for ",
                     absl::FormatDuration(wait), ". Start one (trainyard-coordinator --listen ", target.address,
                     " --state DIR), name another by --coordinator or ",
                     "TRAINYARD_COORDINATOR, or use `trainctl run` without either, which starts its own"));
  }
  return connection;
}

absl::Status Connection::ToStatus(const grpc::Status& status) const {
  if (status.ok()) return absl::OkStatus();
  auto code = static_cast<absl::StatusCode>(status.error_code());
  if (code == absl::StatusCode::kUnavailable) {
    return absl::UnavailableError(
        absl::StrCat("the coordinator at ", address_, " does not answer: ", status.error_message()));
  }
  if (code == absl::StatusCode::kDeadlineExceeded) {
    return absl::DeadlineExceededError(
        absl::StrCat("the coordinator at ", address_, " did not answer within ", absl::FormatDuration(kCallTimeout)));
  }
  if (code == absl::StatusCode::kUnimplemented) {
    return absl::UnimplementedError(absl::StrCat(
        "the server at ", address_, " is no Trainyard coordinator of this version: ", status.error_message()));
  }
  return absl::Status(code, status.error_message());
}

}  // namespace trainyard::client
