// Every strategy with threads as ranks, over shared memory: the results must be those of one rank that does all work,
// the collectives must be those of the plan, and other layouts must load the state that an FSDP job has saved.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "common/status_macros.h"
#include "tests/parity/stores.h"
#include "worker/collectives/group.h"
#include "worker/collectives/single_communicator.h"
#include "worker/model/model_factory.h"
#include "worker/parallel/deal.h"
#include "worker/parallel/parallelize.h"

namespace trainyard {
namespace {

using testing::HasSubstr;

struct Case {
  std::string name;
  ParallelOptions options;
  int shard = 1, replicate = 1;
  int64_t micro_batches = 4;
  int steps = 3;
  int rejected_step = 0;  // the step that the last rank rejects; 0: none
  at::ScalarType type = at::kDouble;
  std::vector<std::string> frozen = {};  // prefixes of names
};

using State = std::map<std::pair<std::string, std::string>, at::Tensor>;

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<double> scales;
  std::vector<int> skipped;
  std::vector<NamedHash> hashes;
  State state;            // of rank 0
  double evaluation = 0;  // sum of the losses of this rank's share of three batches
  uint64_t updates = 0;
  CollectiveCounts counts;  // of the shard group in the last step
};

std::unique_ptr<Model> NewModel(uint64_t seed, at::ScalarType type = at::kDouble) {
  return *trainyard::NewModel({.layers = 3, .heads = 2, .width = 16, .context = 8, .vocabulary = 33}, seed, type);
}

std::pair<at::Tensor, at::Tensor> MicroBatch(int64_t step, int64_t index) {
  at::Tensor tokens = at::empty({2, 9}, at::kLong);
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    // Nearly the same in all steps, so that there is something to learn.
    tokens.mutable_data_ptr<int64_t>()[i] = (index * 7 + i * i + (i % 5 == 0 ? step * 31 : 0)) % 33;
  }
  return {tokens.narrow(1, 0, 8).contiguous(), tokens.narrow(1, 1, 8).contiguous()};
}

absl::Status RunStep(int step, const Deal& deal, Model& model, DataParallel& strategy, double& loss_sum) {
  for (int64_t round = 0; round < deal.num_rounds; ++round) {
    const bool last = round + 1 == deal.num_rounds;
    if (round >= static_cast<int64_t>(deal.micro_batches.size())) {
      RETURN_IF_ERROR(strategy.RunEmptyRound(true, last));
      continue;
    }
    auto [inputs, targets] = MicroBatch(step, deal.micro_batches[round]);
    ASSIGN_OR_RETURN(at::Tensor loss, strategy.Forward([&, &inputs = inputs, &targets = targets] {
      return model.LossSum(inputs, targets, strategy, std::nullopt);
    }));
    loss_sum += loss.item<double>();
    RETURN_IF_ERROR(strategy.Backward(loss, last));
  }
  return strategy.FinishBackward();
}

