// Properties of the pinned LibTorch that sharded parameters depend on: memory of parameters that is opened and closed
// under autograd, and errors that pass through backward.
#include "worker/parallel/flat_group.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <numeric>
#include <utility>

#include "common/box.h"
#include "worker/collectives/single_communicator.h"
#include "worker/mesh/mesh.h"
#include "worker/parallel/autograd_hooks.h"
#include "worker/parallel/parallelize.h"

namespace trainyard {
namespace {

constexpr StateSharding kSharded = {Sharding::kSharded, Sharding::kSharded, Sharding::kSharded};

// Two matrices with a bias between them.
class Matrices final : public Model {
 public:
  Matrices() {
    units_ = {{.name = "only", .first_parameter = 0, .num_parameters = 3}};
    parameters_ = {{"a", at::randn({3, 5})}, {"bias", at::randn({5})}, {"b", at::randn({5, 3})}};
    for (NamedTensor& parameter : parameters_) parameter.tensor.requires_grad_(true);
  }
  at::Tensor LossSum(const at::Tensor& x, const at::Tensor&, UnitHooks&, std::optional<DropoutKey>,
                     const at::Tensor& = {}) override {
    // Autograd stores parameters, views of them and their transposes for backward.
    at::Tensor hidden = at::mm(x, parameters_[0].tensor) + parameters_[1].tensor;
    at::Tensor back = at::mm(hidden, parameters_[0].tensor.t()) + at::mm(hidden * hidden, parameters_[2].tensor);
    return back.square().sum();
  }
  at::Tensor Logits(const at::Tensor& x, UnitHooks&) override { return x; }
  int64_t context() const override { return 1; }
  int64_t vocabulary() const override { return 1; }
};

class FlatGroupTest : public testing::Test {
 protected:
  FlatGroupTest() : x_(at::randn({2, 3})) {
    NoUnitHooks hooks;
    model_.LossSum(x_, {}, hooks, {}).backward();
    for (const NamedTensor& parameter : model_.parameters()) {
      gradients_.push_back(parameter.tensor.grad().clone());
      at::Tensor tensor = parameter.tensor;
      tensor.mutable_grad().reset();
    }
    group_ = std::make_unique<FlatGroup>(model_, "unit", std::vector<int>{0, 1, 2}, kSharded, Precision{}, *single_);
    EXPECT_TRUE(group_->CopyFromRankZero(*single_).ok());
    group_->MoveParametersHere();
  }

