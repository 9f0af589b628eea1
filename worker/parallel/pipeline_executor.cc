#include "worker/parallel/pipeline_executor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/collectives/packet_slots.h"

namespace trainyard {

// CheckSchedule (plan/schedule_check.h) proves that schedules finish with this number of slots.
static_assert(static_cast<int>(kPacketSlots) == kSlotsPerLink);

PipelineExecutor::PipelineExecutor(const PipelineOptions& options, Model& model, DataParallel& strategy,
                                   const PipelineChannels& channels)
    : options_(options), model_(model), strategy_(strategy), channels_(channels) {}

absl::StatusOr<const std::vector<PipelineAction>*> PipelineExecutor::ActionsFor(int micro_batches) {
  const auto known = actions_.find(micro_batches);
  if (known != actions_.end()) return &known->second;
  std::vector<PipelineAction> actions;
  if (micro_batches > 0) {
    ASSIGN_OR_RETURN(PipelineSchedule schedule,
                     MakeSchedule(options_.schedule, {.stages = options_.stages,
                                                      .chunks_per_rank = options_.chunks_per_rank,
                                                      .micro_batches = micro_batches}),
                     << "parallel.pipeline");
    actions = std::move(schedule.ranks[static_cast<size_t>(options_.stage)]);
  }
  return &actions_.emplace(micro_batches, std::move(actions)).first->second;
}

absl::Status PipelineExecutor::RunStep(const PipelineWork& work, BatchOf batch_of, OnLoss on_loss) {
  passes_.clear();
  local_.clear();
  deferred_.clear();
  RETURN_IF_ERROR(strategy_.AwaitParameters());  // this rank may have no pass
  const int own = static_cast<int>(work.micro_batches.size());
  ASSIGN_OR_RETURN(const std::vector<PipelineAction>* actions, ActionsFor(own));
  // With several chunks, each chunk has a last backward pass of its own, so reductions are started after all passes.
  const bool reduces_in_backward = options_.chunks_per_rank == 1;
  const int64_t empty_rounds = NumEmptyRounds(work);
  for (size_t i = 0; i < actions->size(); ++i) {
    const PipelineAction& action = (*actions)[i];
    const int64_t micro_batch = work.micro_batches[static_cast<size_t>(action.micro_batch)];
    switch (action.kind) {
      case PipelineAction::kForward:
        RETURN_IF_ERROR(RunForward(action, micro_batch, batch_of, on_loss));
        break;
      case PipelineAction::kBackward: {
        const bool last = reduces_in_backward && empty_rounds == 0 && i + 1 == actions->size();
        RETURN_IF_ERROR(RunBackward(action, micro_batch, last, on_loss));
        break;
      }
      case PipelineAction::kBackwardInput:
        strategy_.BeginDeferring();
        RETURN_IF_ERROR(RunBackward(action, micro_batch, /*last=*/false, on_loss));
        break;
      case PipelineAction::kBackwardWeight: {
        const auto node = deferred_.extract({action.chunk, action.micro_batch});
        if (node.empty())
          return absl::InternalError(absl::StrCat(ActionText(action, options_.chunks_per_rank), " runs before I"));
        RETURN_IF_ERROR(strategy_.RunDeferred(node.mapped()));
        break;
      }
    }
  }
  for (int64_t i = 0; i < empty_rounds; ++i) {
    RETURN_IF_ERROR(strategy_.RunEmptyRound(/*with_backward=*/true, /*last=*/i + 1 == empty_rounds));
  }
  return absl::OkStatus();
}

int64_t PipelineExecutor::NumEmptyRounds(const PipelineWork& work) const {
  return options_.stages == 1 ? work.num_rounds - static_cast<int64_t>(work.micro_batches.size()) : 0;
}

absl::Status PipelineExecutor::Evaluate(const PipelineWork& work, BatchOf batch_of, OnLoss on_loss) {
  RETURN_IF_ERROR(strategy_.AwaitParameters());
  const int own = static_cast<int>(work.micro_batches.size());
  for (int i = 0; i < own; ++i) {
    for (int chunk = 0; chunk < options_.chunks_per_rank; ++chunk) {
      const PipelineAction action{.kind = PipelineAction::kForward, .chunk = chunk, .micro_batch = i};
      const int64_t micro_batch = work.micro_batches[static_cast<size_t>(i)];
      Pass pass;
      ASSIGN_OR_RETURN(const at::Tensor y, Forward(action, micro_batch, batch_of, pass));
      if (IsLast(chunk)) on_loss(micro_batch, y);
    }
  }
  for (int64_t i = NumEmptyRounds(work); i > 0; --i) {
    RETURN_IF_ERROR(strategy_.RunEmptyRound(/*with_backward=*/false, /*last=*/false));
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> PipelineExecutor::Forward(const PipelineAction& action, int64_t micro_batch,
                                                     BatchOf batch_of, Pass& pass) {
  const MicroBatch batch = batch_of(micro_batch);
  if (!IsFirst(action.chunk) || !IsLast(action.chunk)) pass.shape = model_.BoundaryShape(batch);
  if (!IsFirst(action.chunk)) {
    ASSIGN_OR_RETURN(pass.input,
                     Receive(channels_.from_previous, ModelChunk(action.chunk), action.micro_batch, pass.shape));
    if (at::GradMode::is_enabled()) pass.input.requires_grad_(true);
  }
  ASSIGN_OR_RETURN(at::Tensor y,
                   strategy_.Forward([&] { return model_.RunChunk(action.chunk, pass.input, batch, strategy_); }));
  if (!IsLast(action.chunk)) {
    RETURN_IF_ERROR(Send(channels_.to_next, ModelChunk(action.chunk) + 1, action.micro_batch, y));
  }
  return y;
}

absl::Status PipelineExecutor::RunForward(const PipelineAction& action, int64_t micro_batch, BatchOf batch_of,
                                          OnLoss on_loss) {
  Pass pass;
  ASSIGN_OR_RETURN(at::Tensor y, Forward(action, micro_batch, batch_of, pass));
  if (IsLast(action.chunk)) {
    if (y.is_cpu()) on_loss(micro_batch, y);
    pass.loss = std::move(y);
  } else if (y.requires_grad()) {
    pass.output = torch::autograd::impl::gradient_edge(y);
  }
  passes_[{action.chunk, action.micro_batch}] = std::move(pass);
  return absl::OkStatus();
}

absl::Status PipelineExecutor::RunBackward(const PipelineAction& action, int64_t micro_batch, bool last,
                                           OnLoss on_loss) {
  auto node = passes_.extract({action.chunk, action.micro_batch});
  if (node.empty()) {
    return absl::InternalError(
        absl::StrCat("backward of ", ActionText(action, options_.chunks_per_rank), " runs before its forward"));
  }
  Pass& pass = node.mapped();
  if (IsLast(action.chunk)) {
    RETURN_IF_ERROR(strategy_.Backward(pass.loss, last));
    if (!pass.loss.is_cpu()) on_loss(micro_batch, pass.loss);
  } else {
    ASSIGN_OR_RETURN(const at::Tensor gradient,
                     Receive(channels_.from_next, ModelChunk(action.chunk) + 1, action.micro_batch, pass.shape));
    RETURN_IF_ERROR(strategy_.BackwardFrom(pass.output, gradient, last));
  }
  if (action.kind == PipelineAction::kBackwardInput) {
    deferred_[{action.chunk, action.micro_batch}] = strategy_.TakeDeferred();
  }
  if (IsFirst(action.chunk)) return absl::OkStatus();
  at::Tensor gradient = pass.input.grad();
  if (!gradient.defined()) gradient = at::zeros_like(pass.input);
  return Send(channels_.to_previous, ModelChunk(action.chunk), action.micro_batch, gradient);
}

// `model_chunk` is the later one of the two chunks that exchange the values.
absl::StatusOr<at::Tensor> PipelineExecutor::Receive(Channel* channel, int model_chunk, int micro_batch,
                                                     const std::vector<int64_t>& shape) {
  if (options_.stages == 1) {
    auto node = local_.extract({model_chunk, micro_batch});
    if (node.empty()) {
      return absl::InternalError(absl::StrCat("chunk ", model_chunk, " has no values of micro-batch ", micro_batch));
    }
    return std::move(node.mapped());
  }
  const char* const what = channel == channels_.from_previous ? "activations" : "gradients";
  const int64_t event = BeginEvent(options_.events, EventKind::kReceive, what);
  ASSIGN_OR_RETURN(std::vector<at::Tensor> tensors,
                   channel->Receive({.chunk = model_chunk, .micro_batch = micro_batch}));
  EndEvent(options_.events, event);
  if (tensors.size() != 1) {
    return absl::UnavailableError(
        absl::StrCat(channel->name(), ": expected one tensor for chunk ", model_chunk, ", found ", tensors.size()));
  }
  if (tensors[0].sizes() != at::IntArrayRef(shape)) {
    return absl::UnavailableError(absl::StrCat(
        channel->name(), ": expected values of shape [", absl::StrJoin(shape, ", "), "] for chunk ", model_chunk,
        ", found [", absl::StrJoin(tensors[0].sizes(), ", "),
        "]; all stages must have the same micro-batches, and all or none divide the sequence (parallel.sequence)"));
  }
  return std::move(tensors[0]);
}

absl::Status PipelineExecutor::Send(Channel* channel, int model_chunk, int micro_batch, const at::Tensor& values) {
  if (options_.stages == 1) {
    local_[{model_chunk, micro_batch}] = values.detach();
    return absl::OkStatus();
  }
  return channel->Send({.chunk = model_chunk, .micro_batch = micro_batch}, {values});
}

double PipelineExecutor::waited_s() const {
  double sum = 0;
  for (const Channel* channel :
       {channels_.from_previous, channels_.to_previous, channels_.from_next, channels_.to_next}) {
    if (channel != nullptr) sum += channel->waited_s();
  }
  return sum;
}

}  // namespace trainyard
