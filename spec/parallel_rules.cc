#include "spec/parallel_rules.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/plural.h"
#include "common/strict_yaml.h"
#include "common/yaml_schema.h"
#include "models/model_part.h"
#include "spec/choices.h"
#include "spec/job_layout.h"

namespace trainyard {
namespace {

std::string NameOf(v1::DataParallel strategy) {
  const auto* value = v1::DataParallel_descriptor()->FindValueByNumber(std::max<int>(strategy, v1::DATA_PARALLEL_DDP));
  return value == nullptr ? absl::StrCat(static_cast<int>(strategy)) : EnumName(*value);
}

class ParallelRules {
 public:
  ParallelRules(const v1::JobSpec& spec, uint64_t data_ranks, const Positions& positions, Problems* problems)
      : spec_(spec),
        parallel_(spec.parallel()),
        layout_(LayoutOf(spec.parallel(), 1)),
        ranks_(data_ranks),
        strategy_name_(NameOf(parallel_.data())),
        positions_(positions),
        problems_(*problems) {}

  // Returns whether the sizes of the data axes are valid for the number of data ranks.
  bool CheckSizes() {
    const uint64_t shard = parallel_.shard(), replicate = parallel_.replicate();
    if (ranks_ == 0) return false;
    if (!ShardsOptimizerState(parallel_.data())) {
      for (const char* key : {"shard", "replicate"})
        NoEffect(key, "ddp shards nothing: every rank holds the whole state");
      return true;
    }
    if (parallel_.data() == v1::DATA_PARALLEL_HSDP && shard == 0 && replicate == 0) {
      return Error(
          "data",
          absl::StrCat(
              "is hsdp, which shards each copy of the state over `shard` ranks and has `replicate` copies; give ",
              "one of the two sizes: parallel.shard ", Choices(DivisorsNear(ranks_, 2)), " for ", RanksText()));
    }
    if (shard > ranks_) {
      return Error("shard", absl::StrCat("is ", shard, ", but the job has ", RanksText(), "; choose shard ",
                                         Choices(DivisorsNear(ranks_, ranks_)), " or ranks ",
                                         Times(shard * std::max(replicate, uint64_t{1}))));
    }
    if (shard > 0 && replicate > 0) {
      if (shard * replicate == ranks_) return true;
      const uint64_t product = Times(shard * replicate);
      return Error("shard",
                   absl::StrCat(ModelFactors(), "shard ", shard, " x replicate ", replicate, " = ", product,
                                ", but the job has ", Plural(Times(ranks_), "rank"),
                                "; choose sizes whose product is the number of ranks, or resources.ranks ", product));
    }
    return CheckDivides("shard", shard) && CheckDivides("replicate", replicate);
  }

  void WarnOfUnusedKeys() {
    const v1::DataParallel data = parallel_.data();
    if (ranks_ == 1) {
      const char* one_rank = layout_.divides_model() ? "one data rank" : "one rank";
      for (const char* key : {"bucket_elements", "gather_bucket_elements", "overlap", "reshard_after_forward",
                              "reduce_scatter", "all_gather", "persist_elements", "reduce_every_micro_batch"}) {
        NoEffect(key, absl::StrCat("a job of ", one_rank, " reduces nothing"));
      }
      // Offloaded shards are copied to the device block by block even on one rank.
      if (parallel_.offload().parameters() && ShardsParameters(data)) return;
      for (const char* key : {"prefetch_elements", "max_live_elements", "reuse_elements"}) {
        NoEffect(key, absl::StrCat("a job of ", one_rank, " gathers nothing"));
      }
      return;
    }
    if (!ShardsParameters(data)) {
      for (const char* key :
           {"reshard_after_forward", "prefetch_elements", "max_live_elements", "reuse_elements", "persist_elements"}) {
        NoEffect(key, absl::StrCat(strategy_name_, " holds the parameters whole on every rank"));
      }
    } else {
      for (const char* key : {"bucket_elements", "gather_bucket_elements", "reduce_scatter"}) {
        NoEffect(key, absl::StrCat(strategy_name_, " communicates block by block"));
      }
      // Parameters that stay gathered are gathered once per step.
      const bool persists =
          parallel_.has_persist_elements() ? parallel_.persist_elements() > 0 : data == v1::DATA_PARALLEL_ZERO3;
      if (!persists) NoEffect("all_gather", absl::StrCat(strategy_name_, " communicates block by block"));
    }
    if (!ShardsOptimizerState(data)) {
      for (const char* key : {"gather_bucket_elements", "reduce_scatter", "all_gather"}) {
        NoEffect(key, "ddp all-reduces gradients and gathers nothing");
      }
    }
    if (ShardsOptimizerState(data) && !ShardsParameters(data) && parallel_.has_overlap() && !parallel_.overlap()) {
      NoEffect("gather_bucket_elements", "overlap is false: each all-gather ends before the next one begins");
    }
    if (!ShardsGradients(data)) {
      NoEffect("reduce_every_micro_batch", absl::StrCat(strategy_name_, " keeps the gradients whole on every rank"));
    } else if (NumRounds() == 1) {
      NoEffect("reduce_every_micro_batch", "a step is one micro-batch on each rank");
    }
    if (ShardsParameters(data) && parallel_.has_overlap() && !parallel_.overlap()) {
      NoEffect("prefetch_elements", "overlap is false: nothing is gathered ahead");
    }
  }

