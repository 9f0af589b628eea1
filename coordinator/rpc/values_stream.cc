#include "coordinator/rpc/values_stream.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <cstdint>
#include <string>
#include <utility>

#include "common/limits.h"
#include "coordinator/rpc/status.h"

namespace trainyard {
namespace {

// A message is well below what gRPC takes; a piece of it holds this, or one value.
constexpr size_t kMessageBytes = 4 << 20;
constexpr size_t kPieceBytes = 1 << 20;
static_assert(kMessageBytes + limits::kStoreValueBytes + kPieceBytes < limits::kGrpcMessageBytes);

}  // namespace

std::vector<grpc::Slice> EncodeValues(const std::vector<ValuePtr>& values) {
  namespace pb = google::protobuf;
  constexpr uint32_t kTag = pb::internal::WireFormatLite::MakeTag(
      v1::StoreValues::kValuesFieldNumber, pb::internal::WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  std::vector<grpc::Slice> pieces;
  std::string piece;
  for (size_t i = 0; i < values.size(); ++i) {
    {
      pb::io::StringOutputStream out(&piece);  // appends
      pb::io::CodedOutputStream coded(&out);
      coded.WriteVarint32(kTag);
      coded.WriteVarint32(static_cast<uint32_t>(values[i]->ByteSizeLong()));
      values[i]->SerializeWithCachedSizes(&coded);
    }
    if (piece.size() < kPieceBytes && i + 1 < values.size()) continue;
    pieces.emplace_back(piece);
    piece.clear();
  }
  return pieces;
}

void ValuesStream::Start(std::shared_ptr<ValuesStream> self, const grpc::ByteBuffer& request) {
  registry_.Add(id_, std::move(self));
  grpc::ByteBuffer bytes = request;  // reading it takes it apart
  v1::WatchValuesRequest parsed;
  if (!grpc::SerializationTraits<v1::WatchValuesRequest>::Deserialize(&bytes, &parsed).ok()) {
    return End(absl::InvalidArgumentError("the request of WatchValues cannot be read"));
  }
  job_ = JobId(parsed.job_id());
  if (!context_.queue->TryPost(trainyard::WatchValues{id_, std::move(parsed)})) End(OverloadedStatus());
}

void ValuesStream::Push(const std::vector<grpc::Slice>& encoded) {
  absl::MutexLock lock(&mu_);
  if (ending_) return;
  waiting_.insert(waiting_.end(), encoded.begin(), encoded.end());
  if (!writing_) WriteNext();
}

void ValuesStream::End(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (!ending_) status_ = status;
  ending_ = true;
  if (!status.ok()) waiting_.clear();
  if (!writing_ && waiting_.empty()) FinishOnce();
}

void ValuesStream::WriteNext() {
  std::vector<grpc::Slice> pieces;
  size_t bytes = 0;
  while (!waiting_.empty() && bytes < kMessageBytes) {
    bytes += waiting_.front().size();
    pieces.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  if (pieces.empty()) return;
  outgoing_ = grpc::ByteBuffer(pieces.data(), pieces.size());
  writing_ = true;
  StartWrite(&outgoing_);
}

void ValuesStream::FinishOnce() {
  if (!std::exchange(finished_, true)) Finish(ToGrpcStatus(status_));
}

void ValuesStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
  if (!ok) {
    waiting_.clear();
    if (!ending_) status_ = absl::CancelledError("the reader has gone");
    ending_ = true;
  }
  WriteNext();
  if (!writing_ && ending_) FinishOnce();
}

void ValuesStream::OnCancel() { End(absl::CancelledError("cancelled")); }

void ValuesStream::OnDone() {
  absl::StatusCode code;
  {
    absl::MutexLock lock(&mu_);
    code = status_.code();
  }
  if (!job_.value().empty()) context_.queue->Post(WatchValuesClosed{id_, job_});
  context_.Count("WatchValues", code);
  registry_.Remove(id_);  // may be the last reference: nothing follows
}

}  // namespace trainyard
