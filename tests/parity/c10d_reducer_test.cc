// Compares our DDP with LibTorch's: c10d::Reducer with the same weights, batches and bucket boundaries, and with a hook
// that sums without dividing. The gradients must be bitwise equal.
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <functional>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "tests/parity/forwarding_communicator.h"
#include "tests/parity/rank_pool.h"
#include "tests/parity/training.h"
#include "tests/parity/training_data.h"
#include "worker/parallel/autograd_hooks.h"
#include "worker/parallel/deal.h"
#include "worker/parallel/parallelize.h"
#include "worker/parallel/recompute.h"
#include "worker/parallel/shard_layout.h"

namespace trainyard {
namespace {

constexpr uint64_t kSeed = 20;

// The group of all ranks. Records the summed tensors since the last Clear.
class Recorder final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;
  void Clear() { summed_.clear(); }
  const std::vector<at::Tensor>& summed() const { return summed_; }

  std::unique_ptr<Collective> AllReduceSum(const at::Tensor& tensor) override {
    summed_.push_back(tensor);
    return inner().AllReduceSum(tensor);
  }

 private:
  std::vector<at::Tensor> summed_;
};

using Sum = std::function<void(at::Tensor&)>;

// Sums a bucket without dividing it.
class SumHook final : public c10d::CppCommHookInterface<Sum> {
 public:
  using CppCommHookInterface::CppCommHookInterface;
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    state_(bucket.getBufferRef());
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    future->markCompleted(bucket.getBuffer());
    return future;
  }
};

c10::intrusive_ptr<c10d::ProcessGroup> NewProcessGroup(const std::string& file, int rank, int world) {
  auto store = c10::make_intrusive<c10d::FileStore>(file, world);
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::minutes(1));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world, options);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, world);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

// A separate model under c10d::Reducer.
class TorchDdp {
 public:
  TorchDdp(const TrainingCase& training, const std::vector<std::vector<std::string>>& buckets,
           c10::intrusive_ptr<c10d::ProcessGroup> group, Sum sum)
      : model_(*NewModel(training.model(), /*seed=*/0, training.type)) {
    std::map<std::string, size_t> numbers;
    std::vector<at::Tensor> parameters;
    std::unordered_map<size_t, std::string> names;
    for (const NamedTensor& parameter : model_->parameters()) {
      names[parameters.size()] = parameter.name;
      numbers[parameter.name] = parameters.size();
      parameters.push_back(parameter.tensor);
    }
    std::vector<std::vector<size_t>> indices;
    for (const std::vector<std::string>& bucket : buckets) {
      indices.emplace_back();
      for (const std::string& name : bucket) indices.back().push_back(numbers.at(name));
    }
    constexpr int64_t kCap = 1 << 30;
    reducer_ = std::make_unique<c10d::Reducer>(
        parameters, indices, std::move(group), std::vector<bool>(parameters.size(), false), kCap,
        /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/false, names, kCap,
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<int64_t>{});
    reducer_->register_comm_hook(std::make_unique<SumHook>(std::move(sum)));
  }

  Model& model() { return *model_; }

  void BeginStep(const Model& other) {
    c10::NoGradGuard no_grad;
    for (size_t i = 0; i < model_->parameters().size(); ++i) {
      at::Tensor parameter = model_->parameters()[i].tensor;
      parameter.copy_(other.parameters()[i].tensor);
      parameter.mutable_grad().reset();
    }
  }

  void Backward(const at::Tensor& inputs, const at::Tensor& targets, const DropoutKey& key, bool last) {
    NoUnitHooks none;
    reducer_->prepare_for_forward();
    at::Tensor loss = model_->LossSum(inputs, targets, none, key);
    if (last) reducer_->prepare_for_backward({});
    loss.backward();
  }

  std::vector<std::string> RebuiltOrder() {
    reducer_->rebuild_buckets();
    std::vector<std::string> order;
    for (const c10d::GradBucket& bucket : reducer_->get_grad_buckets()) {
      for (const at::Tensor& rebuilt : bucket.getParameters()) {
        for (const NamedTensor& parameter : model_->parameters()) {
          if (parameter.tensor.is_same(rebuilt)) order.push_back(parameter.name);
        }
      }
    }
    return order;
  }

 private:
  std::unique_ptr<Model> model_;
  std::unique_ptr<c10d::Reducer> reducer_;
};

