#include "worker/link/value_calls.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/limits.h"
#include "common/rpc_status.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

// The limit for a put, which waits until the coordinator has the value. The members of a group wait as long for each
// other (GroupOptions::timeout), so a coordinator that is away for less time ends no rank.
constexpr absl::Duration kPutLimit = absl::Minutes(30);
// A long wait is requested in slices, so that the link notices when the daemon was replaced.
constexpr absl::Duration kGetSlice = absl::Seconds(10);

absl::Time SteadyNow() { return Clock::GetSteadyClock().TimeNow(); }

}  // namespace

void ValueCalls::Abort(const absl::Status& reason) {
  absl::MutexLock lock(&mu_);
  if (!aborted_.ok()) return;
  aborted_ = reason;
  for (grpc::ClientContext* call : calls_) call->TryCancel();
  aborted_changed_.SignalAll();
}

void ValueCalls::Pause(absl::Duration duration) {
  absl::MutexLock lock(&mu_);
  aborted_changed_.AwaitFor(&mu_, duration, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !aborted_.ok(); });
}

void ValueCalls::RepeatPuts() {
  std::map<std::string, std::string> values;
  {
    absl::MutexLock lock(&mu_);
    values = values_;
  }
  for (const auto& [name, value] : values) PutOnce(name, value).IgnoreError();
}

void ValueCalls::Forget() {
  absl::MutexLock lock(&mu_);
  forgotten_ = true;
  values_.clear();
}

template <typename Call>
absl::Status ValueCalls::CallOnce(absl::string_view what, absl::Duration timeout, const Call& call) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(aborted_);
    calls_.insert(&context);
  }
  grpc::Status status = call(context);
  absl::MutexLock lock(&mu_);
  calls_.erase(&context);
  if (!aborted_.ok()) return aborted_;
  return FromGrpcStatus(status, what);
}

absl::Status ValueCalls::PutOnce(absl::string_view name, absl::string_view value) {
  v1::TrainerPutRequest request;
  *request.mutable_key() = key_;
  request.set_token(token_);
  request.set_name(std::string(name));
  request.set_value(std::string(value));
  v1::TrainerPutResponse response;
  return CallOnce(absl::StrCat("putting '", name, "'"), kGetSlice,
                  [&](grpc::ClientContext& context) { return stub_.PutValue(&context, request, &response); });
}

absl::Status ValueCalls::Put(absl::string_view name, absl::string_view value) {
  {
    absl::MutexLock lock(&mu_);
    if (!forgotten_) values_.emplace(name, value);
  }
  const absl::Time until = SteadyNow() + kPutLimit;
  absl::Duration back_off = limits::kReconnectMin;
  while (true) {
    absl::Status status = PutOnce(name, value);
    bool may_retry = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!may_retry || SteadyNow() + back_off > until) return status;
    Pause(back_off);
    back_off = std::min(back_off * 2, limits::kReconnectMax);
  }
}

absl::StatusOr<std::string> ValueCalls::Get(absl::string_view name, absl::Duration timeout) {
  const absl::Time until = SteadyNow() + timeout;
  absl::Duration back_off = limits::kReconnectMin;
  v1::TrainerGetRequest request;
  *request.mutable_key() = key_;
  request.set_token(token_);
  request.set_name(std::string(name));
  while (true) {
    absl::Duration slice = std::clamp(until - SteadyNow(), absl::ZeroDuration(), kGetSlice);
    request.set_wait_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(slice)));
    v1::TrainerGetResponse response;
    // The daemon ends the wait after `slice`; its answer has one more second to arrive.
    absl::Status status =
        CallOnce(absl::StrCat("waiting for '", name, "'"), slice + absl::Seconds(1),
                 [&](grpc::ClientContext& context) { return stub_.GetValue(&context, request, &response); });
    if (status.ok()) return std::move(*response.mutable_value());
    bool may_retry = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!may_retry || SteadyNow() >= until) return status;
    if (absl::IsUnavailable(status)) {
      Pause(std::min(back_off, until - SteadyNow()));
      back_off = std::min(back_off * 2, limits::kReconnectMax);
    }
  }
}

}  // namespace trainyard
