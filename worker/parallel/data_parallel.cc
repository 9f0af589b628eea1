#include "worker/parallel/data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/parallel/autograd_hooks.h"
#include "worker/parallel/buckets.h"
#include "worker/parallel/flat_group.h"
#include "worker/parallel/gatherer.h"
#include "worker/parallel/reducer.h"
#include "worker/parallel/schedule.h"
#include "worker/parallel/slot_pool.h"
#include "worker/parallel/state_io.h"
#include "worker/parallel/updater.h"

namespace trainyard {
namespace {

constexpr Placement kShard = Placement::kShard;
constexpr int kBucketSlots = 3;  // one on its way, one being filled, one begun early (a tied embedding's)

Precision PrecisionFor(const Model& model, const DataParallelOptions& options) {
  const at::ScalarType type = model.parameters()[0].tensor.scalar_type();
  return options.precision.value_or(
      Precision{.param = type, .reduce = type, .output = type, .master = type, .state = type});
}

FlatGroups MakeGroups(const Model& model, Communicator& shard, const DataParallelOptions& options) {
  const Precision precision = PrecisionFor(model, options);
  const Placements placements = PlacementsOf(options.strategy);
  FlatGroups groups;
  if (placements.parameters == kShard) {
    for (const Unit& unit : model.units()) {
      std::vector<int> parameters;
      for (int i = 0; i < unit.num_parameters; ++i) parameters.push_back(unit.first_parameter + i);
      groups.push_back(
          std::make_unique<FlatGroup>(model, unit.name, std::move(parameters), placements, precision, shard));
    }
    return groups;
  }
  std::vector<int64_t> sizes;
  for (const NamedTensor& parameter : model.parameters()) sizes.push_back(parameter.tensor.numel());
  for (std::vector<int>& parameters : CutBuckets(sizes, options.bucket_elements)) {
    groups.push_back(std::make_unique<FlatGroup>(model, absl::StrCat("bucket ", groups.size()), std::move(parameters),
                                                 placements, precision, shard));
  }
  return groups;
}

// Slots as long as the longest group that uses one; none where nothing comes and goes.
SlotPool MakePool(const Model& model, const FlatGroups& groups, const Communicator& shard,
                  const DataParallelOptions& options, const std::vector<Action>& plan) {
  const Placements placements = PlacementsOf(options.strategy);
  const bool units = placements.parameters == kShard;
  const Precision precision = PrecisionFor(model, options);
  int64_t elements = 0;
  for (size_t g = units ? 1 : 0; g < groups.size(); ++g) elements = std::max(elements, groups[g]->layout().total);
  int slots = 0;
  if (shard.world_size() > 1 && placements.gradients == kShard) {
    slots = units ? PlanSlots(plan, /*gradients_in_slots=*/true) : std::min<int>(kBucketSlots, groups.size());
  }
  const size_t width = std::max(c10::elementSize(precision.param), c10::elementSize(precision.reduce));
  return SlotPool(elements * static_cast<int64_t>(width), slots, model.parameters()[0].tensor.device());
}

class FlatDataParallel final : public DataParallel, private BackwardEvents {
 public:
  FlatDataParallel(Model& model, const MeshCommunicators& communicators, const DataParallelOptions& options)
      : model_(model),
        communicators_(communicators),
        options_(options),
        precision_(PrecisionFor(model, options)),
        units_(PlacementsOf(options.strategy).parameters == kShard),
        groups_(MakeGroups(model, *communicators.shard, options)),
        evaluation_plan_(Plan(/*with_backward=*/false, /*reduce=*/false)),
        inner_plan_(Plan(/*with_backward=*/true, /*reduce=*/false)),
        reducing_plan_(Plan(/*with_backward=*/true, /*reduce=*/true)),
        pool_(MakePool(model, groups_, *communicators.shard, options, reducing_plan_)),
        gatherer_(groups_, *communicators.shard, pool_),
        reducer_(model, groups_, communicators, options, precision_, &pool_, /*own_root=*/units_),
        updater_(groups_, communicators, options, reducer_.scatters()) {
    if (precision_.output != precision_.param) model.set_output_type(precision_.output);
    if (precision_.scaled) loss_scale_ = InitialLossScale(options.loss_scale);
  }

