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

// Like every operation, it must not be waited for after its communicator is destroyed.
class MeteredCommunicator::Operation final : public Collective {
 public:
  Operation(MeteredCommunicator& owner, const CollectiveEvent& event, std::unique_ptr<Collective> inner)
      : owner_(owner), event_(event), inner_(std::move(inner)) {}

  absl::Status Wait() override {
    if (was_waited_for_) return inner_->Wait();
    was_waited_for_ = true;
    event_.wait_began = CollectiveEvent::Clock::now();
    absl::Status status = inner_->Wait();
    event_.wait_ended = CollectiveEvent::Clock::now();
    event_.ok = status.ok();
    {
      absl::MutexLock lock(&owner_.mu_);
      owner_.waited_ += event_.wait_ended - event_.wait_began;
    }
    if (owner_.observer_ != nullptr) owner_.observer_(event_);
    return status;
  }

 private:
  MeteredCommunicator& owner_;
  CollectiveEvent event_;
  std::unique_ptr<Collective> inner_;
  bool was_waited_for_ = false;
};

MeteredCommunicator::MeteredCommunicator(std::string name, std::unique_ptr<Communicator> inner,
                                         std::function<void(const CollectiveEvent&)> observer)
    : name_(std::move(name)), inner_(std::move(inner)), observer_(std::move(observer)) {}

MeteredCommunicator::~MeteredCommunicator() = default;

CollectiveCounts MeteredCommunicator::counts() const {
  absl::MutexLock lock(&mu_);
  return counts_;
}

double MeteredCommunicator::waited_s() const {
  absl::MutexLock lock(&mu_);
  return std::chrono::duration<double>(waited_).count();
}

std::unique_ptr<Collective> MeteredCommunicator::AllReduceSum(const at::Tensor& tensor) {
  return Count(CollectiveKind::kAllReduce, tensor, inner_->AllReduceSum(tensor));
}
std::unique_ptr<Collective> MeteredCommunicator::Broadcast(const at::Tensor& tensor, int root) {
  return Count(CollectiveKind::kBroadcast, tensor, inner_->Broadcast(tensor, root));
}
std::unique_ptr<Collective> MeteredCommunicator::AllGather(const at::Tensor& out, const at::Tensor& in) {
  return Count(CollectiveKind::kAllGather, out, inner_->AllGather(out, in));
}
std::unique_ptr<Collective> MeteredCommunicator::ReduceScatterSum(const at::Tensor& out, const at::Tensor& in) {
  return Count(CollectiveKind::kReduceScatter, in, inner_->ReduceScatterSum(out, in));
}
std::unique_ptr<Collective> MeteredCommunicator::Barrier() {
  return Count(CollectiveKind::kBarrier, at::Tensor(), inner_->Barrier());
}

std::unique_ptr<Collective> MeteredCommunicator::Count(CollectiveKind kind, const at::Tensor& whole,
                                                       std::unique_ptr<Collective> started) {
  CollectiveEvent event{.group = name_.c_str(), .kind = kind, .started = CollectiveEvent::Clock::now()};
  if (whole.defined()) {
    event.type = whole.scalar_type();
    event.elements = whole.numel();
  }
  {
    absl::MutexLock lock(&mu_);
    CollectiveCount& count = counts_[{kind, event.type}];
    ++count.operations;
    count.elements += static_cast<uint64_t>(event.elements);
    count.bytes += static_cast<uint64_t>(event.elements) * c10::elementSize(event.type);
  }
  return std::make_unique<Operation>(*this, event, std::move(started));
}

}  // namespace trainyard
