#include "worker/collectives/metered_communicator.h"

namespace trainyard {

const char* CollectiveKindName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all-reduce";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kAllGather:
      return "all-gather";
    case CollectiveKind::kReduceScatter:
      return "reduce-scatter";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  return "";
}

MeteredCommunicator::MeteredCommunicator(std::string name, std::unique_ptr<Communicator> inner)
    : name_(std::move(name)), inner_(std::move(inner)) {}

MeteredCommunicator::~MeteredCommunicator() = default;

CollectiveCounts MeteredCommunicator::counts() const {
  absl::MutexLock lock(&mu_);
  return counts_;
}

std::unique_ptr<Collective> MeteredCommunicator::AllReduceSum(const at::Tensor& tensor) {
  Count(CollectiveKind::kAllReduce, tensor);
  return inner_->AllReduceSum(tensor);
}
std::unique_ptr<Collective> MeteredCommunicator::Broadcast(const at::Tensor& tensor, int root) {
  Count(CollectiveKind::kBroadcast, tensor);
  return inner_->Broadcast(tensor, root);
}
std::unique_ptr<Collective> MeteredCommunicator::AllGather(const at::Tensor& out, const at::Tensor& in) {
  Count(CollectiveKind::kAllGather, out);
  return inner_->AllGather(out, in);
}
std::unique_ptr<Collective> MeteredCommunicator::ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) {
  Count(CollectiveKind::kReduceScatter, in);
  return inner_->ReduceScatterSum(out, in);
}
std::unique_ptr<Collective> MeteredCommunicator::Barrier() {
  Count(CollectiveKind::kBarrier, at::Tensor());
  return inner_->Barrier();
}

void MeteredCommunicator::Count(CollectiveKind kind, const at::Tensor& whole) {
  const at::ScalarType type = whole.defined() ? whole.scalar_type() : at::kByte;
  const uint64_t elements = whole.defined() ? static_cast<uint64_t>(whole.numel()) : 0;
  absl::MutexLock lock(&mu_);
  CollectiveCount& count = counts_[{kind, type}];
  ++count.operations;
  count.elements += elements;
  count.bytes += elements * c10::elementSize(type);
}

}  // namespace trainyard
