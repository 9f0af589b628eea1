#include "worker/parallel/data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/diagnostics/event_log.h"
#include "worker/parallel/autograd_hooks.h"
#include "worker/parallel/first_error.h"
#include "worker/parallel/flat_state.h"
#include "worker/parallel/group_plan.h"
#include "worker/parallel/parallel_parts.h"
#include "worker/parallel/pass_plan.h"
#include "worker/parallel/timed_wait.h"

namespace trainyard {
namespace {

class FlatDataParallel final : public DataParallel, private BackwardEvents, private GradientSink {
 public:
  FlatDataParallel(Model& model, const MeshCommunicators& communicators, const DataParallelOptions& options,
                   const UpdateOptions& update, std::unique_ptr<UnitRunner> runner)
      : model_(model),
        communicators_(communicators),
        options_(options),
        loss_scaling_(update.loss_scale),
        precision_(PrecisionFor(model, options)),
        first_backward_(FirstBackwardUnit(model)),
        gathers_once_(ShardingOf(options.strategy).parameters == Sharding::kSharded &&
                      !(model.part().embeds && model.part().heads)),
        unit_runner_(std::move(runner)),
        parts_(std::make_unique<ParallelParts>(model, communicators_, options_, update, precision_,
                                               TrainedInReadyOrder(model))),
        state_(model, parts_->groups, plans_passes(), communicators_, parts_->updater, errors_) {
    if (precision_.output != precision_.param) model.set_output_type(precision_.output);
    if (precision_.scaled) state_.set_loss_scale(InitialLossScale(loss_scaling_));
  }

  ~FlatDataParallel() override {
    // The model may outlive this object, but must not keep hooks that refer to it.
    for (const NamedTensor& parameter : model_.parameters()) {
      if (parameter.tensor.requires_grad()) WatchGradient(parameter.tensor, nullptr, 0);
    }
  }

  absl::Status Begin() {
    for (const auto& group : parts_->groups) {
      if (options_.copies_initial_values) {
        RETURN_IF_ERROR(group->CopyFromRankZero(*communicators_.data));
        // Drawn values may differ between kinds of CPUs.
        if (communicators_.tensor != nullptr && group->is_replicated()) {
          RETURN_IF_ERROR(group->CopyFromPeer(*communicators_.tensor));
        }
        if (communicators_.tied != nullptr && group->is_tied()) {
          RETURN_IF_ERROR(group->CopyFromPeer(*communicators_.tied));
        }
      }
      group->MoveParametersHere();
    }
    for (size_t i = 0; i < model_.parameters().size(); ++i) {
      const at::Tensor& parameter = model_.parameters()[i].tensor;
      if (parameter.requires_grad()) WatchGradient(parameter, this, static_cast<int>(i));
    }
    return absl::OkStatus();
  }

  // --- What the model calls. ---

  void BeforeRoot() override {
    if (plans_passes()) ThrowUnlessOk(Advance({UnitAct::kForward, 0}));
    root_event_ = BeginUnit(EventKind::kForward, 0);
  }

  at::Tensor RunUnit(int unit, const at::Tensor& x, const UnitBody& body) override {
    if (!plans_passes()) return Compute(unit, x, body);
    ThrowUnlessOk(Advance({UnitAct::kForward, unit}));
    const bool with_backward = !parts_->runner.evaluates() && unit >= first_backward_;
    at::Tensor in = x;
    if (with_backward) {
      // Autograd calls the gate only if its input requires a gradient. If `x` requires none, all parameters before this
      // unit are frozen, and cutting the graph here loses nothing.
      if (!in.requires_grad()) in = in.detach().requires_grad_(true);
      in = Gate(in, *this, unit);
    }
    at::Tensor y = Compute(unit, in, body);
    ThrowUnlessOk(RunUpToComputation());
    if (with_backward) WatchOutput(y, *this, unit);
    return y;
  }

  at::Tensor AfterRoot(const at::Tensor& y) override {
    EndEvent(options_.events, root_event_);
    if (plans_passes() && parts_->runner.evaluates()) ThrowUnlessOk(parts_->runner.RunToEnd());
    return y;
  }

  GradientSink* sink() override { return this; }

  // --- What the loop calls. ---

  absl::Status AwaitParameters() override {
    RETURN_IF_ERROR(errors_.status());
    RETURN_IF_ERROR(RecordError(parts_->updater.AwaitParameters()));
    if (!gathers_once_ || are_gathered_) return absl::OkStatus();
    are_gathered_ = true;
    return RecordError(GatherAll());
  }