  ~FlatDataParallel() override {
    // The model may outlive this object; its hooks may not.
    for (const NamedTensor& parameter : model_.parameters()) {
      if (parameter.tensor.requires_grad()) WatchGradient(parameter.tensor, nullptr, 0);
    }
  }

  absl::Status Begin() {
    for (const auto& group : groups_) RETURN_IF_ERROR(group->TakeRankZeros(*communicators_.world));
    for (size_t i = 0; i < model_.parameters().size(); ++i) {
      const at::Tensor& parameter = model_.parameters()[i].tensor;
      if (parameter.requires_grad()) WatchGradient(parameter, this, static_cast<int>(i));
    }
    return absl::OkStatus();
  }

  // --- What the model calls. ---

  void BeforeRoot() override {
    if (units_) ThrowUnlessOk(Advance({Act::kForward, 0}));
  }

  at::Tensor RunUnit(int unit, const at::Tensor& x, const UnitBody& body) override {
    if (!units_) return body(x);
    ThrowUnlessOk(Advance({Act::kForward, unit}));
    const bool with_backward = plan_ != &evaluation_plan_;
    at::Tensor in = x;
    if (with_backward) {
      // Something must lead autograd to the gate, even if all below is frozen.
      if (!in.requires_grad()) in = in.detach().requires_grad_(true);
      in = Gate(in, *this, unit);
    }
    at::Tensor y = body(in);
    ThrowUnlessOk(RunUpToComputation());
    if (with_backward) WatchOutput(y, *this, unit);
    return y;
  }

  at::Tensor AfterRoot(const at::Tensor& y) override {
    if (units_ && plan_ == &evaluation_plan_) ThrowUnlessOk(RunToEnd());
    return y;
  }

  // --- What the loop calls. ---

  void BeginStep(uint64_t num_tokens) override {
    if (precision_.scaled) seed_ = LossSeed(loss_scale_.scale, num_tokens);
  }

  absl::StatusOr<at::Tensor> Forward(absl::FunctionRef<at::Tensor()> loss_sum) override {
    RETURN_IF_ERROR(BeginPass(c10::GradMode::is_enabled()));
    return Framed(loss_sum);
  }

  absl::Status Backward(const at::Tensor& loss, bool last) override {
    RETURN_IF_ERROR(error_);
    BeginRound(last);
    RETURN_IF_ERROR(Framed([&] {
      loss.backward(seed_ == 1 ? at::Tensor() : at::full({}, seed_, loss.options().requires_grad(false)));
      return at::Tensor();
    }));
    return EndRound(last);
  }

  absl::Status Shadow(bool with_backward, bool last) override {
    RETURN_IF_ERROR(BeginPass(with_backward));
    if (with_backward) BeginRound(last);
    return with_backward ? EndRound(last) : Keep(RunToEnd());
  }

  void RejectStep() override {
    rejected_ = true;
    reducer_.Reject();
  }

  absl::Status FinishBackward() override {
    RETURN_IF_ERROR(error_);
    if (!units_) {
      // Without a round of its own: a rank that was dealt nothing, or a strategy that launches nothing early.
      if (!in_last_round_) BeginRound(/*last=*/true);
      RETURN_IF_ERROR(Keep(reducer_.StartAll()));
    }
    return Keep(reducer_.Finish());
  }

  absl::StatusOr<StepOutput> Step(const StepInput& input) override {
    RETURN_IF_ERROR(error_);
    absl::StatusOr<StepOutput> output = updater_.Step(input, seed_, rejected_ && AgreesByFlag());
    RETURN_IF_ERROR(Keep(output.status()));
    reducer_.BeginStep();
    rejected_ = in_last_round_ = false;
    output->loss_scale = loss_scale_.scale;
    if (precision_.scaled) loss_scale_ = NextLossScale(loss_scale_, options_.loss_scale, output->skipped);
    seed_ = 1;
    const double waited_s = gatherer_.waited_s() + reducer_.waited_s();
    output->exposed_comm_s += waited_s - waited_before_s_;
    waited_before_s_ = waited_s;
    return output;
  }

