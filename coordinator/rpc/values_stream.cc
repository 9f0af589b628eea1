#include "coordinator/rpc/values_stream.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <utility>

#include "common/limits.h"
#include "common/rpc_status.h"
#include "coordinator/rpc/value_fan_out.h"

namespace trainyard {
namespace {

// A message is well below what gRPC takes, also with its last piece.
constexpr size_t kMessageBytes = 4 << 20;
static_assert(kMessageBytes + ValueFanOut::kPieceBytes + limits::kStoreValueBytes < limits::kGrpcMessageBytes);

}  // namespace

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

void ValuesStream::Advance(const std::vector<grpc::Slice>& pieces) {
  absl::MutexLock lock(&mu_);
  if (ending_) return;
  waiting_.insert(waiting_.end(), pieces.begin() + static_cast<ptrdiff_t>(had_pieces_), pieces.end());
  had_pieces_ = pieces.size();
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