// Records when each gradient is complete, as a strategy sees it: through the sink if an operation writes there,
// otherwise through autograd's hook.
class ReadyRecorder final : public UnitHooks, private GradientSink, private BackwardEvents {
 public:
  explicit ReadyRecorder(Model& model) : model_(model) {
    for (size_t i = 0; i < model.parameters().size(); ++i) {
      WatchGradient(model.parameters()[i].tensor, this, static_cast<int>(i));
    }
  }
  ~ReadyRecorder() override {
    for (const NamedTensor& parameter : model_.parameters()) WatchGradient(parameter.tensor, nullptr, 0);
  }
  const std::vector<int>& order() const { return order_; }

  void BeforeRoot() override {}
  at::Tensor AfterRoot(const at::Tensor& y) override { return y; }
  at::Tensor RunUnit(int unit, const at::Tensor& x, const UnitBody& body) override {
    return runner_->Run(unit, x, body);
  }
  GradientSink* sink() override { return this; }
  void set_recompute(RecomputeMode mode) { runner_ = ApplyRecompute({.mode = mode}, /*first_backward=*/1); }

 private:
  Place Claim(int parameter) override {
    return {.tensor = at::empty_like(model_.parameters()[parameter].tensor.detach()), .overwrites = true};
  }
  void Done(int parameter) override { order_.push_back(parameter); }
  absl::Status OnGradient(int parameter) override {
    if (model_.parameters()[parameter].tensor.grad().defined()) order_.push_back(parameter);
    return absl::OkStatus();
  }
  absl::Status BeforeBackward(int) override { return absl::OkStatus(); }
  absl::Status AfterBackward(int) override { return absl::OkStatus(); }

  Model& model_;
  std::unique_ptr<UnitRunner> runner_ = ApplyRecompute({}, /*first_backward=*/1);
  std::vector<int> order_;
};

// Returns the gradients of all parameters by name, from the summed flat buffers.
std::map<std::string, at::Tensor> GradientsIn(const std::vector<at::Tensor>& summed,
                                              const std::vector<std::vector<std::string>>& buckets,
                                              const Model& model) {
  std::map<std::string, at::Tensor> shapes, gradients;
  for (const NamedTensor& parameter : model.parameters()) shapes[parameter.name] = parameter.tensor;
  for (size_t b = 0; b < buckets.size(); ++b) {
    std::vector<int64_t> sizes;
    std::vector<int> order;
    for (const std::string& name : buckets[b]) {
      order.push_back(static_cast<int>(sizes.size()));
      sizes.push_back(shapes.at(name).numel());
    }
    const ShardLayout layout = MakeShardLayout(sizes, order, /*num_shards=*/1);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const std::string& name = buckets[b][i];
      gradients[name] = summed[b].narrow(0, layout.offsets[i], sizes[i]).view(shapes.at(name).sizes());
    }
  }
  return gradients;
}

absl::Status ExpectEqual(const std::map<std::string, at::Tensor>& ours, const Model& theirs, int64_t step) {
  for (const NamedTensor& parameter : theirs.parameters()) {
    const at::Tensor &gradient = ours.at(parameter.name), &expected = parameter.tensor.grad();
    if (at::equal(gradient, expected)) continue;
    return absl::InternalError(
        absl::StrCat("step ", step, ": the gradient of ", parameter.name, " differs from c10d's by ",
                     (gradient - expected).abs().max().item<double>(), " of ", expected.abs().max().item<double>()));
  }
  return absl::OkStatus();
}

