#include "worker/parallel/data_parallel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <xxhash.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "worker/numerics/gradient_norm.h"
#include "worker/parallel/buckets.h"

namespace trainyard {
namespace {

// Autograd calls it once a parameter's gradient of this backward pass has been added up.
class GradReadyHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  GradReadyHook(DataParallel& strategy, int parameter) : strategy_(strategy), parameter_(parameter) {}
  void operator()(const torch::autograd::Variable&) override { strategy_.OnGradReady(parameter_); }

 private:
  DataParallel& strategy_;
  int parameter_;
};

class Ddp final : public DataParallel {
 public:
  Ddp(Model& model, Communicator& communicator, const DataParallelOptions& options)
      : model_(model), communicator_(communicator), options_(options) {
    MakePlan();
    MoveIntoFlatBuffers();
    std::vector<AdamW::Range> ranges;
    for (const BucketPlan::Bucket& bucket : plan_.buckets) {
      AddRange(bucket.start, bucket.num_decayed, /*decays=*/true, ranges);
      AddRange(bucket.start + bucket.num_decayed, bucket.num_elements - bucket.num_decayed, /*decays=*/false, ranges);
    }
    optimizer_ = std::make_unique<AdamW>(options.optimizer, std::move(ranges));
    StartStep();
  }

  ~Ddp() override {
    // The model may outlive this object; its hooks may not.
    for (const NamedTensor& parameter : model_.parameters()) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, nullptr);
    }
  }

  absl::Status TakeRankZerosParameters() { return communicator_.Broadcast(flat_parameters_, /*root=*/0)->Wait(); }

  void BeforeUnit(int) override {}  // Parameters are whole on every rank.
  void AfterUnit(int) override {}

  void OnGradReady(int parameter) override {
    if (!last_micro_batch_) return;
    --num_missing_[plan_.bucket_of[parameter]];
    if (options_.overlap) LaunchReadyBuckets();
  }

  void Backward(const at::Tensor& loss, bool last) override {
    last_micro_batch_ = last;
    loss.backward();
  }

  void RejectStep() override { rejected_ = true; }

  absl::Status FinishBackward() override {
    // A rank that was dealt nothing, or a parameter that took no part, adds zeros.
    num_missing_.assign(num_missing_.size(), 0);
    LaunchReadyBuckets();
    auto start = std::chrono::steady_clock::now();
    absl::Status status;
    for (const std::unique_ptr<Collective>& reduction : reductions_) status.Update(reduction->Wait());
    exposed_comm_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    reductions_.clear();
    return status;
  }

  StepOutput Step(const StepInput& input) override {
    GradientScale scale = ScaleOf(SumOfSquares(flat_gradients_), input.num_tokens, options_.clip_norm);
    // The sums are the same bits on every rank, so all of them decide alike.
    const bool finite = std::isfinite(scale.norm);
    if (finite) optimizer_->Step(input.lr, scale.scale);
    flat_gradients_.zero_();
    StartStep();
    return {.gradient_norm = scale.norm, .exposed_comm_s = exposed_comm_s_, .skipped = !finite};
  }

  std::vector<NamedTensor> FirstMoments() override { return MomentViews(optimizer_->exp_avg()); }
  std::vector<NamedTensor> SecondMoments() override { return MomentViews(optimizer_->exp_avg_sq()); }
  uint64_t num_updates() const override { return optimizer_->num_steps(); }
  void set_num_updates(uint64_t num_updates) override { optimizer_->set_num_steps(num_updates); }

  std::vector<std::vector<std::string>> BucketOrder() const override {
    std::vector<std::vector<std::string>> order;
    for (const BucketPlan::Bucket& bucket : plan_.buckets) {
      order.emplace_back();
      for (int parameter : bucket.parameters) order.back().push_back(model_.parameters()[parameter].name);
    }
    return order;
  }

  std::string ParametersHash() const override {
    XXH3_state_t* state = XXH3_createState();
    XXH3_128bits_reset(state);
    for (const NamedTensor& parameter : model_.parameters()) {
      XXH3_128bits_update(state, parameter.tensor.const_data_ptr(), parameter.tensor.nbytes());
    }
    XXH128_hash_t hash = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
  }

 private:
  void MakePlan() {
    std::vector<int64_t> sizes;
    std::vector<bool> decays;
    for (const NamedTensor& parameter : model_.parameters()) {
      sizes.push_back(parameter.tensor.numel());
      decays.push_back(parameter.tensor.dim() >= 2);  // Gains and biases are not pulled towards 0.
    }
    plan_ = PlanBuckets(sizes, decays, options_.bucket_elements);
  }

  void MoveIntoFlatBuffers() {
    c10::NoGradGuard no_grad;
    at::TensorOptions type = model_.parameters()[0].tensor.options().requires_grad(false);
    flat_parameters_ = at::empty({plan_.num_elements}, type);
    flat_gradients_ = at::zeros({plan_.num_elements}, type);
    for (size_t i = 0; i < model_.parameters().size(); ++i) {
      at::Tensor parameter = model_.parameters()[i].tensor;
      at::Tensor home = View(flat_parameters_, i);
      home.copy_(parameter);
      parameter.set_data(home);
      parameter.mutable_grad() = View(flat_gradients_, i);
      torch::autograd::impl::set_post_acc_grad_hooks(parameter,
                                                     std::make_unique<GradReadyHook>(*this, static_cast<int>(i)));
    }
  }

  // Parameter i's part of a flat buffer, in its own shape.
  at::Tensor View(const at::Tensor& flat, size_t i) const {
    at::Tensor parameter = model_.parameters()[i].tensor;
    return flat.narrow(0, plan_.offsets[i], parameter.numel()).view(parameter.sizes());
  }

  void AddRange(int64_t start, int64_t size, bool decays, std::vector<AdamW::Range>& ranges) {
    if (size == 0) return;
    range_starts_.push_back(start);
    ranges.push_back({.parameters = flat_parameters_.narrow(0, start, size),
                      .gradients = flat_gradients_.narrow(0, start, size),
                      .decays = decays});
  }

  std::vector<NamedTensor> MomentViews(const std::vector<at::Tensor>& moments) const {
    std::vector<NamedTensor> views;
    for (size_t i = 0; i < model_.parameters().size(); ++i) {
      const NamedTensor& parameter = model_.parameters()[i];
      size_t range =
          std::upper_bound(range_starts_.begin(), range_starts_.end(), plan_.offsets[i]) - range_starts_.begin() - 1;
      at::Tensor view = moments[range].narrow(0, plan_.offsets[i] - range_starts_[range], parameter.tensor.numel());
      views.push_back({.name = parameter.name, .tensor = view.view(parameter.tensor.sizes())});
    }
    return views;
  }

  void StartStep() {
    num_missing_.clear();
    for (const BucketPlan::Bucket& bucket : plan_.buckets)
      num_missing_.push_back(static_cast<int>(bucket.parameters.size()));
    next_bucket_ = 0;
    last_micro_batch_ = false;
    rejected_ = false;
  }

  // In launch order: a bucket that is ready early waits for those before it.
  void LaunchReadyBuckets() {
    // One element that is not a number makes the sum of all ranks none.
    if (rejected_ && next_bucket_ == 0) flat_gradients_.narrow(0, 0, 1).fill_(std::numeric_limits<double>::quiet_NaN());
    while (next_bucket_ < plan_.buckets.size() && num_missing_[next_bucket_] == 0) {
      const BucketPlan::Bucket& bucket = plan_.buckets[next_bucket_++];
      reductions_.push_back(communicator_.AllReduceSum(flat_gradients_.narrow(0, bucket.start, bucket.num_elements)));
    }
  }

  Model& model_;
  Communicator& communicator_;
  const DataParallelOptions options_;
  BucketPlan plan_;
  at::Tensor flat_parameters_, flat_gradients_;
  std::vector<int64_t> range_starts_;  // of the optimizer's ranges in the flat buffers, rising
  std::unique_ptr<AdamW> optimizer_;

  // Of the step under way.
  bool last_micro_batch_ = false;
  bool rejected_ = false;
  std::vector<int> num_missing_;  // gradients a bucket still waits for
  size_t next_bucket_ = 0;
  std::vector<std::unique_ptr<Collective>> reductions_;
  double exposed_comm_s_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DataParallel>> NewDdp(Model& model, Communicator& communicator,
                                                     const DataParallelOptions& options) {
  auto ddp = std::make_unique<Ddp>(model, communicator, options);
  RETURN_IF_ERROR(ddp->TakeRankZerosParameters()) << "while taking over the parameters of rank 0";
  return ddp;
}

}  // namespace trainyard
