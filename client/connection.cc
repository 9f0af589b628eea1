#include "client/connection.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "client/output.h"
#include "common/api_version.h"
#include "common/clock.h"
#include "common/limits.h"
#include "common/network.h"
#include "common/rpc_answer.h"
#include "common/status_macros.h"

namespace trainyard::client {

namespace {

// Pause between attempts to connect to this machine, where a refusal is immediate.
constexpr absl::Duration kRedialPause = absl::Milliseconds(20);

// The flow-control window of a stream to a coordinator on this machine.
constexpr int kReadAheadBytes = 1 << 20;

const ProgramVersion kOurVersion{.program = "trainctl"};

grpc::ChannelArguments Arguments(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // The keepalive pings of a long Watch detect a coordinator whose machine has disappeared.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  // On this machine, disables the pings that measure the connection: each message would cause a ping, which wakes both
  // programs.
  if (IsLocalAddress(address)) {
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kReadAheadBytes);
  }
  arguments.SetMaxReceiveMessageSize(static_cast<int>(limits::kGrpcMessageBytes));
  return arguments;
}

}  // namespace

absl::Status CheckTarget(const Target& target) {
  if (!SplitHostPort(target.address).has_value() && !SplitUnixAddress(target.address).has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("'", target.address,
                                                   "' is not the address of a coordinator: expected ",
                                                   "host:port, for example 127.0.0.1:7070, or unix:PATH"));
  }
  if (!IsLocalAddress(target.address) && !target.allow_plaintext) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the coordinator at ", target.address,
        " is not on this machine, and this version does not encrypt connections: anyone on the network path could read "
        "them and run jobs. Give --allow-plaintext if you trust the network, or use a tunnel to a loopback address"));
  }
  return absl::OkStatus();
}

bool IsUnanswered(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable || status.code() == absl::StatusCode::kDeadlineExceeded;
}

Connection::Connection(DialOptions options)
    : options_(std::move(options)), on_difference_([](const std::string& text) { Say(text); }) {}

void Connection::set_on_difference(OnDifference on_difference) {
  absl::MutexLock lock(&mu_);
  on_difference_ = std::move(on_difference);
}

absl::Status Connection::CheckServer(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerInitialMetadata();
  const auto header = metadata.find(kServerHeader);
  if (header == metadata.end()) return absl::OkStatus();
  const auto server = ParseVersion(absl::string_view(header->second.data(), header->second.size()));
  if (!server.has_value()) return absl::OkStatus();
  if (absl::Status compatible = CheckCompatible(kOurVersion, *server); !compatible.ok()) return compatible;
  const std::string difference = DescribeDifference(kOurVersion, *server);
  if (!difference.empty() && on_difference_) std::exchange(on_difference_, nullptr)(difference);
  return absl::OkStatus();
}

absl::Status Connection::Dial() {
  absl::StatusOr<CoordinatorChannel> dialed = DialCoordinator(options_, Arguments(options_.address));
  RETURN_IF_ERROR(dialed.status());
  dialed_ = *std::move(dialed);
  stub_ = v1::JobService::NewStub(dialed_.channel);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const Target& target, absl::Duration wait) {
  RETURN_IF_ERROR(CheckTarget(target));
  auto connection = std::unique_ptr<Connection>(new Connection(
      DialOptions{.address = target.address, .token_file = target.token_file, .greeting_wait = kConnectWait}));
  Clock& clock = Clock::GetSteadyClock();
  const absl::Time deadline = clock.TimeNow() + wait;
  absl::MutexLock lock(&connection->mu_);
  absl::Status dialed = connection->Dial();
  for (; absl::IsUnavailable(dialed) && clock.TimeNow() < deadline; dialed = connection->Dial())
    absl::SleepFor(kRedialPause);
  if (absl::IsPermissionDenied(dialed)) return absl::UnavailableError(dialed.message());
  if (!dialed.ok() && !absl::IsUnavailable(dialed)) return dialed;
  const absl::Time wall_deadline = absl::Now() + (deadline - clock.TimeNow());
  if (dialed.ok() && (IsLocalAddress(target.address) ||
                      connection->dialed_.channel->WaitForConnected(absl::ToChronoTime(wall_deadline)))) {
    return connection;
  }
  return absl::UnavailableError(
      absl::StrCat("no coordinator answers at ", target.address, "; tried to connect for ", absl::FormatDuration(wait),
                   ". Start one (trainyard-coordinator --listen ", target.address,
                   " --state DIR), name another with --coordinator or ",
                   "TRAINYARD_COORDINATOR, or use `trainctl run` without either: it then starts a coordinator"));
}

absl::StatusOr<Connection::Stub> Connection::Begin(grpc::ClientContext& context) {
  absl::MutexLock lock(&mu_);
  if (stub_ == nullptr) {
    absl::Status dialed = Dial();
    if (absl::IsUnavailable(dialed) || absl::IsPermissionDenied(dialed)) {
      return absl::UnavailableError(
          absl::StrCat("the coordinator at ", options_.address, " does not answer: ", dialed.message()));
    }
    RETURN_IF_ERROR(dialed);
  }
  dialed_.Authorize(context);
  context.AddMetadata(kClientHeader, FormatVersion(kOurVersion));
  return stub_;
}

absl::Status Connection::ToStatus(const grpc::Status& status, const grpc::ClientContext& context) {
  const std::string& address = options_.address;
  auto code = static_cast<absl::StatusCode>(status.error_code());
  absl::MutexLock lock(&mu_);
  if (absl::Status compatible = CheckServer(context); !compatible.ok()) return compatible;
  if (status.ok()) return absl::OkStatus();
  if (code == absl::StatusCode::kUnauthenticated && TokenHasChanged(options_, dialed_)) {
    stub_ = nullptr;
    return absl::UnavailableError(
        absl::StrCat("the coordinator at ", address, " does not answer: it was restarted with a new token"));
  }
  if (code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kDeadlineExceeded) stub_ = nullptr;
  if (code == absl::StatusCode::kUnavailable && !IsAnswered(status)) {
    absl::Status answer = absl::UnavailableError(
        absl::StrCat("the coordinator at ", address, " does not answer: ", status.error_message()));
    CopyDetails(status, &answer);
    return answer;
  }
  if (code == absl::StatusCode::kDeadlineExceeded) {
    return absl::DeadlineExceededError(
        absl::StrCat("the coordinator at ", address, " did not answer within ", absl::FormatDuration(kCallTimeout)));
  }
  if (code == absl::StatusCode::kUnimplemented) {
    const std::string detail =
        status.error_message().empty() ? "" : absl::StrCat(" (its message: ", status.error_message(), ")");
    return absl::UnimplementedError(
        absl::StrCat("the server at ", address,
                     " is not a Trainyard coordinator, or is an older version: it does not support this call", detail));
  }
  absl::Status answer(code, status.error_message());
  CopyDetails(status, &answer);
  return answer;
}

}  // namespace trainyard::client