  void BeginStep(uint64_t num_tokens) override {
    waited_before_s_ = waited_s();  // an evaluation since the previous step has waited, too
    if (precision_.scaled) loss_seed_ = LossSeed(state_.loss_scale().scale, num_tokens);
  }

  absl::StatusOr<at::Tensor> Forward(absl::FunctionRef<at::Tensor()> loss_sum) override {
    RETURN_IF_ERROR(BeginPass(c10::GradMode::is_enabled()));
    return CatchUnitErrors(loss_sum);
  }

  absl::Status Backward(const at::Tensor& loss, bool last) override {
    return RunBackward(last, [&] {
      at::Tensor seed = loss_seed_ == 1 ? at::Tensor() : at::full({}, loss_seed_, loss.options().requires_grad(false));
      // A loss on a GPU has not been checked yet. If it is not finite, the product with 0 is NaN, which makes the seed
      // and all gradients NaN.
      if (!loss.is_cpu()) seed = loss.detach().mul(0).add(loss_seed_);
      loss.backward(seed);
    });
  }

  absl::Status BackwardFrom(const torch::autograd::Edge& output, const at::Tensor& gradient, bool last) override {
    return RunBackward(last, [&] {
      if (!output.is_valid()) return;
      torch::autograd::Engine::get_default_engine().execute({output}, {gradient}, /*keep_graph=*/false,
                                                            /*create_graph=*/false, /*accumulate_grad=*/true);
    });
  }

  void BeginDeferring() override { defers_ = true; }
  DeferredProducts TakeDeferred() override {
    defers_ = false;
    return std::exchange(deferred_, {});
  }
  absl::Status RunDeferred(const DeferredProducts& products) override {
    RETURN_IF_ERROR(errors_.status());
    c10::NoGradGuard no_grad;
    return CatchUnitErrors([&] {
             for (const auto& product : products) product();
             return at::Tensor();
           })
        .status();
  }

  absl::Status RunEmptyRound(bool with_backward, bool last) override {
    RETURN_IF_ERROR(BeginPass(with_backward));
    if (with_backward) BeginRound(last);
    return with_backward ? EndRound(last) : RecordError(parts_->runner.RunToEnd());
  }

  void RejectStep() override {
    rejected_ = true;
    parts_->reducer.Reject();
  }

  absl::Status FinishBackward() override {
    RETURN_IF_ERROR(errors_.status());
    if (!plans_passes()) {
      // Starts the reductions that no round has started, because this rank was dealt nothing, does not overlap, gathers
      // once per step, or has several chunks (PipelineExecutor::RunStep).
      if (!in_last_round_) BeginRound(/*last=*/true);
      RETURN_IF_ERROR(RecordError(gathers_once_ ? ReduceAll() : parts_->reducer.StartAll()));
    }
    RETURN_IF_ERROR(RecordError(parts_->reducer.Finish()));
    RETURN_IF_ERROR(RecordError(AgreeOnCopies()));
    parts_->updater.StartNorm();
    return absl::OkStatus();
  }

  absl::StatusOr<StepOutput> Step(const StepInput& input) override {
    RETURN_IF_ERROR(errors_.status());
    if (are_gathered_) {
      RETURN_IF_ERROR(RecordError(parts_->gatherer.FreeAll()));
    }
    are_gathered_ = false;
    const int64_t event = BeginEvent(options_.events, EventKind::kStep, "model");
    absl::StatusOr<StepOutput> output = parts_->updater.Step(input, loss_seed_, rejected_ && RejectsByFlag());
    RETURN_IF_ERROR(RecordError(output.status()));
    EndEvent(options_.events, event);
    output->num_reductions = parts_->reducer.num_reductions();
    parts_->reducer.BeginStep();
    rejected_ = in_last_round_ = false;
    const LossScale scale = state_.loss_scale();
    output->loss_scale = scale.scale;
    if (precision_.scaled && (input.num_tokens > 0 || output->skipped)) {
      state_.set_loss_scale(NextLossScale(scale, loss_scaling_, output->skipped));
    }
    loss_seed_ = 1;
    output->exposed_comm_s = waited_s() - waited_before_s_;
    return output;
  }

  double waited_s() const override {
    return parts_->pool.waited_s() + parts_->gatherer.waited_s() + parts_->reducer.waited_s() +
           parts_->updater.waited_s() + waited_for_copies_s_;
  }