  std::vector<StateEntry> StateEntries() const override { return StateEntriesOf(model_, groups_); }

  absl::Status VisitState(StateVisitor visit) override {
    RETURN_IF_ERROR(error_);
    return VisitStateOf(model_, groups_, communicators_, visit);
  }

  absl::Status LoadState(RangeSource source) override {
    RETURN_IF_ERROR(error_);
    c10::NoGradGuard no_grad;
    return LoadStateInto(model_, groups_, source);
  }

  uint64_t num_updates() const override { return updater_.num_updates(); }
  void set_num_updates(uint64_t num_updates) override { updater_.set_num_updates(num_updates); }

  LossScale loss_scale() const override { return loss_scale_; }
  void set_loss_scale(const LossScale& scale) override { loss_scale_ = scale; }

  absl::StatusOr<std::vector<NamedHash>> HashParameters() override {
    RETURN_IF_ERROR(error_);
    return HashParametersOf(model_, groups_, communicators_);
  }

  std::vector<std::vector<std::string>> BucketOrder() const override {
    std::vector<std::vector<std::string>> order;
    for (const auto& group : groups_) {
      order.emplace_back();
      for (int i : group->layout().order) order.back().push_back(model_.parameters()[group->parameters()[i]].name);
    }
    if (units_) std::reverse(order.begin(), order.end());
    return order;
  }

 private:
  // --- What autograd calls. ---

  absl::Status OnGradient(int parameter) override { return reducer_.OnGradient(parameter); }
  absl::Status BeforeBackward(int unit) override { return Advance({Act::kBackward, unit}); }
  absl::Status AfterBackward(int unit) override {
    // A unit whose output led nowhere was passed over, or is still to come.
    if (cursor_ == 0 || (*plan_)[cursor_ - 1] != Action{Act::kBackward, unit}) return absl::OkStatus();
    return RunUpToComputation();
  }

  // --- Carrying out the plan. ---

  std::vector<Action> Plan(bool with_backward, bool reduce) const {
    if (!units_) return {};
    std::vector<int64_t> elements;
    for (const auto& group : groups_) elements.push_back(group->layout().total);
    return PlanPass(elements, with_backward,
                    {.overlap = options_.overlap,
                     .reshard_after_forward = options_.reshard_after_forward,
                     .reduce = reduce,
                     .prefetch_elements = options_.prefetch_elements,
                     .reuse_elements = options_.reuse_elements,
                     .max_live_elements = options_.max_live_elements});
  }

  static bool Computes(const Action& action) { return action.act == Act::kForward || action.act == Act::kBackward; }