  void CheckOffload() {
    if (!parallel_.offload().parameters() || ShardsParameters(parallel_.data())) return;
    problems_.AddWarning(
        positions_, "parallel.offload.parameters",
        absl::StrCat("has no effect: ", strategy_name_, " needs the parameters whole on every rank all the time"));
  }

  void CheckRecompute() {
    const v1::Recompute& recompute = parallel_.recompute();
    if (recompute.every() <= 1) return;
    if (recompute.mode() != v1::RECOMPUTE_MODE_BLOCKS && recompute.mode() != v1::RECOMPUTE_MODE_SELECTIVE) {
      problems_.AddWarning(positions_, "parallel.recompute.every",
                           "has no effect: parallel.recompute.mode is none, so nothing is recomputed");
      return;
    }
    const uint64_t blocks = BlocksOfRank();
    if (blocks == 0 || recompute.every() <= blocks) return;
    problems_.AddWarning(positions_, "parallel.recompute.every",
                         absl::StrCat("is ", recompute.every(), ", but ",
                                      layout_.stages > 1 ? "a stage of the pipeline has at most " : "the model has ",
                                      Plural(blocks, "block"), ", so none is recomputed; choose 1 to ", blocks));
  }

  // REQUIRES: CheckSizes found no error.
  void CheckReshard() {
    const uint64_t group = parallel_.reshard_after_forward(), shard = DataSizesOf(parallel_, ranks_).shard;
    if (group < 2 || !ShardsParameters(parallel_.data()) || shard % group == 0) return;
    Error("reshard_after_forward",
          absl::StrCat("is ", group, ", which does not divide the ", shard,
                       " ranks that share a copy; choose true, false or ", Choices(DivisorsNear(shard, group))));
  }

 private:
  // Returns the micro-batches per step of the rank with the most; 0 if the sizes are invalid or unknown.
  uint64_t NumRounds() const {
    const uint64_t global = spec_.train().batch().global_size(), micro = DecidedMicro(spec_, ranks_);
    return micro == 0 || global % micro != 0 ? 0 : DealShapeOf(global, micro, ranks_).rounds;
  }

  // Returns the blocks of the rank that holds the most; 0 if they are unknown, or the stages do not fit the model.
  uint64_t BlocksOfRank() const {
    const uint64_t layers = spec_.train().model().layers(), stages = layout_.stages;
    if (stages == 1) return layers;
    const v1::Pipeline& pipeline = parallel_.pipeline();
    const uint64_t chunks = stages * ChunksPerRank(pipeline);
    if (chunks > layers) return 0;
    const absl::StatusOr<std::vector<int64_t>> blocks =
        SplitBlocks(static_cast<int64_t>(layers), static_cast<int>(chunks),
                    std::vector<int>(pipeline.split().begin(), pipeline.split().end()));
    if (!blocks.ok()) return 0;
    // Chunk c of the model belongs to stage c % stages.
    std::vector<int64_t> of_stage(stages);
    for (size_t chunk = 0; chunk < blocks->size(); ++chunk) of_stage[chunk % stages] += (*blocks)[chunk];
    return static_cast<uint64_t>(*std::max_element(of_stage.begin(), of_stage.end()));
  }