absl::StatusOr<Outcome> RunRank(const Case& c, const Mesh& mesh, int rank, MemoryStore& store, const State* restored) {
  ASSIGN_OR_RETURN(auto groups, JoinMesh(mesh, 0, {.world_size = mesh.world_size(), .rank = rank, .store = &store}));
  // At first only rank 0 has the correct weights.
  std::unique_ptr<Model> model = NewModel(rank == 0 ? 1 : 99, c.type);
  for (const NamedTensor& parameter : model->parameters()) {
    for (const std::string& frozen : c.frozen) {
      if (parameter.name.starts_with(frozen)) parameter.tensor.requires_grad_(false);
    }
  }
  ASSIGN_OR_RETURN(auto strategy, Parallelize(*model, mesh, CommunicatorsOf(*groups), c.options));
  if (restored != nullptr) {
    auto source = [&](const StateEntry& entry, int64_t first, int64_t count, const at::Tensor& out) {
      out.copy_(restored->at({entry.role, entry.name}).view(-1).narrow(0, first, count));
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(strategy->state().Load(source));
    strategy->state().set_num_updates(2);
  }
  const Deal deal = DealStep(c.micro_batches, 1, mesh.DataRank(rank), mesh.num_data_ranks());
  Outcome outcome;
  for (int step = 1; step <= c.steps; ++step) {
    const CollectiveCounts before = groups->shard->counts();
    double loss_sum = 0;
    if (step == c.rejected_step && rank == mesh.world_size() - 1) strategy->RejectStep();
    strategy->BeginStep(static_cast<uint64_t>(c.micro_batches * 16));
    RETURN_IF_ERROR(RunStep(step, deal, *model, *strategy, loss_sum));
    ASSIGN_OR_RETURN(StepOutput output,
                     strategy->Step({.lr = 1e-2, .num_tokens = static_cast<uint64_t>(c.micro_batches * 16)}));
    outcome.losses.push_back(loss_sum);
    outcome.norms.push_back(output.gradient_norm);
    outcome.skipped.push_back(output.skipped);
    outcome.scales.push_back(output.loss_scale);
    outcome.counts = groups->shard->counts();
    for (const auto& [key, count] : before) {
      outcome.counts[key].operations -= count.operations;
      outcome.counts[key].elements -= count.elements;
    }
  }
  // Evaluation: a rank without a batch also takes part.
  {
    c10::NoGradGuard no_grad;
    const Deal batches = DealStep(3, 1, mesh.DataRank(rank), mesh.num_data_ranks());
    for (size_t round = 0; round < static_cast<size_t>(batches.num_rounds); ++round) {
      if (round >= batches.micro_batches.size()) {
        RETURN_IF_ERROR(strategy->RunEmptyRound(/*with_backward=*/false, /*last=*/false));
        continue;
      }
      auto [inputs, targets] = MicroBatch(99, batches.micro_batches[round]);
      ASSIGN_OR_RETURN(at::Tensor loss, strategy->Forward([&, &inputs = inputs, &targets = targets] {
        return model->LossSum(inputs, targets, *strategy, std::nullopt);
      }));
      outcome.evaluation += loss.item<double>();
    }
  }
  RETURN_IF_ERROR(strategy->state().Visit([&](const StateEntry& entry, const at::Tensor& values) {
    outcome.state[{entry.role, entry.name}] = values.detach().clone();
    return absl::OkStatus();
  }));
  ASSIGN_OR_RETURN(outcome.hashes, strategy->state().HashParameters());
  outcome.updates = strategy->state().num_updates();
  RETURN_IF_ERROR(groups->world->Barrier()->Wait());
  return outcome;
}

std::vector<Outcome> RunCase(const Case& c, const State* restored = nullptr) {
  const int world = c.shard * c.replicate;
  const Mesh mesh = *Mesh::Create({.dp_replicate = c.replicate, .dp_shard = c.shard}, world);
  MemoryStore store;
  std::vector<absl::StatusOr<Outcome>> results(world, absl::UnknownError("did not run"));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      results[rank] = RunRank(c, mesh, rank, store, restored);
      if (!results[rank].ok()) store.EndGeneration();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Outcome> outcomes;
  for (const auto& result : results) {
    EXPECT_TRUE(result.ok()) << c.name << ": " << result.status();
    if (result.ok()) outcomes.push_back(*result);
  }
  return outcomes.size() == results.size() ? outcomes : std::vector<Outcome>{};
}

// Returns the case with one rank, which does all the work; tests/parity compares such a rank with the oracle.
Case OnOneRank(Case c) {
  c.options = {.update = {.optimizer = c.options.update.optimizer, .clip_norm = c.options.update.clip_norm}};
  c.shard = c.replicate = 1;
  return c;
}

void ExpectSame(const std::vector<Outcome>& ranks, const Outcome& expected) {
  ASSERT_FALSE(ranks.empty());
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    double sum = 0;
    for (const Outcome& rank : ranks) sum += rank.losses[step];
    EXPECT_NEAR(sum, expected.losses[step], 1e-10 * expected.losses[step]) << "step " << step + 1;
    for (const Outcome& rank : ranks) EXPECT_EQ(rank.skipped[step], expected.skipped[step]);
    if (expected.skipped[step]) continue;
    EXPECT_NEAR(ranks[0].norms[step], expected.norms[step], 1e-8 * expected.norms[step]) << "step " << step + 1;
  }
  double evaluation = 0;
  for (const Outcome& rank : ranks) evaluation += rank.evaluation;
  EXPECT_NEAR(evaluation, expected.evaluation, 1e-8 * expected.evaluation);
  for (const Outcome& rank : ranks) {
    EXPECT_EQ(rank.hashes, ranks[0].hashes);
    EXPECT_EQ(rank.norms.back(), ranks[0].norms.back());
    EXPECT_EQ(rank.updates, expected.updates);
  }
  ASSERT_EQ(ranks[0].state.size(), expected.state.size());
  for (const auto& [key, tensor] : expected.state) {
    ASSERT_TRUE(ranks[0].state.contains(key)) << key.first << " " << key.second;
    EXPECT_TRUE(ranks[0].state.at(key).allclose(tensor, 1e-8, 1e-12)) << key.first << " " << key.second;
  }
}

