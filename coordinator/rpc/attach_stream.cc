#include "coordinator/rpc/attach_stream.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/limits.h"
#include "common/rpc_answer.h"
#include "coordinator/rpc/value_fan_out.h"

namespace trainyard {
namespace {

// The size of a message of values is well below gRPC's limit, even with its last piece.
constexpr size_t kValuesBytes = 4 << 20;
static_assert(kValuesBytes + ValueFanOut::kPieceBytes + limits::kStoreValueBytes < limits::kGrpcMessageBytes);
// Limit of waiting refusals for a daemon that does not read; the daemon repeats requests that were not answered.
constexpr int kMaxRefusals = 1'024;

grpc::ByteBuffer Encode(const v1::CoordinatorMessage& message) {
  grpc::ByteBuffer bytes;
  bool is_owned = false;
  grpc::SerializationTraits<v1::CoordinatorMessage>::Serialize(message, &bytes, &is_owned);
  return bytes;
}

// Encodes the beginning of a CoordinatorMessage, up to its values, which have `size` bytes.
grpc::Slice EncodeHead(const v1::StoreValues& head, size_t size) {
  namespace pb = google::protobuf;
  using Wire = pb::internal::WireFormatLite;
  constexpr uint32_t kOuter =
      Wire::MakeTag(v1::CoordinatorMessage::kValuesFieldNumber, Wire::WIRETYPE_LENGTH_DELIMITED);
  constexpr uint32_t kInner = Wire::MakeTag(v1::StoreValues::kValuesFieldNumber, Wire::WIRETYPE_LENGTH_DELIMITED);
  const size_t inner = head.ByteSizeLong() + 1 + pb::io::CodedOutputStream::VarintSize64(size) + size;
  std::string text;
  {
    pb::io::StringOutputStream out(&text);
    pb::io::CodedOutputStream coded(&out);
    coded.WriteVarint32(kOuter);
    coded.WriteVarint64(inner);
    head.SerializeWithCachedSizes(&coded);
    coded.WriteVarint32(kInner);
    coded.WriteVarint64(size);
  }
  return grpc::Slice(text);
}

}  // namespace

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
  last_message_unix_ns_.store(absl::ToUnixNanos(context_.clock->TimeNow()));
  v1::AgentMessage message;
  if (!grpc::SerializationTraits<v1::AgentMessage>::Deserialize(&incoming_, &message).ok()) {
    return End(absl::InvalidArgumentError("a message of Attach cannot be read"));
  }
  if (Handle(std::move(message))) return Read();
  // The queue is full: reading continues once it is drained. The registry keeps this stream alive as long as it may be
  // read.
  auto self = registry_.Find(id_);
  if (self != nullptr) context_.queue->WhenDrained([self] { self->Read(); });
}

bool AttachStream::Handle(v1::AgentMessage message) {
  if (!received_hello_ && !message.has_hello()) {
    End(absl::InvalidArgumentError("the first message of Attach must be `hello`"));
    return true;
  }
  switch (message.kind_case()) {
    case v1::AgentMessage::kHello:
      if (received_hello_) {
        End(absl::InvalidArgumentError("`hello` must be sent only once per stream"));
        return true;
      }
      received_hello_ = true;
      return context_.queue->Post(AttachHost{id_, std::move(*message.mutable_hello()), peer_});
    case v1::AgentMessage::kFacts:
      return context_.queue->Post(HostFactsReceived{id_, std::move(*message.mutable_facts())});
    case v1::AgentMessage::kReports:
      return context_.queue->Post(RankReportsReceived{id_, std::move(*message.mutable_reports())});
    case v1::AgentMessage::kHeartbeat:
      return HandleHeartbeat(message.heartbeat());
    case v1::AgentMessage::kPut:
      return context_.queue->Post(HostValuesReceived{id_, std::move(*message.mutable_put())});
    default:
      return true;  // from a newer daemon: messages that this version does not know are ignored
  }
}

bool AttachStream::HandleHeartbeat(const v1::Heartbeat& beat) {
  if (beat.time_unix_ms() != 0) {
    absl::MutexLock lock(&mu_);
    clock_offset_ = absl::FromUnixMillis(beat.time_unix_ms()) - absl::Now();  // wall clock
    disk_free_bytes_ = beat.disk_free_bytes();
  }
  bool keep_reading = true;
  if (std::exchange(draining_, beat.draining()) != beat.draining()) {
    keep_reading = context_.queue->Post(HostDraining{id_, draining_});
  }
  if (trouble_ != beat.trouble()) {
    trouble_ = beat.trouble();
    keep_reading = context_.queue->Post(HostTrouble{id_, *trouble_});
  }
  if (std::exchange(applied_revision_, beat.applied_revision()) != beat.applied_revision()) {
    keep_reading = context_.queue->Post(RevisionApplied{id_, applied_revision_});
  }
  return keep_reading;
}