  bool CheckDivides(const char* key, uint64_t size) {
    if (size == 0 || ranks_ % size == 0) return true;
    const uint64_t times = ranks_ / size;
    return Error(key, absl::StrCat("is ", size, ", which does not divide the job's ", RanksText(), ": ", size, " x ",
                                   times, " = ", size * times, ", ", size, " x ", times + 1, " = ", size * (times + 1),
                                   "; choose ", Choices(DivisorsNear(ranks_, size)), " or ranks ",
                                   MultiplesAround(Times(ranks_), Times(size))));
  }

  uint64_t Times(uint64_t data_ranks) const { return layout_.model_ranks() * data_ranks; }
  // "stages 2 x tensor 4 x ".
  std::string ModelFactors() const {
    return absl::StrCat(layout_.stages > 1 ? absl::StrCat("stages ", layout_.stages, " x ") : "",
                        layout_.tensor > 1 ? absl::StrCat("tensor ", layout_.tensor, " x ") : "");
  }
  // "4 data ranks (stages 2 x 4 = 8 ranks)".
  std::string RanksText() const {
    if (!layout_.divides_model()) return Plural(ranks_, "rank");
    return absl::StrCat(Plural(ranks_, "data rank"), " (", ModelFactors(), ranks_, " = ", Times(ranks_), " ranks)");
  }

  bool Error(absl::string_view key, absl::string_view text) {
    problems_.AddError(positions_, absl::StrCat("parallel.", key), text);
    return false;
  }
  // Adds a warning if the key was given with another value than its default.
  void NoEffect(const char* key, absl::string_view why) {
    const auto* field = v1::Parallel::descriptor()->FindFieldByName(key);
    if (!parallel_.GetReflection()->HasField(parallel_, field)) return;
    if (yaml::HasDefaultValue(parallel_, *field)) return;  // the default has the same meaning as no value
    problems_.AddWarning(positions_, absl::StrCat("parallel.", key), absl::StrCat("has no effect: ", why));
  }