  absl::Status CarryOut(const Action& action) {
    switch (action.act) {
      case Act::kGather:
        return gatherer_.Start(action.unit);
      case Act::kWaitGather:
        return gatherer_.Wait(action.unit);
      case Act::kFree:
        gatherer_.Free(action.unit);
        return absl::OkStatus();
      case Act::kReduce:
        return reducer_.Start(action.unit);
      case Act::kWaitReduce:
        return reducer_.Settle(action.unit);
      case Act::kForward:
      case Act::kBackward:
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  // Up to the next computation, which is `computation`. Backward may pass over units that no gradient has reached; they
  // are closed in their turn.
  absl::Status Advance(const Action& computation) {
    RETURN_IF_ERROR(error_);
    while (cursor_ < plan_->size()) {
      const Action action = (*plan_)[cursor_++];
      if (action == computation) return absl::OkStatus();
      if (action.act == Act::kForward) {
        return absl::FailedPreconditionError(absl::StrCat("unit ", model_.units()[computation.unit].name,
                                                          " runs where ", model_.units()[action.unit].name,
                                                          " is due: a model runs its units in the order of units()"));
      }
      RETURN_IF_ERROR(CarryOut(action));
    }
    return absl::FailedPreconditionError(
        absl::StrCat("unit ", model_.units()[computation.unit].name, " runs out of the order of units()"));
  }

  // The root is in use to the end of a pass: its last norm and the head come after the last unit.
  absl::Status RunUpToComputation() {
    RETURN_IF_ERROR(error_);
    const Action free_root{Act::kFree, 0};
    while (cursor_ < plan_->size() && !Computes((*plan_)[cursor_]) && (*plan_)[cursor_] != free_root) {
      RETURN_IF_ERROR(CarryOut((*plan_)[cursor_++]));
    }
    return absl::OkStatus();
  }

  // Without `waits` the wait for the last reduction is left to FinishBackward.
  absl::Status RunToEnd(bool waits = true) {
    while (cursor_ < plan_->size()) {
      const Action action = (*plan_)[cursor_++];
      if (waits || cursor_ < plan_->size() || action.act != Act::kWaitReduce) {
        RETURN_IF_ERROR(CarryOut(action));
      }
    }
    return absl::OkStatus();
  }

  absl::Status BeginPass(bool with_backward) {
    RETURN_IF_ERROR(error_);
    if (!units_) return absl::OkStatus();
    if (cursor_ < plan_->size()) {  // the pass before was left
      RETURN_IF_ERROR(Keep(gatherer_.FreeAll()));
    }
    plan_ = with_backward ? &reducing_plan_ : &evaluation_plan_;
    cursor_ = 0;
    return absl::OkStatus();
  }

  // Forward's part of the two plans with backward is the same.
  void BeginRound(bool last) {
    const bool reduce =
        last || (options_.reduce_every_micro_batch && PlacementsOf(options_.strategy).gradients == kShard);
    in_last_round_ = last;
    reduces_ = reduce;
    plan_ = reduce ? &reducing_plan_ : &inner_plan_;
    reducer_.BeginRound(reduce, last);
  }

  absl::Status EndRound(bool last) {
    if (units_) {
      RETURN_IF_ERROR(Keep(RunToEnd(/*waits=*/!last)));
    }
    if (!reduces_) return absl::OkStatus();
    if (!units_ && (options_.overlap || !last)) {
      RETURN_IF_ERROR(Keep(reducer_.StartAll()));
    }
    return last ? absl::OkStatus() : Keep(reducer_.Finish());
  }

  // With the whole sum on every rank one that is spoilt says all.
  bool AgreesByFlag() const { return reducer_.scatters(); }

  absl::StatusOr<at::Tensor> Framed(absl::FunctionRef<at::Tensor()> run) {
    try {
      return run();
    } catch (const UnitError& error) {
      return Keep(error.status());
    }
  }
  static void ThrowUnlessOk(const absl::Status& status) {
    if (!status.ok()) throw UnitError(status);
  }
  absl::Status Keep(absl::Status status) {
    if (error_.ok()) error_ = status;
    return status;
  }

  Model& model_;
  const MeshCommunicators communicators_;
  const DataParallelOptions options_;
  const Precision precision_;
  const bool units_;  // parameters are sharded: groups are units, and passes follow a plan
  const FlatGroups groups_;
  const std::vector<Action> evaluation_plan_, inner_plan_, reducing_plan_;
  SlotPool pool_;
  Gatherer gatherer_;
  Reducer reducer_;
  Updater updater_;

  const std::vector<Action>* plan_ = &evaluation_plan_;
  size_t cursor_ = 0;  // next action of the plan
  bool reduces_ = false, in_last_round_ = false;
  bool rejected_ = false;
  LossScale loss_scale_;
  double seed_ = 1;             // of this step's backward
  double waited_before_s_ = 0;  // up to the step before
  absl::Status error_;          // the first
};

}  // namespace

absl::StatusOr<std::unique_ptr<DataParallel>> NewDataParallel(Model& model, const MeshCommunicators& communicators,
                                                              const DataParallelOptions& options) {
  auto strategy = std::make_unique<FlatDataParallel>(model, communicators, options);
  RETURN_IF_ERROR(strategy->Begin());
  return strategy;
}

}  // namespace trainyard
