#include "worker/parallel/updater.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/numerics/gradient_norm.h"
#include "worker/parallel/timed_wait.h"

namespace trainyard {

Updater::Updater(const std::vector<std::unique_ptr<FlatGroup>>& groups, const MeshCommunicators& communicators,
                 const DataParallelOptions& options, bool scatters)
    : groups_(groups),
      communicators_(communicators),
      clip_norm_(options.clip_norm),
      scatters_(scatters),
      events_(options.events) {
  std::vector<AdamW::Range> ranges;
  for (const auto& group : groups) {
    for (AdamW::Range& range : group->OptimizerRanges()) ranges.push_back(std::move(range));
  }
  int64_t all_elements = 0;
  for (const AdamW::Range& range : ranges) all_elements += range.parameters.numel();
  const FlatGroup& group = *groups[0];
  const bool on_host = group.weights_on_host();
  const HostTensors host{.parameters = group.keeps_masters() ? options.offload.optimizer : on_host,
                         .moments = options.offload.optimizer,
                         .weights = group.keeps_masters() && on_host};
  const bool tiled = host.parameters || host.moments || host.weights;
  const int64_t tile = options.optimizer_tile_elements;
  optimizer_ = std::make_unique<AdamW>(options.optimizer,
                                       CutIntoTiles(ranges, tiled ? OffloadedTile(tile, all_elements) : tile));
  if (tiled) tiled_ = std::make_unique<TiledUpdate>(*optimizer_, host, options.ledger);
}

absl::StatusOr<StepOutput> Updater::Step(const StepInput& input, double seed, bool rejected) {
  ++num_steps_;
  StepOutput output;
  Agreed agreed{.sum_of_squares = LocalSumOfSquares(), .rejected = rejected};
  if (scatters_) {
    ASSIGN_OR_RETURN(agreed, Agree(agreed, output.exposed_comm_s));
  }
  if (agreed.rejected) agreed.sum_of_squares = std::numeric_limits<double>::quiet_NaN();
  const GradientScale scale = ScaleOf(agreed.sum_of_squares, input.num_tokens, clip_norm_, seed);
  output.gradient_norm = scale.norm;
  output.skipped = !std::isfinite(scale.norm);
  if (output.skipped) return output;
  tiled_ == nullptr ? optimizer_->Step(input.lr, scale.scale) : tiled_->Step(input.lr, scale.scale);
  RETURN_IF_ERROR(GatherParameters(output.exposed_comm_s)) << "while gathering the updated parameters";
  return output;
}

double Updater::LocalSumOfSquares() const {
  double sum = 0;
  for (const auto& group : groups_) {
    // Up to what is used: the padding behind it depends on the world.
    const bool whole = !scatters_ && group->whole_gradients().defined();
    sum += SumOfSquares(whole ? group->whole_gradients().narrow(0, 0, group->layout().used) : group->gradient_shard());
  }
  return sum;
}

absl::StatusOr<Updater::Agreed> Updater::Agree(Agreed own, double& waited_s) {
  const bool bad = own.rejected || !std::isfinite(own.sum_of_squares);
  at::Tensor terms = at::zeros({3}, at::kDouble);
  double* values = terms.mutable_data_ptr<double>();
  // Every shard once: the ranks of other replicas hold the same.
  values[0] = bad || communicators_.replicate->rank() != 0 ? 0 : own.sum_of_squares;
  values[1] = bad ? 1 : 0;
  values[2] = static_cast<double>(num_steps_);
  RETURN_IF_ERROR(TimedWait(*communicators_.world->AllReduceSum(terms), waited_s)) << "while adding up the norm";
  if (values[2] != static_cast<double>(num_steps_) * communicators_.world->world_size()) {
    return absl::InternalError(absl::StrCat("the ranks are not in the same step: this one is in its step ", num_steps_,
                                            ", the sum over all is ", values[2]));
  }
  return Agreed{.sum_of_squares = values[0], .rejected = values[1] > 0};
}

absl::Status Updater::GatherParameters(double& waited_s) {
  struct Gather {
    std::unique_ptr<Collective> operation;
    int64_t event = -1;
  };
  std::vector<Gather> gathers;
  for (const auto& group : groups_) {
    const Placements& placements = group->placements();
    if (placements.parameters == Placement::kShard || placements.optimizer_state == Placement::kReplicate) continue;
    if (group->layout().world == 1) continue;
    const int64_t event = BeginEvent(events_, EventKind::kGather, group->name());
    gathers.push_back({communicators_.shard->AllGather(group->whole_parameters(), group->weights()), event});
  }
  for (const Gather& gather : gathers) {
    RETURN_IF_ERROR(TimedWait(*gather.operation, waited_s));
    EndEvent(events_, gather.event);
  }
  return absl::OkStatus();
}

}  // namespace trainyard