  const v1::JobSpec& spec_;
  const v1::Parallel& parallel_;
  const JobLayout layout_;  // for its stages and tensor ranks
  const uint64_t ranks_;    // data ranks
  const std::string strategy_name_;
  const Positions& positions_;
  Problems& problems_;
};

// Example: 24 sequences in micro-batches of 3 are 8 micro-batches. On 3 ranks they take 3 rounds, and in the last round
// one rank is idle.
void WarnOfIdleRanks(const v1::JobSpec& spec, uint64_t micro, uint64_t data_ranks, const Positions& positions,
                     Problems* problems) {
  const v1::Batch& batch = spec.train().batch();
  const JobLayout layout = LayoutOf(spec.parallel(), 1);
  const DealShape deal = DealShapeOf(batch.global_size(), micro, data_ranks);
  if (deal.idle == 0) return;
  const double share = 100.0 * static_cast<double>(deal.idle) / static_cast<double>(deal.rounds * data_ranks);
  std::vector<uint64_t> choices = DivisorsNear(deal.micro_batches, data_ranks);
  for (uint64_t& each : choices) each *= layout.model_ranks();
  problems->AddWarning(
      positions, batch.has_micro() ? "train.batch.micro" : "train.batch.global",
      absl::StrFormat("global %d / micro %d = %d micro-batches leave the %d %s idle for %.0f %% of a step's "
                      "computation%s; choose ranks %s or global %s",
                      batch.global_size(), micro, deal.micro_batches, data_ranks,
                      layout.divides_model() ? "data ranks" : "ranks", share,
                      layout.divides_model() ? absl::StrCat(" (", BatchProduct(micro, deal.rounds, data_ranks),
                                                            ", not ", batch.global_size(), ")")
                                             : "",
                      Choices(choices), MultiplesAround(batch.global_size(), micro * data_ranks)));
}

MicroGoal GoalOf(const v1::Pipeline& pipeline) {
  const uint64_t stages = std::max(pipeline.stages(), 1u);
  if (stages == 1) return {};
  return {.rounds = kAutoRoundsPerStage * stages,
          .multiple = pipeline.schedule() == v1::PIPELINE_SCHEDULE_INTERLEAVED ? stages : 1};
}

}  // namespace

bool ShardsParameters(v1::DataParallel strategy) {
  return strategy == v1::DATA_PARALLEL_ZERO3 || strategy == v1::DATA_PARALLEL_FSDP ||
         strategy == v1::DATA_PARALLEL_HSDP;
}
bool ShardsGradients(v1::DataParallel strategy) {
  return strategy == v1::DATA_PARALLEL_ZERO2 || ShardsParameters(strategy);
}
bool ShardsOptimizerState(v1::DataParallel strategy) {
  return strategy == v1::DATA_PARALLEL_ZERO1 || ShardsGradients(strategy);
}

DataSizes DataSizesOf(const v1::Parallel& parallel, uint64_t data_ranks) {
  if (!ShardsOptimizerState(parallel.data())) return {.shard = 1, .replicate = data_ranks};
  if (parallel.shard() > 0) return {.shard = parallel.shard(), .replicate = data_ranks / parallel.shard()};
  if (parallel.replicate() > 0) return {.shard = data_ranks / parallel.replicate(), .replicate = parallel.replicate()};
  return {.shard = data_ranks, .replicate = 1};
}

DealShape DealShapeOf(uint64_t global, uint64_t micro, uint64_t data_ranks) {
  DealShape deal{.micro_batches = global / micro};
  deal.rounds = (deal.micro_batches + data_ranks - 1) / data_ranks;
  deal.idle = deal.rounds * data_ranks - deal.micro_batches;
  return deal;
}

uint64_t AutoMicro(uint64_t global, uint64_t data_ranks, const MicroGoal& goal) {
  const auto misses = [&](const DealShape& deal) {
    const bool divides = goal.multiple == 1 || (deal.idle == 0 && deal.rounds % goal.multiple == 0);
    return std::pair(!divides, goal.rounds - std::min(deal.rounds, goal.rounds));
  };
  uint64_t best = 1;
  for (uint64_t d : DivisorsOf(global)) {
    const DealShape candidate = DealShapeOf(global, d, data_ranks), current = DealShapeOf(global, best, data_ranks);
    const auto misses_now = misses(current), would_miss = misses(candidate);
    if (would_miss > misses_now) continue;
    // Compares the shares of idle time without division; if they are equal, the larger micro-batch wins.
    const bool idles_less = candidate.idle * current.rounds <= current.idle * candidate.rounds;
    if (would_miss < misses_now || idles_less) best = d;
  }
  return best;
}

uint64_t DecidedMicro(const v1::JobSpec& spec, uint64_t data_ranks) {
  const v1::Batch& batch = spec.train().batch();
  if (batch.global_size() == 0 || data_ranks == 0) return 0;
  if (batch.has_micro()) return batch.micro();
  return AutoMicro(batch.global_size(), data_ranks, GoalOf(spec.parallel().pipeline()));
}

void CheckParallel(const v1::JobSpec& spec, uint64_t data_ranks, const Positions& positions, Problems* problems) {
  ParallelRules rules(spec, data_ranks, positions, problems);
  if (rules.CheckSizes()) rules.CheckReshard();
  rules.WarnOfUnusedKeys();
  rules.CheckRecompute();
  rules.CheckOffload();
}

void CheckBatch(const v1::JobSpec& spec, uint64_t data_ranks, const Positions& positions, Problems* problems) {
  const uint64_t global = spec.train().batch().global_size(), micro = DecidedMicro(spec, data_ranks);
  if (micro == 0) return;
  if (global % micro == 0) return WarnOfIdleRanks(spec, micro, data_ranks, positions, problems);
  if (LayoutOf(spec.parallel(), 1).stages > 1) {
    const uint64_t rounds = global / (micro * data_ranks);
    problems->AddError(
        positions, "train.batch.micro",
        absl::StrCat("micro x micro-batches of a pipeline x data ranks must equal global, ", global, ": ",
                     rounds == 0 ? "" : absl::StrCat(BatchProduct(micro, rounds, data_ranks), ", "),
                     BatchProduct(micro, rounds + 1, data_ranks), "; choose micro ",
                     Choices(DivisorsNear(global, micro)), " or global ", MultiplesAround(global, micro * data_ranks)));
    return;
  }
  uint64_t times = global / micro;
  problems->AddError(positions, "train.batch.micro",
                     absl::StrCat("global ", global, " is not a multiple of micro ", micro, ": ",
                                  times == 0 ? "" : absl::StrCat(micro, " x ", times, " = ", micro * times, ", "),
                                  micro, " x ", times + 1, " = ", micro * (times + 1), "; choose micro ",
                                  Choices(DivisorsNear(global, micro)), " or global ", MultiplesAround(global, micro)));
}

}  // namespace trainyard