ParallelOptions OptionsOf(Strategy strategy) {
  return {.data = {.strategy = strategy, .bucket_elements = 2000}, .update = {.clip_norm = 0.5}};
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  auto add = [&](std::string name, ParallelOptions options, int shard, int replicate, int64_t micro_batches) {
    cases.push_back({absl::StrCat(name, "_", micro_batches), options, shard, replicate, micro_batches});
  };
  ParallelOptions zero1_all = OptionsOf(Strategy::kZero1), waiting = OptionsOf(Strategy::kFsdp), kept = waiting,
                  plain = waiting, reduce_every = waiting, hsdp_reduce_every = OptionsOf(Strategy::kHsdp),
                  zero2_reduce_every = OptionsOf(Strategy::kZero2);
  zero1_all.data.reduce_scatter = false;
  waiting.data.overlap = false;
  kept.data.reshard_after_forward = false;
  plain.data.prefetch_elements = 0;
  reduce_every.data.reduce_every_micro_batch = hsdp_reduce_every.data.reduce_every_micro_batch =
      zero2_reduce_every.data.reduce_every_micro_batch = true;
  for (int64_t micro_batches : {2, 3, 5}) {  // one round, an uneven deal, and an uneven deal with accumulation
    add("ddp", OptionsOf(Strategy::kDdp), 1, 2, micro_batches);
    for (Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kZero3, Strategy::kFsdp}) {
      add(StrategyName(strategy), OptionsOf(strategy), 2, 1, micro_batches);
    }
    add("zero1_all_reduce", zero1_all, 2, 1, micro_batches);
    add("zero2_reduce_every", zero2_reduce_every, 2, 1, micro_batches);
    add("fsdp_without_overlap", waiting, 2, 1, micro_batches);
    add("fsdp_kept_gathered", kept, 2, 1, micro_batches);
    add("fsdp_without_prefetch", plain, 2, 1, micro_batches);
    add("fsdp_reduce_every", reduce_every, 2, 1, micro_batches);
    add("fsdp_of_three", OptionsOf(Strategy::kFsdp), 3, 1, micro_batches);
    add("hsdp", OptionsOf(Strategy::kHsdp), 2, 2, micro_batches);
  }
  add("hsdp_reduce_every", hsdp_reduce_every, 2, 2, 7);
  add("zero1_on_both_axes", OptionsOf(Strategy::kZero1), 2, 2, 7);
  add("zero2_on_both_axes", OptionsOf(Strategy::kZero2), 2, 2, 7);
  for (Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kFsdp}) {
    add(absl::StrCat(StrategyName(strategy), "_on_one_rank"), OptionsOf(strategy), 1, 1, 3);
    add(absl::StrCat(StrategyName(strategy), "_replicated"), OptionsOf(strategy), 1, 2, 3);
  }
  add("fsdp_reduce_every_on_one_rank", reduce_every, 1, 1, 3);
  return cases;
}

class StrategyOnRanks : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Ranks, StrategyOnRanks, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(StrategyOnRanks, HasTheNumbersOfOneRank) {
  static std::map<int64_t, Outcome> alone;
  const Case& c = GetParam();
  if (!alone.contains(c.micro_batches)) {
    std::vector<Outcome> outcome = RunCase(OnOneRank(c));
    ASSERT_FALSE(outcome.empty());
    alone[c.micro_batches] = outcome[0];
  }
  ExpectSame(RunCase(c), alone[c.micro_batches]);
}

TEST(Strategies, AStepThatOneRankRejectsIsSkippedByAll) {
  for (const auto& [strategy, shard, replicate] :
       std::vector<std::tuple<Strategy, int, int>>{{Strategy::kDdp, 1, 3},
                                                   {Strategy::kZero1, 3, 1},
                                                   {Strategy::kZero2, 3, 1},
                                                   {Strategy::kFsdp, 3, 1},
                                                   {Strategy::kHsdp, 2, 2},
                                                   {Strategy::kFsdp, 1, 2},
                                                   {Strategy::kFsdp, 1, 1}}) {
    // The last of several ranks has fewer micro-batches than others, so that its step ends with RunEmptyRound.
    Case c{StrategyName(strategy), OptionsOf(strategy), shard,         replicate,
           /*micro_batches=*/5,    /*steps=*/3,         /*rejected=*/2};
    SCOPED_TRACE(c.name);
    std::vector<Outcome> expected = RunCase(OnOneRank(c)), ranks = RunCase(c);
    ASSERT_FALSE(expected.empty());
    EXPECT_THAT(expected[0].skipped, testing::ElementsAre(0, 1, 0));
    EXPECT_EQ(expected[0].updates, 2u);
    ExpectSame(ranks, expected[0]);
  }
}