// Trains with our DDP and compares the gradients of every step with those of c10d::Reducer. With a folder, c10d uses
// its own gloo group, whose ranks rendezvous in that folder; otherwise it uses our group. Returns the number of
// compared tensors.
absl::StatusOr<std::string> CompareMain(const PoolRank& rank, const std::string& arguments) {
  const TrainingCase training = TrainingCase::Parse(arguments);
  const int world = rank.mesh.world_size();
  ASSIGN_OR_RETURN(auto model, NewModel(training.model(), rank.rank == 0 ? kSeed : 0, training.type));
  Recorder recorder(*rank.groups.world);
  const MeshCommunicators communicators{
      .job = &recorder, .data = &recorder, .shard = rank.groups.shard, .replicate = &recorder};
  ASSIGN_OR_RETURN(auto strategy, Parallelize(*model, rank.mesh, communicators, training.options()));
  const std::vector<std::vector<std::string>> buckets = strategy->state().BucketOrder();

  const bool own_gloo = training.folder != "-";
  absl::Status summed_by_us;
  auto group = own_gloo ? NewProcessGroup(training.folder + "/c10d", rank.rank, world)
                        : c10::make_intrusive<c10d::ProcessGroup>(rank.rank, world);
  const Sum by_gloo = [group](at::Tensor& bucket) {
    std::vector<at::Tensor> tensors{bucket};
    group->allreduce(tensors)->wait();
  };
  const Sum by_us = [&](at::Tensor& bucket) { summed_by_us.Update(rank.groups.world->AllReduceSum(bucket)->Wait()); };
  TorchDdp theirs(training, buckets, group, own_gloo ? by_gloo : by_us);

  const Deal deal =
      DealStep(training.global, training.micro, rank.mesh.DataRank(rank.rank), rank.mesh.num_data_ranks());
  const uint64_t tokens = static_cast<uint64_t>(training.global * training.model().context);
  int64_t compared = 0;
  for (int64_t step = 1; step <= training.steps; ++step) {
    theirs.BeginStep(*model);
    recorder.Clear();
    strategy->BeginStep(tokens);
    for (int64_t round = 0; round < deal.num_rounds; ++round) {
      const int64_t micro_batch = deal.micro_batches.at(static_cast<size_t>(round));
      const auto [inputs, targets] = Samples((step - 1) * training.global + micro_batch * training.micro,
                                             training.micro, training.model().context);
      const DropoutKey key{.seed = kSeed,
                           .step = static_cast<uint64_t>(step),
                           .first_sample = static_cast<uint64_t>(micro_batch * training.micro)};
      const bool last = round + 1 == deal.num_rounds;
      ASSIGN_OR_RETURN(at::Tensor loss, strategy->Forward([&, &in = inputs, &out = targets] {
        return model->LossSum(in, out, *strategy, key);
      }));
      RETURN_IF_ERROR(strategy->Backward(loss, last));
      if (last) {
        RETURN_IF_ERROR(strategy->FinishBackward());
      }
      theirs.Backward(inputs, targets, key, last);
      RETURN_IF_ERROR(summed_by_us);
    }
    if (recorder.summed().size() != buckets.size()) {
      return absl::InternalError(absl::StrCat(recorder.summed().size(), " sums of ", buckets.size(), " buckets"));
    }
    RETURN_IF_ERROR(ExpectEqual(GradientsIn(recorder.summed(), buckets, *model), theirs.model(), step));
    compared += static_cast<int64_t>(model->parameters().size());
    RETURN_IF_ERROR(strategy->Step({.lr = 1e-2, .num_tokens = tokens}).status());
  }
  return absl::StrCat(compared);
}

// Returns the order of the parameters in c10d's buckets after its first step.
absl::StatusOr<std::string> OrderMain(const PoolRank& rank, const std::string& arguments) {
  const TrainingCase training = TrainingCase::Parse(arguments);
  ASSIGN_OR_RETURN(auto model, NewModel(training.model(), kSeed, training.type));
  std::vector<std::string> names;
  for (const NamedTensor& parameter : model->parameters()) names.push_back(parameter.name);
  TorchDdp theirs(training, {names}, NewProcessGroup(training.folder + "/c10d", rank.rank, rank.mesh.world_size()),
                  [](at::Tensor&) {});
  theirs.BeginStep(*model);
  const auto [inputs, targets] = Samples(0, training.micro, training.model().context);
  theirs.Backward(inputs, targets, {.seed = kSeed}, /*last=*/true);
  return absl::StrJoin(theirs.RebuiltOrder(), " ");
}

RankPool& Pool() {
  static RankPool pool(4);
  return pool;
}

// Expects that all 40 gradients are equal: each of the 3 layers has 12 parameters, and the root has 4.
void ExpectSameGradients(int world, const TrainingCase& training, PoolTransport transport) {
  absl::StatusOr<std::vector<std::string>> results = Pool().Run(
      {.mesh = {.dp_replicate = world}, .transport = transport, .main = "compare", .arguments = training.ToString()});
  ASSERT_TRUE(results.ok()) << results.status();
  for (const std::string& compared : *results) EXPECT_EQ(compared, absl::StrCat(training.steps * 40));
}

class C10dReducer : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, C10dReducer, testing::Values(1, 2, 3, 4));