  ParallelState& state() override { return state_; }

 private:
  // --- What operations call in backward. ---

  Place Claim(int parameter) override {
    ThrowUnlessOk(errors_.status());
    absl::StatusOr<Place> place = parts_->reducer.Claim(parameter);
    ThrowUnlessOk(place.status());
    return *std::move(place);
  }
  void Done(int parameter) override { ThrowUnlessOk(parts_->reducer.Done(parameter)); }
  bool defers() const override { return defers_; }
  void Defer(std::function<void()> product) override { deferred_.push_back(std::move(product)); }

  // --- What autograd calls. ---

  absl::Status OnGradient(int parameter) override { return parts_->reducer.OnGradient(parameter); }
  absl::Status BeforeBackward(int unit) override {
    RETURN_IF_ERROR(Advance({UnitAct::kBackward, unit}));
    unit_event_ = BeginUnit(EventKind::kBackward, unit);
    return absl::OkStatus();
  }
  absl::Status AfterBackward(int unit) override {
    // If the last computation of the plan was not the backward of this unit, no gradient has reached the unit's output,
    // and BeforeBackward was not called. Advance skips such a unit, or has skipped it already.
    if (!parts_->runner.IsAfter({UnitAct::kBackward, unit})) return absl::OkStatus();
    EndEvent(options_.events, unit_event_);
    return RunUpToComputation();
  }

  // A unit without parameters has no events.
  int64_t BeginUnit(EventKind kind, int unit) {
    if (model_.units()[unit].num_parameters == 0) return -1;
    return BeginEvent(options_.events, kind, model_.units()[unit].name);
  }
  at::Tensor Compute(int unit, const at::Tensor& x, const UnitBody& body) {
    const int64_t event = BeginUnit(EventKind::kForward, unit);
    at::Tensor y = unit_runner_->Run(unit, x, body);
    EndEvent(options_.events, event);
    return y;
  }

  // --- Passes and rounds. ---

  // Whether each pass gathers and frees units, as its plan says.
  bool plans_passes() const { return parts_->groups_are_units && !gathers_once_; }

  absl::Status Advance(const UnitAction& computation) {
    RETURN_IF_ERROR(errors_.status());
    return parts_->runner.Advance(computation);
  }

  absl::Status RunUpToComputation() {
    RETURN_IF_ERROR(errors_.status());
    return parts_->runner.RunUpToComputation();
  }

  absl::Status BeginPass(bool with_backward) {
    RETURN_IF_ERROR(AwaitParameters());
    return plans_passes() ? RecordError(parts_->runner.Begin(with_backward)) : absl::OkStatus();
  }

  absl::Status GatherAll() {
    std::set<int> units;  // those with something to gather
    for (const auto& group : parts_->groups) {
      if (group->unit() >= 0) units.insert(group->unit());
    }
    for (const int unit : units) {
      RETURN_IF_ERROR(parts_->gatherer.Start(unit));
      RETURN_IF_ERROR(parts_->gatherer.Wait(unit));
    }
    return absl::OkStatus();
  }

  // Reduces one group after another, so that one slot is enough.
  absl::Status ReduceAll() {
    for (size_t g = 0; g < parts_->groups.size(); ++g) {
      if (!parts_->groups[g]->trained()) continue;
      RETURN_IF_ERROR(parts_->reducer.Start(static_cast<int>(g)));
      RETURN_IF_ERROR(parts_->reducer.Settle(static_cast<int>(g)));
    }
    return absl::OkStatus();
  }

  absl::Status RunBackward(bool last, absl::FunctionRef<void()> backward) {
    RETURN_IF_ERROR(errors_.status());
    last = last && !gathers_once_;
    BeginRound(last);
    const int64_t event = BeginUnit(EventKind::kBackward, 0);
    RETURN_IF_ERROR(CatchUnitErrors([&] {
      backward();
      return at::Tensor();
    }));
    EndEvent(options_.events, event);
    return EndRound(last);
  }

  void BeginRound(bool last) {
    const bool reduce =
        last || (options_.reduce_every_micro_batch && ShardingOf(options_.strategy).gradients == Sharding::kSharded);
    in_last_round_ = last;
    reduces_ = reduce;
    parts_->runner.SetReducing(reduce);
    parts_->reducer.BeginRound(reduce, last);
  }