TEST(Strategies, FrozenParametersDoNotChange) {
  const std::unique_ptr<Model> initial = NewModel(1);
  for (const std::vector<std::string>& frozen :
       std::vector<std::vector<std::string>>{{"wte", "wpe", "h.0"}, {"h.1", "ln_f", "h.2.mlp"}}) {
    for (const auto& [strategy, shard, replicate] :
         std::vector<std::tuple<Strategy, int, int>>{{Strategy::kDdp, 1, 2},
                                                     {Strategy::kZero1, 2, 1},
                                                     {Strategy::kZero2, 2, 1},
                                                     {Strategy::kFsdp, 2, 1},
                                                     {Strategy::kHsdp, 2, 2}}) {
      Case c{StrategyName(strategy), OptionsOf(strategy), shard, replicate, /*micro_batches=*/3};
      c.frozen = frozen;
      SCOPED_TRACE(absl::StrCat(c.name, " without ", frozen[0]));
      std::vector<Outcome> expected = RunCase(OnOneRank(c)), ranks = RunCase(c);
      ASSERT_FALSE(expected.empty());
      ExpectSame(ranks, expected[0]);
      for (const NamedTensor& parameter : initial->parameters()) {
        const bool is_frozen = std::any_of(frozen.begin(), frozen.end(),
                                           [&](const std::string& start) { return parameter.name.starts_with(start); });
        EXPECT_EQ(ranks.at(0).state.at({kParameterRole, parameter.name}).equal(parameter.tensor), is_frozen)
            << parameter.name;
      }
    }
  }
}

TEST(Strategies, OtherLayoutsLoadTheStateOfAnFsdpJob) {
  Case first{"fsdp", OptionsOf(Strategy::kFsdp), 2, 1, 3, 2};
  Case whole = OnOneRank(first);
  whole.steps = 2;
  std::vector<Outcome> saved = RunCase(first), reference = RunCase(whole);
  ASSERT_FALSE(saved.empty() || reference.empty());
  Case alone = OnOneRank(first);
  std::vector<Outcome> expected = RunCase(alone, &reference[0].state);
  ASSERT_FALSE(expected.empty());
  for (const auto& [strategy, shard, replicate] :
       std::vector<std::tuple<Strategy, int, int>>{{Strategy::kDdp, 1, 2},
                                                   {Strategy::kZero1, 3, 1},
                                                   {Strategy::kZero2, 2, 1},
                                                   {Strategy::kFsdp, 3, 1},
                                                   {Strategy::kHsdp, 2, 2}}) {
    Case c{StrategyName(strategy), OptionsOf(strategy), shard, replicate, 3, 2};
    SCOPED_TRACE(c.name);
    ExpectSame(RunCase(c, &saved[0].state), expected[0]);
  }
}

TEST(Strategies, CommunicateAsPlanned) {
  auto operations = [](const Outcome& outcome, CollectiveKind kind) {
    auto it = outcome.counts.find({kind, at::kDouble});
    return it == outcome.counts.end() ? uint64_t{0} : it->second.operations;
  };
  // A root and three blocks; two rounds a step.
  auto run = [&](ParallelOptions options) { return RunCase({"counted", options, 2, 1, /*micro_batches=*/4, 2}).at(0); };
  Outcome fsdp = run(OptionsOf(Strategy::kFsdp));
  EXPECT_EQ(operations(fsdp, CollectiveKind::kAllGather), 2u * 6);
  EXPECT_EQ(operations(fsdp, CollectiveKind::kReduceScatter), 4u) << "each of the four units is reduced once per step";
  ParallelOptions kept = OptionsOf(Strategy::kFsdp);
  kept.data.reshard_after_forward = false;
  EXPECT_EQ(operations(run(kept), CollectiveKind::kAllGather), 2u * 4);
  ParallelOptions reduce_every = OptionsOf(Strategy::kFsdp);
  reduce_every.data.reduce_every_micro_batch = true;
  EXPECT_EQ(operations(run(reduce_every), CollectiveKind::kReduceScatter), 2u * 4);
  Outcome zero1 = run(OptionsOf(Strategy::kZero1));
  EXPECT_EQ(operations(zero1, CollectiveKind::kAllGather), operations(zero1, CollectiveKind::kReduceScatter));
  EXPECT_GT(operations(zero1, CollectiveKind::kAllGather), 2u);
}

