#include "spec/model_parallel_rules.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/plural.h"
#include "common/strict_yaml.h"
#include "common/yaml_schema.h"
#include "models/model_part.h"
#include "spec/choices.h"
#include "spec/job_layout.h"
#include "spec/model_sizes.h"
#include "spec/parallel_rules.h"

namespace trainyard {
namespace {

constexpr char kTensorKey[] = "parallel.tensor";
constexpr char kStagesKey[] = "parallel.pipeline.stages";
constexpr char kScheduleKey[] = "parallel.pipeline.schedule";
constexpr char kChunksKey[] = "parallel.pipeline.chunks_per_rank";
constexpr char kSplitKey[] = "parallel.pipeline.split";
constexpr size_t kSplitShown = 8;

class ModelParallelRules {
 public:
  ModelParallelRules(const v1::JobSpec& spec, uint64_t ranks, const Positions& positions, Problems* problems)
      : spec_(spec),
        parallel_(spec.parallel()),
        pipeline_(spec.parallel().pipeline()),
        layout_(LayoutOf(spec.parallel(), ranks)),
        ranks_(ranks),
        data_ranks_(KnownDataRanks(spec.parallel(), ranks, positions)),
        chunks_(ChunksPerRank(spec.parallel().pipeline())),
        kind_(KindOf(spec.parallel().pipeline().schedule())),
        positions_(positions),
        problems_(*problems) {}

  void CheckRanks() {
    const uint64_t copy = layout_.model_ranks();
    if (ranks_ == 0 || copy == 1 || ranks_ % copy == 0) return;
    std::vector<std::string> factors;
    uint64_t total = 1;
    const auto add = [&](absl::string_view name, uint64_t size) {
      if (size <= 1) return;
      factors.push_back(absl::StrCat(name, " ", size));
      total *= size;
    };
    add("stages", layout_.stages);
    add("tensor", layout_.tensor);
    if (ShardsOptimizerState(parallel_.data())) {
      add("shard", parallel_.shard());
      add("replicate", parallel_.replicate());
    }
    Error(layout_.stages > 1 ? kStagesKey : kTensorKey,
          absl::StrCat(absl::StrJoin(factors, " x "), factors.size() == 1 ? "" : absl::StrCat(" = ", total),
                       ", but the job has ", Plural(ranks_, "rank"),
                       "; choose sizes whose product divides the number of ranks, or resources.ranks ",
                       MultiplesAround(ranks_, total)));
  }

  void CheckModel() {
    if (!layout_.divides_model()) return;
    const v1::Model& model = spec_.train().model();
    if (model.family() == v1::MODEL_FAMILY_MLP) {
      for (const auto& [key, size] : {std::pair{kTensorKey, layout_.tensor}, {kStagesKey, layout_.stages}}) {
        if (size > 1) Error(key, absl::StrCat("is ", size, ", but a model of family mlp cannot be divided; choose 1"));
      }
      return;
    }
    if (model.layers() == 0 || model.heads() == 0 || model.width() == 0) return;
    const ModelSizes sizes = SizesOfModel(model);
    CheckTensor(sizes);
    CheckBlocks(sizes);
  }

  void CheckCombinations() {
    const v1::DataParallel data = parallel_.data();
    const bool invalid_tensor = !parallel_.has_tensor() && positions_.count(kTensorKey) > 0;
    if (parallel_.sequence() && layout_.tensor == 1 && !invalid_tensor) {
      Warning("parallel.sequence", "has no effect: parallel.tensor is 1, and only tensor ranks divide the sequence");
    }
    if (layout_.tensor > 1 && spec_.train().lora().rank() > 0) {
      Error(kTensorKey,
            absl::StrCat("is ", layout_.tensor, ", but adapters (train.lora) cannot be divided among tensor ",
                         "ranks; choose 1, and parallel.pipeline or parallel.data to use several ranks"));
    }
    if (layout_.divides_model()) CheckFiles();
    if (layout_.divides_model() && spec_.train().data().uneven() == v1::UNEVEN_DATA_JOIN) {
      Error("train.data.uneven",
            absl::StrCat("is join, but the ranks of ", layout_.stages > 1 ? "a pipeline" : "tensor parallelism",
                         " compute parts of the same samples, so all hosts need the same files; choose refuse"));
    }
    if (layout_.stages == 1) return;
    if (ShardsParameters(data)) {
      Warning(
          "parallel.data",
          absl::StrCat(StrategyName(data), " gathers the parameters of a stage once per step and keeps them until the ",
                       "update, so that between steps it saves as much memory as without a pipeline, and during a ",
                       "step no more than zero1"));
      WarnOfGatherKeys();
    } else if (data == v1::DATA_PARALLEL_ZERO2) {
      Warning("parallel.data",
              "zero2 saves memory in a pipeline only if the gradients are reduced after each micro-batch, which is not "
              "supported: during a step they are whole; zero1 needs the same memory and communicates less often");
    }
    if (parallel_.reduce_every_micro_batch() && ShardsGradients(data)) {
      Warning("parallel.reduce_every_micro_batch",
              "has no effect: the gradients of a pipeline are reduced once per step");
    }
  }

