#include "coordinator/rpc/attach_stream.h"

#include <utility>

#include "absl/time/clock.h"

#include "common/rpc_status.h"

namespace trainyard {

AttachStream::AttachStream(const RpcContext& context, Registry<SessionId, AttachStream>& registry, std::string peer)
    : context_(context), registry_(registry), id_(registry.NewId()), peer_(std::move(peer)) {}

void AttachStream::Start(std::shared_ptr<AttachStream> self) {
  registry_.Add(id_, std::move(self));
  Read();
}

void AttachStream::Read() {
  absl::MutexLock lock(&mu_);
  if (!ended_with_.has_value()) StartRead(&incoming_);
}

void AttachStream::OnReadDone(bool ok) {
  if (!ok) {
    Detach();
    absl::MutexLock lock(&mu_);
    EndLocked(grpc::Status::OK);
    return;
  }
  heard_unix_ns_.store(absl::ToUnixNanos(context_.clock->TimeNow()));
  if (Take(std::move(incoming_))) return Read();
  // The queue is full: read on when it was drained. The registry keeps this alive for as long as it may be read.
  auto self = registry_.Find(id_);
  if (self != nullptr) context_.queue->WhenDrained([self] { self->Read(); });
}

bool AttachStream::Take(v1::AgentMessage message) {
  if (!said_hello_ && !message.has_hello()) {
    End(absl::InvalidArgumentError("the first message of Attach must be `hello`"));
    return true;
  }
  switch (message.kind_case()) {
    case v1::AgentMessage::kHello:
      if (said_hello_) {
        End(absl::InvalidArgumentError("`hello` is said once a stream"));
        return true;
      }
      said_hello_ = true;
      return context_.queue->Post(AttachHost{id_, std::move(*message.mutable_hello()), peer_});
    case v1::AgentMessage::kFacts:
      return context_.queue->Post(HostFactsTold{id_, std::move(*message.mutable_facts())});
    case v1::AgentMessage::kReports:
      return context_.queue->Post(RankReportsTold{id_, std::move(*message.mutable_reports())});
    case v1::AgentMessage::kHeartbeat:
      return TakeHeartbeat(message.heartbeat());
    default:
      return true;  // of a newer daemon: what this version does not know, it need not
  }
}

bool AttachStream::TakeHeartbeat(const v1::Heartbeat& beat) {
  if (beat.time_unix_ms() != 0) {
    absl::MutexLock lock(&mu_);
    clock_offset_ = absl::FromUnixMillis(beat.time_unix_ms()) - absl::Now();  // what people call the time
    disk_free_bytes_ = beat.disk_free_bytes();
  }
  bool go_on = true;
  if (std::exchange(draining_, beat.draining()) != beat.draining()) {
    go_on = context_.queue->Post(HostDraining{id_, draining_});
  }
  if (std::exchange(applied_revision_, beat.applied_revision()) != beat.applied_revision()) {
    go_on = context_.queue->Post(RevisionApplied{id_, applied_revision_});
  }
  return go_on;
}

void AttachStream::Send(v1::CoordinatorMessage message) {
  absl::MutexLock lock(&mu_);
  if (ended_with_.has_value()) return;
  if (message.has_welcome()) {
    welcome_ = std::move(message);
  } else if (message.has_desired()) {
    desired_ = std::move(message);
  } else {
    ack_ = std::move(message);
  }
  if (!writing_) WriteNext();
}

void AttachStream::WriteNext() {
  for (std::optional<v1::CoordinatorMessage>* waiting : {&welcome_, &desired_, &ack_}) {
    if (!waiting->has_value()) continue;
    outgoing_ = *std::exchange(*waiting, std::nullopt);
    writing_ = true;
    StartWrite(&outgoing_);
    return;
  }
}

void AttachStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
  if (ended_with_.has_value()) {
    Finish(*ended_with_);
  } else if (ok) {
    WriteNext();
  }
}

void AttachStream::End(const absl::Status& status) {
  code_.store(status.code());
  absl::MutexLock lock(&mu_);
  EndLocked(ToGrpcStatus(status));
}

void AttachStream::EndLocked(grpc::Status status) {
  if (ended_with_.has_value()) return;
  ended_with_ = std::move(status);
  // A write that is under way comes to its end first; it fails at once where the daemon has gone.
  if (!writing_) Finish(*ended_with_);
}

void AttachStream::Detach() {
  if (!detached_.exchange(true)) context_.queue->Post(DetachHost{id_});
}

void AttachStream::OnCancel() {
  code_.store(absl::StatusCode::kCancelled);
  Detach();
  absl::MutexLock lock(&mu_);
  EndLocked(grpc::Status(grpc::StatusCode::CANCELLED, "cancelled"));
}

void AttachStream::OnDone() {
  Detach();
  context_.Count("Attach", code_.load());
  registry_.Remove(id_);  // may be the last reference: nothing follows
}

std::optional<Tick::Heard> AttachStream::TakeHeard() {
  int64_t time = heard_unix_ns_.exchange(0);
  if (time == 0) return std::nullopt;
  Tick::Heard heard{.session = id_, .time = absl::FromUnixNanos(time)};
  absl::MutexLock lock(&mu_);
  heard.clock_offset = std::exchange(clock_offset_, std::nullopt);
  heard.disk_free_bytes = std::exchange(disk_free_bytes_, std::nullopt);
  return heard;
}

}  // namespace trainyard