// Compares all strategies with one rank under a precision policy. Sums are computed in a different order than on one
// rank, and rounded to 16 bits.
void ExpectPolicy(const Precision& precision, int steps, double tolerance) {
  for (int64_t micro_batches : {2, 5}) {
    Case alone{"alone", {.data = {.precision = precision}, .update = {.clip_norm = 0.5}}, 1, 1, micro_batches, steps};
    alone.type = at::kFloat;
    alone.options.update.loss_scale = {.initial = 0x1p40, .backoff = 0x1p-20, .hysteresis = 1};
    std::vector<Outcome> expected = RunCase(alone);
    ASSERT_FALSE(expected.empty());
    for (const auto& [strategy, shard, replicate, reduce_every] :
         std::vector<std::tuple<Strategy, int, int, bool>>{{Strategy::kDdp, 1, 2, false},
                                                           {Strategy::kZero1, 2, 1, false},
                                                           {Strategy::kZero2, 2, 1, false},
                                                           {Strategy::kZero2, 2, 1, true},
                                                           {Strategy::kFsdp, 3, 1, false},
                                                           {Strategy::kFsdp, 1, 1, true},
                                                           {Strategy::kFsdp, 1, 2, false},
                                                           {Strategy::kHsdp, 2, 2, true},
                                                           {Strategy::kHsdp, 2, 2, false}}) {
      Case c = alone;
      c.options.data.strategy = strategy;
      c.options.data.bucket_elements = 2000;
      c.options.data.reduce_every_micro_batch = reduce_every;
      c.shard = shard;
      c.replicate = replicate;
      SCOPED_TRACE(absl::StrCat(precision.ToString(), " ", StrategyName(strategy), " ", shard, "x", replicate, " of ",
                                micro_batches));
      std::vector<Outcome> ranks = RunCase(c);
      ASSERT_FALSE(ranks.empty());
      for (int step = 0; step < steps; ++step) {
        double sum = 0;
        for (const Outcome& rank : ranks) sum += rank.losses[step];
        EXPECT_NEAR(sum, expected[0].losses[step], tolerance * expected[0].losses[step]) << "step " << step + 1;
      }
      for (const Outcome& rank : ranks) {
        EXPECT_EQ(rank.skipped, expected[0].skipped);
        EXPECT_EQ(rank.scales, expected[0].scales);
        EXPECT_EQ(rank.hashes, ranks[0].hashes);
      }
      for (const auto& [key, tensor] : ranks[0].state) {
        const at::ScalarType type = key.first == kParameterRole ? precision.master : precision.state;
        EXPECT_EQ(tensor.scalar_type(), type) << key.first;
        // The bias of attention keys does not affect the loss, so its gradient is noise, from which AdamW makes steps
        // of full size.
        if (key.second.ends_with("c_attn.bias")) continue;
        EXPECT_TRUE(tensor.to(at::kFloat).allclose(expected[0].state.at(key).to(at::kFloat), 0.2, 0.02)) << key.second;
      }
    }
    const bool learns = expected[0].losses.back() < expected[0].losses.front();
    EXPECT_TRUE(learns) << "the loss did not decrease, so the comparison above proves little";
  }
}

TEST(Policies, Bf16WithMastersMatchesOneRank) { ExpectPolicy(*ParsePrecision("bf16"), 4, 1e-2); }

TEST(Policies, Bf16ReducedInBf16MatchesOneRank) { ExpectPolicy(*ParsePrecision({.param = "bf16"}), 4, 1e-2); }

TEST(Policies, Bf16WithoutMastersRoundsStochastically) {
  ExpectPolicy(*ParsePrecision({.param = "bf16", .master = "bf16", .state = "bf16"}), 4, 1e-2);
}

TEST(Policies, Fp16SkipsTheSameOverflowsOnAllRanks) { ExpectPolicy(*ParsePrecision("fp16"), 6, 1e-2); }

