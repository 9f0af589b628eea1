#include "worker/parallel/updater.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/diagnostics/event_log.h"
#include "worker/numerics/gradient_norm.h"
#include "worker/parallel/timed_wait.h"

namespace trainyard {

Updater::Updater(const FlatGroups& groups, const MeshCommunicators& communicators, const DataParallelOptions& options,
                 const UpdateOptions& update, bool scatters)
    : groups_(groups),
      communicators_(communicators),
      clip_norm_(update.clip_norm),
      overlap_(options.overlap),
      all_gather_(options.all_gather),
      gather_elements_(options.gather_bucket_elements),
      scatters_(scatters),
      agrees_(scatters || communicators.job->world_size() > communicators.data->world_size()),
      events_(options.events),
      clock_(*options.clock),
      stream_waits_(options.stream_waits) {
  std::vector<AdamW::Range> ranges;
  for (const auto& group : groups) {
    for (AdamW::Range& range : group->OptimizerRanges()) ranges.push_back(std::move(range));
  }
  int64_t all_elements = 0;
  for (const AdamW::Range& range : ranges) all_elements += range.parameters.numel();
  const FlatGroup& group = *groups[0];  // a trained one, unless all are frozen
  const bool on_host = group.weights_on_host();
  const HostTensors host{.parameters = group.keeps_masters() ? options.offload.optimizer : on_host,
                         .moments = options.offload.optimizer,
                         .weights = group.keeps_masters() && on_host};
  const bool tiled = host.parameters || host.moments || host.weights;
  const int64_t tile = update.tile_elements;
  optimizer_ =
      std::make_unique<AdamW>(update.optimizer, CutIntoTiles(ranges, tiled ? OffloadedTile(tile, all_elements) : tile));
  if (tiled) tiled_ = std::make_unique<TiledUpdate>(*optimizer_, host, options.ledger);
}

absl::StatusOr<StepOutput> Updater::Step(const StepInput& input, double seed, bool rejected) {
  ++num_steps_;
  StepOutput output;
  AgreedNorm agreed{.sum_of_squares = LocalSumOfSquares(), .rejected = rejected};
  if (agrees_) {
    ASSIGN_OR_RETURN(agreed, AgreeOnNorm(agreed));
  }
  // A step without loss has no gradient to learn from, so it must not decay the weights either. All ranks have the same
  // divisor and return here together.
  if (input.num_tokens == 0 && !agreed.rejected) return output;
  if (agreed.rejected) agreed.sum_of_squares = std::numeric_limits<double>::quiet_NaN();
  const GradientScale scale = ComputeGradientScale(agreed.sum_of_squares, input.num_tokens, clip_norm_, seed);
  output.gradient_norm = scale.norm;
  output.skipped = !std::isfinite(scale.norm);
  if (output.skipped) return output;
  tiled_ == nullptr ? optimizer_->Step(input.lr, scale.scale) : tiled_->Step(input.lr, scale.scale);
  RETURN_IF_ERROR(StartGathers()) << "while gathering the updated parameters";
  return output;
}

std::vector<at::Tensor> Updater::CountedGradients() const {
  std::vector<at::Tensor> gradients;
  for (const auto& group : groups_) {
    if (!group->trained()) continue;
    const bool whole = !scatters_ && group->whole_gradients().defined();
    for (at::Tensor& counted : group->CountedGradients(whole)) gradients.push_back(std::move(counted));
  }
  return gradients;
}

void Updater::StartNorm() {
  const std::vector<at::Tensor> gradients = CountedGradients();
  if (!gradients.empty() && !gradients[0].is_cpu()) queued_norm_ = QueueNorm(gradients);
}

double Updater::LocalSumOfSquares() {
  if (!queued_norm_.defined()) return SumOfSquares(CountedGradients());
  const double norm = std::exchange(queued_norm_, at::Tensor()).item<double>();
  return norm * norm;
}

absl::StatusOr<Updater::AgreedNorm> Updater::AgreeOnNorm(AgreedNorm own) {
  const bool is_rejected = own.rejected || !std::isfinite(own.sum_of_squares);
  at::Tensor terms = at::zeros({3}, at::kDouble);
  double* values = terms.mutable_data_ptr<double>();
  // Counts every shard once, because the ranks of other replicas hold the same values.
  const Communicator& holders = scatters_ ? *communicators_.replicate : *communicators_.data;
  values[0] = is_rejected || holders.rank() != 0 ? 0 : own.sum_of_squares;
  values[1] = is_rejected ? 1 : 0;
  values[2] = static_cast<double>(num_steps_);
  RETURN_IF_ERROR(TimedWait(*communicators_.job->AllReduceSum(terms), clock_, waited_s_)) << "while adding up the norm";
  if (values[2] != static_cast<double>(num_steps_) * communicators_.job->world_size()) {
    return absl::InternalError(absl::StrCat("the ranks are not in the same step: this rank is in its step ", num_steps_,
                                            ", but the steps of all ranks add up to ", values[2]));
  }
  return AgreedNorm{.sum_of_squares = values[0], .rejected = values[1] > 0};
}

absl::Status Updater::StartGathers() {
  for (const auto& group : groups_) {
    const StateSharding& sharding = group->sharding();
    if (sharding.parameters == Sharding::kSharded || sharding.optimizer_state == Sharding::kReplicated) continue;
    const ShardLayout& layout = group->layout();
    if (layout.num_shards == 1) continue;
    while (!gathers_.empty() && num_gathering_ + layout.total > gather_elements_) RETURN_IF_ERROR(AwaitOldest());
    Gather gather{
        .operations = {}, .elements = layout.total, .event = BeginEvent(events_, EventKind::kGather, group->name())};
    const at::Tensor& whole = group->whole_parameters();
    if (all_gather_) {
      gather.operations.push_back(communicators_.shard->AllGather(whole, group->weights()));
    } else {
      for (int owner = 0; owner < layout.num_shards; ++owner) {
        gather.operations.push_back(
            communicators_.shard->Broadcast(whole.narrow(0, owner * layout.shard, layout.shard), owner));
      }
    }
    num_gathering_ += gather.elements;
    gathers_.push_back(std::move(gather));
  }
  return overlap_ ? absl::OkStatus() : AwaitParameters();
}

absl::Status Updater::AwaitOldest() {
  for (const auto& operation : gathers_.front().operations)
    RETURN_IF_ERROR(TimedWait(*operation, clock_, waited_s_, stream_waits_));
  EndEvent(events_, gathers_.front().event);
  num_gathering_ -= gathers_.front().elements;
  gathers_.pop_front();
  return absl::OkStatus();
}

absl::Status Updater::AwaitParameters() {
  while (!gathers_.empty()) RETURN_IF_ERROR(AwaitOldest()) << "while gathering the updated parameters";
  return absl::OkStatus();
}

}  // namespace trainyard