  void CheckSchedule() {
    if (layout_.stages == 1) return WarnOfOneStage();
    bool valid = true;
    if (kind_ == ScheduleKind::kInterleaved && chunks_ == 1) {
      valid = Error(kChunksKey,
                    "is 1, but the schedule interleaved needs 2 or more chunks on each rank; with 1 it would be 1f1b");
    } else if (kind_ != ScheduleKind::kInterleaved && chunks_ > 1) {
      valid = Error(kChunksKey, absl::StrCat("is ", chunks_, ", but the schedule ", ScheduleName(kind_),
                                             " has 1 chunk on each rank; choose 1, or the schedule interleaved"));
    } else if (chunks_ > kMaxChunksPerRank) {
      valid = Error(kChunksKey, absl::StrCat("must be at most ", kMaxChunksPerRank, "; found ", chunks_));
    }
    const uint64_t rounds = CheckCounts(valid);
    if (rounds == 0 || rounds >= layout_.stages) return;
    const PipelineShape shape = ShapeFor(rounds);
    Warning(BatchKey(),
            absl::StrFormat("each pipeline has %s for %d stages, so a rank is idle for %.0f %% of a step; choose a "
                            "smaller micro-batch or a larger global batch, for %d or more micro-batches",
                            Plural(rounds, "micro-batch", "micro-batches"), layout_.stages,
                            100 * EstimatePipeline(valid ? kind_ : ScheduleKind::kOneForwardOneBackward, shape).bubble,
                            kAutoRoundsPerStage * layout_.stages));
  }

 private:
  void CheckTensor(const ModelSizes& sizes) {
    const int64_t tensor = static_cast<int64_t>(layout_.tensor);
    if (tensor == 1) return;
    const bool is_llama = IsLlamaGraph(sizes.family);
    const int64_t common = is_llama ? std::gcd(sizes.heads, sizes.kv_heads) : sizes.heads;
    std::vector<std::string> undivided;
    if (sizes.heads % tensor != 0) undivided.push_back(absl::StrCat(sizes.heads, " attention heads"));
    if (is_llama && sizes.kv_heads % tensor != 0) {
      undivided.push_back(absl::StrCat(sizes.kv_heads, " heads of keys and values"));
    }
    if (!undivided.empty()) {
      Error(kTensorKey,
            absl::StrCat("is ", tensor, ", which does not divide the model's ", absl::StrJoin(undivided, " and "),
                         "; choose ", Choices(DivisorsNear(static_cast<uint64_t>(common), layout_.tensor))));
    }
    const int64_t inner = is_llama ? sizes.inner : 4 * sizes.width;
    for (const auto& [name, size] :
         {std::pair{"tokens in the vocabulary", sizes.vocabulary}, {"hidden units in an MLP", inner}}) {
      if (size >= tensor) continue;
      Error(kTensorKey, absl::StrCat("is ", tensor, ", more than the ", size, " ", name, "; choose at most ", size));
    }
    if (sizes.dropout > 0 && spec_.resources().device() == v1::DEVICE_CUDA) {
      Error(kTensorKey, absl::StrCat("is ", tensor, ", which on a GPU cannot be combined with dropout in attention ",
                                     "(train.model.dropout ", sizes.dropout, "); choose dropout 0 or device cpu"));
    }
  }