  std::unique_ptr<Communicator> single_ = NewSingleCommunicator();
  Matrices model_;
  at::Tensor x_;
  std::vector<at::Tensor> gradients_;  // computed before the group closes the memory
  std::unique_ptr<FlatGroup> group_;
};

TEST_F(FlatGroupTest, BackwardReadsTheMemoryThatIsOpenAtThatTime) {
  NoUnitHooks hooks;
  at::Tensor first = group_->parameter_shard().clone(), second = first.clone();
  group_->Open(first);
  at::Tensor loss = model_.LossSum(x_, {}, hooks, {});
  group_->Close();
  first.fill_(std::numeric_limits<float>::quiet_NaN());
  group_->Open(second);

  loss.backward();

  for (size_t i = 0; i < gradients_.size(); ++i) {
    EXPECT_TRUE(model_.parameters()[i].tensor.grad().equal(gradients_[i])) << model_.parameters()[i].name;
  }
}

TEST_F(FlatGroupTest, AClosedParameterCannotBeRead) {
  at::Tensor closed = model_.parameters()[0].tensor;
  EXPECT_EQ(closed.sizes(), (at::IntArrayRef{3, 5}));
  EXPECT_THROW(closed.const_data_ptr<float>(), c10::Error);
  group_->Open(group_->parameter_shard());
  EXPECT_NE(closed.const_data_ptr<float>(), nullptr);
  group_->Close();
  EXPECT_THROW(closed.const_data_ptr<float>(), c10::Error);
}

TEST_F(FlatGroupTest, AnOperationOnAClosedParameterEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  c10::NoGradGuard no_grad;
  EXPECT_DEATH(model_.parameters()[0].tensor.add(1).sum().item<float>(), "");
}

TEST_F(FlatGroupTest, StoresDecayedParametersFirst_AndKeepsGapsZero) {
  EXPECT_THAT(group_->layout().offsets, testing::ElementsAre(0, 32, 16));
  ASSERT_EQ(group_->OptimizerRanges().size(), 2u);
  EXPECT_TRUE(group_->OptimizerRanges()[0].decays);
  EXPECT_EQ(group_->OptimizerRanges()[0].parameters.numel(), 32);
  at::Tensor flat = at::full({group_->layout().total}, 1.0);
  group_->ZeroGaps(flat);
  EXPECT_EQ(flat.sum().item<float>(), 3 * 5 + 5 + 5 * 3);
}

at::Tensor ViewOf(const PartParameter& box, at::Tensor whole) {
  for (size_t d = 0; d < box.start.size(); ++d) {
    whole = whole.narrow(static_cast<int64_t>(d), box.start[d], box.shape[d]);
  }
  return whole;
}

// Updates the part that a tensor rank has of a model in bf16, from gradients that do not depend on the layout. Returns
// the boxes of the part and their values.
std::vector<std::pair<PartParameter, at::Tensor>> UpdatedInBf16(const ModelSizes& sizes, int tensor_ranks, int rank) {
  const Mesh mesh = *Mesh::Create({.tp = tensor_ranks}, tensor_ranks);
  const std::unique_ptr<Model> model =
      *DivideModel({.sizes = sizes, .seed = 1, .type = at::kBFloat16}, mesh, rank, PipelineLayout{}, nullptr);
  const std::unique_ptr<Communicator> single = NewSingleCommunicator();
  constexpr StateSharding kReplicated = {Sharding::kReplicated, Sharding::kReplicated, Sharding::kReplicated};
  const Precision bf16 =
      *ParsePrecision(PrecisionNames{.param = "bf16", .reduce = "fp32", .master = "bf16", .state = "bf16"});
  std::vector<int> all(model->parameters().size());
  std::iota(all.begin(), all.end(), 0);
  FlatGroup group(*model, "all", all, kReplicated, bf16, *single);
  EXPECT_TRUE(group.CopyFromRankZero(*single).ok());
  c10::NoGradGuard no_grad;
  for (size_t i = 0; i < all.size(); ++i) {
    const PartParameter& box = model->boxes()[i];
    const std::vector<int64_t>& shape = model->description().parameters[static_cast<size_t>(box.number)].shape;
    const at::Tensor gradient = at::linspace(-1, 2, CountIn(WholeBox(shape)), at::kFloat).view(shape);
    group.View(group.whole_gradients(), i).copy_(ViewOf(box, gradient));
  }

  AdamW optimizer({.seed = 3}, group.OptimizerRanges());
  for (int step = 0; step < 3; ++step) optimizer.Step(0.01, 1);

  std::vector<std::pair<PartParameter, at::Tensor>> updated;
  for (size_t i = 0; i < all.size(); ++i) {
    updated.emplace_back(model->boxes()[i], group.View(group.whole_parameters(), i).clone());
  }
  return updated;
}

TEST(StochasticRounding, OfTensorRanks_GivesTheBitsOfOneRank) {
  const ModelSizes gpt2{.layers = 1, .heads = 4, .width = 16, .context = 8, .vocabulary = 37};
  ModelSizes llama = gpt2;
  llama.family = ModelFamily::kLlama;
  llama.kv_heads = 4;
  llama.head_width = 4;
  llama.inner = 30;
  llama.norm_eps = 1e-5;
  for (const ModelSizes& sizes : {gpt2, llama}) {
    const auto whole = UpdatedInBf16(sizes, /*tensor_ranks=*/1, /*rank=*/0);
    for (int rank = 0; rank < 2; ++rank) {
      for (const auto& [box, values] : UpdatedInBf16(sizes, /*tensor_ranks=*/2, rank)) {
        const auto& [whole_box, whole_values] = whole[static_cast<size_t>(box.number)];
        ASSERT_EQ(whole_box.name, box.name);
        EXPECT_TRUE(values.equal(ViewOf(box, whole_values))) << box.name << " on tensor rank " << rank;
      }
    }
  }
}

class RecordingEvents final : public BackwardEvents {
 public:
  absl::Status OnGradient(int parameter) override {
    calls.push_back("gradient " + std::to_string(parameter));
    return on_gradient;
  }
  absl::Status BeforeBackward(int unit) override {
    calls.push_back("before " + std::to_string(unit));
    return absl::OkStatus();
  }
  absl::Status AfterBackward(int unit) override {
    calls.push_back("after " + std::to_string(unit));
    return after;
  }
  std::vector<std::string> calls;
  absl::Status on_gradient, after;
};

struct Chain {
  // Two units of one matrix each; the second one also adds a row of a third matrix, which does not depend on x.
  explicit Chain(BackwardEvents& events) : events_(events) {
    for (int i = 0; i < 3; ++i) {
      w.push_back(at::randn({3, 3}).requires_grad_(true));
      WatchGradient(w.back(), &events, i);
    }
  }
  at::Tensor Loss() {
    at::Tensor x = at::randn({2, 3}).requires_grad_(true);
    for (int unit = 0; unit < 2; ++unit) {
      x = Gate(x, events_, unit);
      x = at::mm(x, w[unit]);
      if (unit == 1) x = x + w[2].select(0, 0);
      WatchOutput(x, events_, unit);
    }
    return x.sum();
  }
  std::vector<at::Tensor> w;