  absl::Status EndRound(bool last) {
    if (plans_passes()) {
      RETURN_IF_ERROR(RecordError(parts_->runner.RunToEnd(/*waits=*/!last)));
    }
    if (!reduces_) return absl::OkStatus();
    for (size_t i = 0; plans_passes() && i < parts_->groups_without_unit.size(); ++i) {
      RETURN_IF_ERROR(RecordError(parts_->reducer.Start(parts_->groups_without_unit[i])));
    }
    if (!plans_passes() && (options_.overlap || !last)) {
      RETURN_IF_ERROR(RecordError(parts_->reducer.StartAll()));
    }
    return last ? absl::OkStatus() : RecordError(parts_->reducer.Finish());
  }

  // Where several ranks hold gradients of the same parameters, makes them equal after the data ranks have added theirs.
  // The gradients of the two copies of a tied embedding are added. If each tensor rank has only a part of the sequence,
  // the gradients of the parameters that every tensor rank has whole are added, too. If each tensor rank has the whole
  // sequence, these gradients are already equal, except for differences between devices; those of tensor rank 0 then
  // replace the others, so that the differences do not add up over the steps.
  absl::Status AgreeOnCopies() {
    for (const auto& group : parts_->groups) {
      if (!group->trained()) continue;
      const at::Tensor& sum = group->gradient_sum(parts_->reducer.scatters());
      if (communicators_.tied != nullptr && group->is_tied()) {
        RETURN_IF_ERROR(WaitForCopies(*communicators_.tied->AllReduceSum(sum)))
            << "while adding the gradients of " << group->name();
      }
      if (communicators_.tensor == nullptr || !group->is_replicated()) continue;
      if (model_.part().divides_sequence) {
        RETURN_IF_ERROR(WaitForCopies(*communicators_.tensor->AllReduceSum(sum)))
            << "while adding the gradients of " << group->name();
      } else {
        RETURN_IF_ERROR(WaitForCopies(*communicators_.tensor->Broadcast(sum, /*root=*/0)))
            << "while copying the gradients of " << group->name();
      }
    }
    return absl::OkStatus();
  }
  absl::Status WaitForCopies(Collective& operation) {
    return TimedWait(operation, *options_.clock, waited_for_copies_s_);
  }

  // Whether ranks agree on a rejection through the flag of Updater::Step. Otherwise every rank has the whole sum, which
  // the rejecting rank has made not finite.
  bool RejectsByFlag() const { return parts_->updater.agrees(); }

  absl::StatusOr<at::Tensor> CatchUnitErrors(absl::FunctionRef<at::Tensor()> run) {
    try {
      return run();
    } catch (const UnitError& error) {
      return RecordError(error.status());
    }
  }
  static void ThrowUnlessOk(const absl::Status& status) {
    if (!status.ok()) throw UnitError(status);
  }
  absl::Status RecordError(absl::Status status) { return errors_.Record(std::move(status)); }

  Model& model_;
  const MeshCommunicators communicators_;
  const DataParallelOptions options_;
  const LossScaleConfig loss_scaling_;
  const Precision precision_;
  const int first_backward_;
  // Sharded parameters of a pipeline stage: the passes of its micro-batches alternate, so all units stay gathered from
  // the first pass of a step to its update.
  const bool gathers_once_;
  const std::unique_ptr<UnitRunner> unit_runner_;
  const std::unique_ptr<ParallelParts> parts_;
  FirstError errors_;
  FlatState state_;

  bool reduces_ = false, in_last_round_ = false;
  bool are_gathered_ = false;  // whether all units are gathered; false unless gathers_once_
  bool defers_ = false;
  DeferredProducts deferred_;
  bool rejected_ = false;
  double loss_seed_ = 1;        // of this step's backward
  double waited_before_s_ = 0;  // the time waited up to the beginning of this step
  double waited_for_copies_s_ = 0;
  int64_t root_event_ = -1, unit_event_ = -1;  // of the computation under way
};

}  // namespace

absl::StatusOr<std::unique_ptr<DataParallel>> ApplyDataParallel(Model& model, const MeshCommunicators& communicators,
                                                                const DataParallelOptions& options,
                                                                const UpdateOptions& update,
                                                                std::unique_ptr<UnitRunner> runner) {
  auto strategy = std::make_unique<FlatDataParallel>(model, communicators, options, update, std::move(runner));
  RETURN_IF_ERROR(strategy->Begin());
  return strategy;
}

}  // namespace trainyard