TEST(Policies, SendTheReduceType) {
  auto types = [](const Precision& precision, Strategy strategy, CollectiveKind kind) {
    Case c{"reduce_type", {.data = {.strategy = strategy, .precision = precision}}, 2, 1, 4, 2};
    c.type = at::kFloat;
    std::vector<at::ScalarType> found;
    for (const auto& [key, count] : RunCase(c).at(0).counts) {
      if (key.first == kind && count.operations > 0) found.push_back(key.second);
    }
    return found;
  };
  const Precision by_name = *ParsePrecision("bf16"), by_map = *ParsePrecision({.param = "bf16"});
  for (Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kFsdp}) {
    EXPECT_THAT(types(by_name, strategy, CollectiveKind::kAllGather), testing::ElementsAre(at::kBFloat16));
    EXPECT_THAT(types(by_name, strategy, CollectiveKind::kReduceScatter), testing::ElementsAre(at::kFloat));
    EXPECT_THAT(types(by_map, strategy, CollectiveKind::kReduceScatter), testing::ElementsAre(at::kBFloat16));
  }
}

TEST(Policies, StateSavedUnderMastersLoadsInOtherLayouts) {
  const Precision bf16 = *ParsePrecision("bf16");
  Case first{"saved", {.data = {.strategy = Strategy::kFsdp, .precision = bf16}}, 2, 1, 2, 2};
  first.type = at::kFloat;
  std::vector<Outcome> saved = RunCase(first);
  ASSERT_FALSE(saved.empty());
  for (const auto& [strategy, shard, replicate] : std::vector<std::tuple<Strategy, int, int>>{
           {Strategy::kDdp, 1, 2}, {Strategy::kZero1, 2, 1}, {Strategy::kFsdp, 3, 1}, {Strategy::kHsdp, 2, 2}}) {
    Case c = first;
    c.options.data.strategy = strategy;
    c.shard = shard;
    c.replicate = replicate;
    c.steps = 0;
    std::vector<Outcome> loaded = RunCase(c, &saved[0].state);
    ASSERT_FALSE(loaded.empty());
    EXPECT_EQ(loaded[0].hashes, saved[0].hashes) << StrategyName(strategy);
    for (const auto& [key, tensor] : saved[0].state) EXPECT_TRUE(loaded[0].state.at(key).equal(tensor)) << key.second;
  }
}

TEST(Strategies, AMeshOfAnotherSizeThanTheCommunicatorIsRefused) {
  auto single = NewSingleCommunicator();
  std::unique_ptr<Model> model = NewModel(1);
  const MeshCommunicators communicators{single.get(), single.get(), single.get(), single.get()};
  EXPECT_THAT(Parallelize(*model, *Mesh::Create({.dp_shard = 2}, 2), communicators, {}).status().message(),
              HasSubstr("the mesh holds 2 ranks in the job, but its communicator has 1"));
}

// A model that runs its units in a different order than it lists them.
class ReorderingModel final : public Model {
 public:
  ReorderingModel() {
    for (int i = 0; i < 3; ++i) {
      units_.push_back({.name = absl::StrCat("u", i), .first_parameter = i, .num_parameters = 1});
      parameters_.push_back({absl::StrCat("w", i), at::empty({4}, at::kDouble).fill_(1).requires_grad_(true)});
    }
  }
  at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor&, UnitHooks& hooks, std::optional<DropoutKey>,
                     const at::Tensor& = {}) override {
    hooks.BeforeRoot();
    at::Tensor x = inputs * parameters_[0].tensor;
    for (int unit : {2, 1}) {
      x = hooks.RunUnit(unit, x,
                        [this, unit](const at::Tensor& in, ProductTape*) { return in * parameters_[unit].tensor; });
    }
    return hooks.AfterRoot(x.sum());
  }
  at::Tensor Logits(const at::Tensor& inputs, UnitHooks&) override { return inputs; }
  int64_t context() const override { return 1; }
  int64_t vocabulary() const override { return 1; }
};

TEST(Strategies, TheFirstErrorIsReturnedByEveryLaterCall) {
  auto single = NewSingleCommunicator();
  ReorderingModel model;
  auto strategy = *Parallelize(model, *Mesh::Create({}, 1), {single.get(), single.get(), single.get(), single.get()},
                               {.data = {.strategy = Strategy::kFsdp}});
  at::Tensor x = at::empty({4}, at::kDouble).fill_(1);
  absl::Status status = strategy->Forward([&] { return model.LossSum(x, x, *strategy, {}); }).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(status.message(), HasSubstr("unit u2 runs where u1 is next"));
  EXPECT_EQ(strategy->FinishBackward(), status);
  EXPECT_EQ(strategy->RunEmptyRound(true, true), status);
  EXPECT_EQ(strategy->Step({}).status(), status);
}

}  // namespace
}  // namespace trainyard