TEST_P(C10dReducer, MatchesTheGradientsOfOurDdp) {
  for (at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (bool overlap : {true, false}) {
      TrainingCase training{.type = type, .steps = 4, .global = 12, .micro = 12 / GetParam(), .dropout = 0.1};
      training.overlap = overlap;
      ExpectSameGradients(GetParam(), training, PoolTransport::kSharedMemory);
    }
  }
}

TEST_P(C10dReducer, MatchesTheGradientsOfOurDdp_WithAnyBuckets) {
  for (int64_t elements : {1, 1000, 1 << 30}) {
    TrainingCase training{.type = at::kFloat, .steps = 2, .global = 12, .micro = 12 / GetParam()};
    training.bucket_elements = elements;
    ExpectSameGradients(GetParam(), training, PoolTransport::kSharedMemory);
  }
}

// Here c10d::Reducer uses none of our code. The results are bitwise equal because gloo's ring can sum two ranks in one
// order only.
TEST(C10dReducerOverItsOwnGloo, MatchesTheGradientsOfOurDdpOverOurGroup) {
  TemporaryFolder folder;
  TrainingCase training{.type = at::kFloat, .steps = 4, .global = 12, .micro = 6, .dropout = 0.1};
  training.folder = folder.path();

  ExpectSameGradients(2, training, PoolTransport::kGloo);
}

// Returns the operations to which the parameters belong, in their order. The order of the two gradients of one
// operation (weight and bias) is arbitrary, so it is not compared.
std::vector<std::string> Operations(const std::vector<std::string>& parameters) {
  std::vector<std::string> operations;
  for (const std::string& name : parameters) {
    const std::string operation = name.substr(0, name.rfind('.'));
    if (operations.empty() || operations.back() != operation) operations.push_back(operation);
  }
  return operations;
}

TEST(ReadyOrder, IsTheOrderOfC10dsBucketsAfterTheFirstStep) {
  for (ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama, ModelFamily::kQwen2}) {
    TemporaryFolder folder;
    TrainingCase training{.type = at::kFloat, .micro = 2, .family = family};
    training.folder = folder.path();
    auto model = *NewModel(training.model(), kSeed, training.type);
    std::vector<std::string> ours;
    for (int i : model->ReadyOrder()) ours.push_back(model->parameters()[i].name);

    auto theirs = Pool().Run({.mesh = {.dp_replicate = 2}, .main = "order", .arguments = training.ToString()});

    ASSERT_TRUE(theirs.ok()) << theirs.status();
    EXPECT_EQ(ours.size(), model->parameters().size());
    EXPECT_EQ(Operations(absl::StrSplit(theirs->front(), ' ')), Operations(ours)) << FamilyName(family);
  }
}

TEST(ReadyOrder, IsTheOrderInWhichGradientsAreCompleted) {
  for (RecomputeMode recompute : {RecomputeMode::kNone, RecomputeMode::kBlocks, RecomputeMode::kSelective}) {
    for (const auto& [family, dropout] : {std::pair{ModelFamily::kGpt2, 0.0},
                                          {ModelFamily::kGpt2, 0.1},
                                          {ModelFamily::kLlama, 0.0},
                                          {ModelFamily::kQwen2, 0.0}}) {
      TrainingCase training{.type = at::kFloat, .micro = 2, .family = family, .dropout = dropout};
      auto model = *NewModel(training.model(), kSeed, training.type);
      ReadyRecorder recorder(*model);
      recorder.set_recompute(recompute);
      const auto [inputs, targets] = Samples(0, training.micro, training.model().context);

      model->LossSum(inputs, targets, recorder, DropoutKey{.seed = kSeed}).backward();

      EXPECT_EQ(recorder.order(), model->ReadyOrder()) << FamilyName(family);
    }
  }
}

TEST_P(C10dReducer, MatchesTheGradientsOfOurDdp_AfterMicroBatchesWithoutSynchronisation) {
  for (at::ScalarType type : {at::kFloat, at::kDouble}) {
    TrainingCase training{.type = type, .steps = 4, .global = 36, .micro = 12 / GetParam(), .dropout = 0.1};
    ExpectSameGradients(GetParam(), training, PoolTransport::kSharedMemory);
  }
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  trainyard::RunAsPoolRankIfRequested(argc, argv,
                                      {{"compare", trainyard::CompareMain}, {"order", trainyard::OrderMain}});
  at::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