void AttachStream::Send(v1::CoordinatorMessage message) {
  absl::MutexLock lock(&mu_);
  if (ended_with_.has_value()) return;
  if (message.has_values()) {
    QueueRefusals(std::move(message));
  } else {
    Kind kind = message.has_welcome() ? Kind::kWelcome : message.has_desired() ? Kind::kDesired : Kind::kAck;
    waiting_[static_cast<size_t>(kind)] = std::move(message);
    Enqueue(kind);
  }
  if (!writing_) WriteNext();
}

void AttachStream::QueueRefusals(v1::CoordinatorMessage message) {
  v1::CoordinatorMessage& queued_message = waiting_[static_cast<size_t>(Kind::kRefused)];
  v1::StoreValues& queued = *queued_message.mutable_values();
  v1::StoreValues& added = *message.mutable_values();
  bool is_same_group = queued.job_id() == added.job_id() && queued.generation() == added.generation();
  if (!is_same_group) {
    // The older refusals are for values of another group, which will be sent again or are obsolete.
    queued = std::move(added);
  } else {
    for (v1::RefusedValue& refused : *added.mutable_refused()) {
      if (queued.refused_size() >= kMaxRefusals) break;
      *queued.add_refused() = std::move(refused);
    }
  }
  Enqueue(Kind::kRefused);
}

void AttachStream::SendValues(const JobId& job, uint64_t generation, const ValuePiece* pieces, size_t count) {
  absl::MutexLock lock(&mu_);
  if (ended_with_.has_value()) return;
  auto is_older = [&](const Values& values) { return values.job == job && values.generation < generation; };
  values_.erase(std::remove_if(values_.begin(), values_.end(), is_older), values_.end());
  auto at = std::find_if(values_.begin(), values_.end(),
                         [&](const Values& values) { return values.job == job && values.generation == generation; });
  if (at == values_.end()) at = values_.insert(values_.end(), {job, generation, {}});
  at->pieces.insert(at->pieces.end(), pieces, pieces + count);
  Enqueue(Kind::kValues);
  if (!writing_) WriteNext();
}

void AttachStream::Enqueue(Kind kind) {
  if (std::find(order_.begin(), order_.end(), kind) == order_.end()) order_.push_back(kind);
}

void AttachStream::EncodeValues() {
  Values& values = values_.front();
  v1::StoreValues head;
  head.set_job_id(values.job.value());
  head.set_generation(values.generation);
  std::vector<grpc::Slice> slices(1);
  size_t bytes = 0;
  while (!values.pieces.empty() && bytes < kValuesBytes) {
    ValuePiece& piece = values.pieces.front();
    bytes += piece.bytes.size();
    head.set_count(head.count() + piece.count);
    slices.push_back(std::move(piece.bytes));
    values.pieces.pop_front();
  }
  slices[0] = EncodeHead(head, bytes);
  outgoing_ = grpc::ByteBuffer(slices.data(), slices.size());
  if (values.pieces.empty()) values_.pop_front();
  if (!values_.empty()) Enqueue(Kind::kValues);
}

void AttachStream::WriteNext() {
  if (order_.empty()) return;
  Kind kind = order_.front();
  order_.erase(order_.begin());
  if (kind == Kind::kValues) {
    EncodeValues();
  } else {
    v1::CoordinatorMessage& message = waiting_[static_cast<size_t>(kind)];
    outgoing_ = Encode(message);
    message.Clear();
  }
  writing_ = true;
  StartWrite(&outgoing_);
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
  EndLocked(ToGrpcAnswer(status));
}

void AttachStream::EndLocked(grpc::Status status) {
  if (ended_with_.has_value()) return;
  ended_with_ = std::move(status);
  // A write in progress must end first; it fails immediately if the daemon has disconnected.
  if (!writing_) Finish(*ended_with_);
}

void AttachStream::Detach() {
  if (!detached_.exchange(true)) context_.queue->Post(DetachHost{id_});
}

void AttachStream::OnCancel() {
  code_.store(absl::StatusCode::kCancelled);
  Detach();
  absl::MutexLock lock(&mu_);
  EndLocked(ToGrpcAnswer(absl::CancelledError("cancelled")));
}

void AttachStream::OnDone() {
  Detach();
  context_.Count("Attach", code_.load());
  registry_.Remove(id_);  // may be the last reference: must come last
}

std::optional<Tick::Contact> AttachStream::TakeContacts() {
  int64_t time = last_message_unix_ns_.exchange(0);
  if (time == 0) return std::nullopt;
  Tick::Contact contact{.session = id_, .time = absl::FromUnixNanos(time)};
  absl::MutexLock lock(&mu_);
  contact.clock_offset = std::exchange(clock_offset_, std::nullopt);
  contact.disk_free_bytes = std::exchange(disk_free_bytes_, std::nullopt);
  return contact;
}

}  // namespace trainyard