  void CheckBlocks(const ModelSizes& sizes) {
    if (layout_.stages == 1 || chunks_ > kMaxChunksPerRank) return;
    const int64_t chunks = static_cast<int64_t>(layout_.stages * chunks_);
    const std::string product = chunks_ == 1 ? Plural(layout_.stages, "stage")
                                             : absl::StrCat("stages ", layout_.stages, " x chunks_per_rank ", chunks_,
                                                            " = ", chunks, " chunks");
    if (chunks > sizes.layers) {
      Error(chunks_ > 1 && layout_.stages <= static_cast<uint64_t>(sizes.layers) ? kChunksKey : kStagesKey,
            absl::StrCat("the model has ", Plural(static_cast<uint64_t>(sizes.layers), "block"), ", but a pipeline of ",
                         product, " needs at least one in each; choose at most ",
                         sizes.layers / static_cast<int64_t>(chunks_), " stages",
                         chunks_ > 1 ? ", or fewer chunks" : ""));
      return;
    }
    if (pipeline_.split().empty()) return;
    const uint64_t sum = std::accumulate(pipeline_.split().begin(), pipeline_.split().end(), uint64_t{0});
    const bool any_empty = std::find(pipeline_.split().begin(), pipeline_.split().end(), 0u) != pipeline_.split().end();
    if (pipeline_.split_size() == chunks && sum == static_cast<uint64_t>(sizes.layers) && !any_empty) return;
    std::vector<std::string> numbers;
    for (const uint32_t each : pipeline_.split()) numbers.push_back(absl::StrCat(each));
    const bool is_long = numbers.size() > kSplitShown;
    Error(kSplitKey, absl::StrCat("expected ", chunks, " numbers above 0, one for each of ", product, ", with the sum ",
                                  sizes.layers, ", the number of blocks; found ",
                                  is_long ? Plural(numbers.size(), "number") : absl::StrJoin(numbers, " + "),
                                  is_long              ? absl::StrCat(" with the sum ", sum)
                                  : numbers.size() > 1 ? absl::StrCat(" = ", sum)
                                                       : "",
                                  any_empty ? ", of which at least one is 0" : ""));
  }

  // CheckParallel warns of the keys that have no effect on one data rank.
  void WarnOfGatherKeys() {
    for (const char* key : {"reshard_after_forward", "prefetch_elements", "max_live_elements", "reuse_elements"}) {
      const auto* field = v1::Parallel::descriptor()->FindFieldByName(key);
      const bool is_given = parallel_.GetReflection()->HasField(parallel_, field);
      if (data_ranks_ == 1 || !is_given || yaml::HasDefaultValue(parallel_, *field)) continue;
      Warning(absl::StrCat("parallel.", key), "has no effect: a pipeline keeps parameters gathered during a step");
    }
  }

  // Checks the keys for files that one rank writes for the whole model.
  void CheckFiles() {
    const v1::Checkpoint& checkpoint = spec_.checkpoint();
    const char* what = layout_.stages > 1 ? "a pipeline" : "tensor parallelism";
    if (checkpoint.format() == v1::CHECKPOINT_FORMAT_FULL) {
      Error("checkpoint.format", absl::StrCat("is full, which is not supported with ", what,
                                              " yet; choose sharded, from which `trainctl checkpoint export` makes one "
                                              "file"));
    }
    if (checkpoint.weights_copy() == v1::WEIGHTS_COPY_BF16 || checkpoint.weights_copy() == v1::WEIGHTS_COPY_FP16) {
      Error("checkpoint.weights_copy", absl::StrCat("is not supported with ", what, " yet; choose none"));
    }
  }

  void WarnOfOneStage() {
    constexpr char kOneStage[] = "has no effect: parallel.pipeline.stages is 1";
    if (positions_.count(kStagesKey) > 0 && !pipeline_.has_stages()) return;  // its value was invalid
    if (pipeline_.has_schedule() && pipeline_.schedule() != v1::PIPELINE_SCHEDULE_1F1B)
      Warning(kScheduleKey, kOneStage);
    if (pipeline_.has_chunks_per_rank() && pipeline_.chunks_per_rank() != 1) Warning(kChunksKey, kOneStage);
    if (pipeline_.split_size() > 0) Warning(kSplitKey, kOneStage);
  }