 private:
  BackwardEvents& events_;
};

TEST(AutogradHooks, AreCalledBeforeAndAfterTheBackwardOfEachUnit) {
  RecordingEvents events;
  Chain chain(events);
  chain.Loss().backward();
  ASSERT_EQ(events.calls.size(), 7u);
  EXPECT_EQ(events.calls[0], "before 1");
  EXPECT_THAT((std::vector<std::string>(events.calls.begin() + 1, events.calls.begin() + 3)),
              testing::UnorderedElementsAre("gradient 1", "gradient 2"));
  EXPECT_THAT((std::vector<std::string>(events.calls.begin() + 3, events.calls.end())),
              testing::ElementsAre("after 1", "before 0", "gradient 0", "after 0"));
}

void ExpectThrows(const at::Tensor& loss, absl::string_view message) {
  try {
    loss.backward();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UnitError& error) {
    EXPECT_EQ(error.status(), absl::UnavailableError(message));
  }
}

TEST(AutogradHooks, BackwardThrowsTheErrorUnchanged_AndTheNextBackwardWorks) {
  RecordingEvents events;
  Chain chain(events);
  events.after = absl::UnavailableError("peer gone");
  ExpectThrows(chain.Loss(), "peer gone");
  events.after = absl::OkStatus();
  events.on_gradient = absl::UnavailableError("another gone");
  ExpectThrows(chain.Loss(), "another gone");

  events.on_gradient = absl::OkStatus();
  events.calls.clear();
  chain.Loss().backward();
  EXPECT_EQ(events.calls.size(), 7u);
}

// Recompute runs a backward inside a backward.
struct NestedFunction : torch::autograd::Function<NestedFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, int64_t chain) {
    context->saved_data["chain"] = chain;
    return x.view_as(x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    at::AutoGradMode with_grad(true);
    reinterpret_cast<Chain*>(context->saved_data["chain"].toInt())->Loss().backward();
    return {gradients[0], at::Tensor()};
  }
};

TEST(AutogradHooks, ANestedBackwardThrowsTheErrorUnchanged) {
  RecordingEvents events;
  Chain chain(events);
  at::Tensor x = at::randn({2}).requires_grad_(true);
  events.after = absl::UnavailableError("peer gone");
  ExpectThrows(NestedFunction::apply(x, reinterpret_cast<int64_t>(&chain)).sum(), "peer gone");
  events.after = absl::OkStatus();
  events.calls.clear();
  NestedFunction::apply(x, reinterpret_cast<int64_t>(&chain)).sum().backward();
  EXPECT_EQ(events.calls.size(), 7u);
  EXPECT_TRUE(x.grad().defined());
}

}  // namespace
}  // namespace trainyard