  // Returns the micro-batches of the pipeline that has the most; 0 if they are unknown. If `valid`, checks that the
  // schedule can take the numbers of micro-batches that the pipelines have.
  uint64_t CheckCounts(bool valid) {
    const v1::Batch& batch = spec_.train().batch();
    const uint64_t micro = DecidedMicro(spec_, data_ranks_);
    if (micro == 0 || batch.global_size() % micro != 0) return 0;
    const DealShape deal = DealShapeOf(batch.global_size(), micro, data_ranks_);
    if (!valid) return deal.rounds;
    const uint64_t forwards = layout_.stages * chunks_ * deal.rounds;
    if (forwards > static_cast<uint64_t>(kMaxScheduledForwards)) {
      Error(BatchKey(),
            absl::StrCat("a step would have ", layout_.stages, " stages x ", chunks_,
                         chunks_ == 1 ? " chunk" : " chunks", " x ", deal.rounds, " micro-batches = ", forwards,
                         " forward passes in each pipeline, more than ", "the ", kMaxScheduledForwards,
                         " that this program supports; choose a larger micro-batch"));
      return deal.rounds;
    }
    // The other schedules accept every number of micro-batches.
    if (kind_ != ScheduleKind::kInterleaved) return deal.rounds;
    std::vector<uint64_t> counts = {deal.rounds};
    if (deal.idle > 0 && deal.rounds > 1) counts.push_back(deal.rounds - 1);
    for (const uint64_t count : counts) {
      const absl::Status made = MakeSchedule(kind_, ShapeFor(count)).status();
      if (!made.ok()) Error(BatchKey(), absl::StrCat(BatchText(micro, deal), ", but the ", made.message()));
    }
    return deal.rounds;
  }

  // "gives each pipeline 5 micro-batches (2 x 5 x 2 = 20)".
  std::string BatchText(uint64_t micro, const DealShape& deal) const {
    return absl::StrCat("gives each pipeline ", deal.idle == 0 ? "" : "up to ",
                        Plural(deal.rounds, "micro-batch", "micro-batches"), " (",
                        BatchProduct(micro, deal.rounds, data_ranks_), ")");
  }

  PipelineShape ShapeFor(uint64_t micro_batches) const {
    return {.stages = static_cast<int>(layout_.stages),
            .chunks_per_rank = static_cast<int>(chunks_),
            .micro_batches = static_cast<int>(std::min<uint64_t>(micro_batches, std::numeric_limits<int>::max()))};
  }

  const char* BatchKey() const {
    return spec_.train().batch().has_micro() ? "train.batch.micro" : "train.batch.global";
  }
  static std::string StrategyName(v1::DataParallel data) {
    const auto* value = v1::DataParallel_descriptor()->FindValueByNumber(data);
    return value == nullptr ? absl::StrCat(static_cast<int>(data)) : EnumName(*value);
  }
  // Returns false, so that a caller can assign it to `valid`.
  bool Error(absl::string_view key, absl::string_view text) {
    problems_.AddError(positions_, key, text);
    return false;
  }
  void Warning(absl::string_view key, absl::string_view text) { problems_.AddWarning(positions_, key, text); }

  const v1::JobSpec& spec_;
  const v1::Parallel& parallel_;
  const v1::Pipeline& pipeline_;
  const JobLayout layout_;
  const uint64_t ranks_;
  const uint64_t data_ranks_;
  const uint64_t chunks_;
  const ScheduleKind kind_;
  const Positions& positions_;
  Problems& problems_;
};

}  // namespace

void CheckModelParallel(const v1::JobSpec& spec, uint64_t ranks, const Positions& positions, Problems* problems) {
  ModelParallelRules rules(spec, ranks, positions, problems);
  rules.CheckRanks();
  rules.CheckModel();
  rules.CheckCombinations();
  rules.CheckSchedule();
}

uint64_t KnownDataRanks(const v1::Parallel& parallel, uint64_t ranks, const Positions& positions) {
  const bool invalid_tensor = !parallel.has_tensor() && positions.count(kTensorKey) > 0;
  const bool invalid_stages = !parallel.pipeline().has_stages() && positions.count(kStagesKey) > 0;
  const JobLayout layout = LayoutOf(parallel, ranks);
  if (ranks == 0 || invalid_tensor || invalid_stages || ranks % layout.model_ranks() != 0) return 0;
  return layout.data_ranks();
}

}  // namespace trainyard
