#include "spec/memory_plan.h"

#include <algorithm>
#include <vector>

#include "models/head_loss_limits.h"
#include "models/model_description.h"
#include "models/model_part.h"
#include "spec/freeze_rules.h"
#include "spec/job_layout.h"
#include "spec/model_sizes.h"
#include "spec/parallel_rules.h"
#include "spec/precision_rules.h"

namespace trainyard {
namespace {

struct UnitElements {
  uint64_t all = 0, trained = 0;
};

// The elements of each unit of a part of the model; 0 is the root.
std::vector<UnitElements> CountUnits(const v1::Train& train, const PartDescription& part) {
  std::vector<UnitElements> units;
  for (const PartUnit& unit : part.units) {
    UnitElements& count = units.emplace_back();
    for (int i = 0; i < unit.num_parameters; ++i) {
      const PartParameter& parameter = part.parameters[static_cast<size_t>(unit.first_parameter + i)];
      uint64_t elements = 1;
      for (int64_t size : parameter.shape) elements *= static_cast<uint64_t>(size);
      count.all += elements;
      if (IsTrained(train, parameter.name)) count.trained += elements;
    }
  }
  return units;
}

uint64_t DividedUp(uint64_t size, uint64_t ranks) { return (size + ranks - 1) / ranks; }

// The elements that a block stores per token on each tensor rank: its input and the norm of its input, the inputs and
// the output of attention, the sum after attention and the norm of that sum, and the inside of the MLP. Tensor ranks
// divide the inputs and the output of attention and the inside of the MLP. With parallel.sequence they also divide the
// rest, so that each rank has the rows of its part.
struct BlockElements {
  uint64_t input = 0;   // of a block: its width, or this rank's share of it
  uint64_t stored = 0;  // without recompute
  // The outputs of matrix products among `stored`, which selective recompute keeps. The last product of the block is
  // not counted, because it is part of the input of the next block.
  uint64_t products = 0;
  uint64_t passing = 0;  // with adapters or dropout: what the block needs in addition for a short time
};

BlockElements ElementsPerToken(const ModelSizes& sizes, uint64_t tensor, bool divides_sequence) {
  const uint64_t width = static_cast<uint64_t>(sizes.width), part = DividedUp(width, tensor);
  // A layer of a classifier stores its input. ReLU overwrites the product, which then is the input of the next layer.
  if (sizes.family == ModelFamily::kMlp) return {.input = width, .stored = width, .products = 0};
  const uint64_t input = divides_sequence ? part : width;
  if (!IsLlamaGraph(sizes.family)) {
    return {.input = input, .stored = 4 * input + 12 * part, .products = input + 7 * part};
  }
  const uint64_t q = DividedUp(static_cast<uint64_t>(sizes.heads * sizes.head_width), tensor);
  const uint64_t kv = DividedUp(static_cast<uint64_t>(sizes.kv_heads * sizes.head_width), tensor);
  const uint64_t inner = DividedUp(static_cast<uint64_t>(sizes.inner), tensor);
  return {.input = input, .stored = 4 * input + 2 * q + 2 * kv + 3 * inner, .products = input + q + 2 * kv + 2 * inner};
}

// The blocks of the whole model, with their adapters. Tensor ranks cannot divide adapters.
std::vector<BlockElements> ElementsOfBlocks(const ModelDescription& whole, uint64_t tensor, bool divides_sequence) {
  const ModelSizes& sizes = whole.sizes;
  std::vector<BlockElements> blocks(static_cast<size_t>(sizes.layers),
                                    ElementsPerToken(sizes, tensor, divides_sequence));
  const size_t projections_per_block = whole.projections.size() / std::max<size_t>(1, blocks.size());
  for (size_t i = 0; i < whole.projections.size(); ++i) {
    const ProjectionDescription& projection = whole.projections[i];
    if (projection.lora_a < 0) continue;
    BlockElements& block = blocks[i / projections_per_block];
    const uint64_t rank = static_cast<uint64_t>(sizes.lora.rank), in = static_cast<uint64_t>(projection.in);
    const bool drops = sizes.lora.dropout > 0;
    block.stored += rank + (drops ? in : 0);
    // Selective recompute also keeps the products of A and of B, although the product of B is added to the product of
    // the matrix.
    block.products += static_cast<uint64_t>(projection.out) + rank;
    // The gradients of the input through the matrix and through the adapter are in memory together before they are
    // added. With dropout, the one through the adapter reuses the memory of the dropped input, which is free by then.
    if (!drops) block.passing = std::max(block.passing, in);
  }
  return blocks;
}

// The rows of a micro-batch that pass through the model: tokens, or the samples of a classifier.
uint64_t TokensOfMicroBatch(const v1::Train& train, const ModelSizes& sizes) {
  const uint64_t length = sizes.family == ModelFamily::kMlp ? 1 : static_cast<uint64_t>(SequenceLength(train));
  return uint64_t{train.batch().micro()} * length;
}

// Attention with dropout is computed by operations of LibTorch, in at least fp32 (worker/model/ops/attention.cc). They
// store the weights of all pairs of tokens in each head, before and after dropout, and copies of queries, keys and
// values instead of the product that these are parts of. Each token has a row of weights for each head.
void AddAttentionDropout(const v1::JobSpec& spec, const ModelSizes& sizes, std::vector<BlockElements>& blocks) {
  if (sizes.dropout <= 0) return;
  const v1::Train& train = spec.train();
  const uint64_t tensor = LayoutOf(spec).tensor, part = DividedUp(static_cast<uint64_t>(sizes.width), tensor);
  const uint64_t param = BytesOf(train.precision().param());
  const uint64_t wide = std::max<uint64_t>(4, param) / param;  // a number of attention in elements of `param`
  const uint64_t weights =
      wide * DividedUp(static_cast<uint64_t>(sizes.heads), tensor) * static_cast<uint64_t>(SequenceLength(train));
  const uint64_t mlp = 8 * part;  // is not stored yet, or no longer, while attention needs its scores or gradients
  for (BlockElements& block : blocks) {
    block.stored += 2 * weights + 3 * part * (wide - 1);
    block.passing = std::max(block.passing, weights - std::min(weights, mlp));
  }
}

// Whether tensor ranks divide the rows of the activations outside their matrix products.
bool DividesSequence(const v1::JobSpec& spec) { return spec.parallel().sequence() && LayoutOf(spec).tensor > 1; }

// One chunk of a stage, with the assumption that all activations that the stage has in flight are those of this chunk.
struct StageBlocks {
  std::vector<BlockElements> stored;  // the blocks that store something for backward
  uint64_t first_number = 1;          // that of the first of these; the blocks of a rank are numbered from 1
  uint64_t in_flight = 1;
  bool heads = true;  // the stage has the last norm, the head and the loss
};

uint64_t PlanActivations(const v1::JobSpec& spec, const ModelSizes& sizes, const StageBlocks& stage) {
  const v1::Train& train = spec.train();
  const bool divides_sequence = DividesSequence(spec);
  const v1::Recompute& recompute = spec.parallel().recompute();
  const uint64_t every = std::max<uint64_t>(1, recompute.every());
  const bool is_selective = recompute.mode() == v1::RECOMPUTE_MODE_SELECTIVE;
  const bool recomputes = is_selective || recompute.mode() == v1::RECOMPUTE_MODE_BLOCKS;
  uint64_t elements = 0;
  uint64_t again = 0;  // what a block needs while backward computes it again, in addition to its stored products
  for (size_t i = 0; i < stage.stored.size(); ++i) {
    const BlockElements& block = stage.stored[i];
    if (!recomputes || (stage.first_number + i) % every != 0) {
      elements += block.stored;
      continue;
    }
    const uint64_t products = is_selective ? block.products : 0, needed = block.stored + block.passing;
    elements += block.input + products;
    again = std::max(again, needed - std::min(needed, products));
  }
  elements = stage.in_flight * elements + again;
  if (stage.heads) {
    const uint64_t input = ElementsPerToken(sizes, LayoutOf(spec).tensor, divides_sequence).input;
    elements += 2 * input * stage.in_flight;  // the last norm and its input
    // The head gathers the last norm while all activations are stored.
    if (divides_sequence) elements += static_cast<uint64_t>(sizes.width);
  }
  return elements * TokensOfMicroBatch(train, sizes) * BytesOf(train.precision().param());
}

// The number of blocks at the beginning of the model for which backward computes nothing, because no parameter is
// trained there or before them. These blocks store nothing. Only for models without a pipeline: later stages of a
// pipeline are assumed to send gradients to all stages before them.
size_t CountForwardOnly(const v1::Train& train, const ModelDescription& whole, const PartDescription& part,
                        const std::vector<UnitElements>& units) {
  for (int i = 0; i < part.units[0].num_parameters; ++i) {
    const PartParameter& parameter = part.parameters[static_cast<size_t>(part.units[0].first_parameter + i)];
    const RootUse use = whole.parameters[static_cast<size_t>(parameter.number)].use;
    if (use != RootUse::kHead && IsTrained(train, parameter.name)) return 0;
  }
  const auto first = std::find_if(units.begin() + 1, units.end(), [](const UnitElements& e) { return e.trained > 0; });
  return static_cast<size_t>(first - units.begin() - 1);
}

// A GPU replaces the scores of a chunk by their gradient. If the head is tied to the embedding, forward computes the
// gradient of the matrix.
uint64_t PlanScoresOnGpu(const v1::Train& train, const ModelSizes& sizes, uint64_t scores, uint64_t in_flight) {
  const uint64_t chunk = std::min(static_cast<uint64_t>(kHeadLossElementsOnGpu), scores);
  const uint64_t matrix = static_cast<uint64_t>(sizes.vocabulary) * static_cast<uint64_t>(sizes.width);
  const uint64_t param = BytesOf(train.precision().param());
  return chunk * param + (sizes.tied ? in_flight * matrix * std::max<uint64_t>(4, param) : 0);
}

uint64_t PlanScores(const v1::JobSpec& spec, const ModelSizes& sizes, uint64_t tensor, uint64_t in_flight) {
  const v1::Train& train = spec.train();
  const uint64_t vocabulary = DividedUp(static_cast<uint64_t>(sizes.vocabulary), tensor);
  const uint64_t scores = TokensOfMicroBatch(train, sizes) * vocabulary;
  // The loss is computed in fp32 from scores of 16 bits.
  const uint64_t element =
      std::max({uint64_t{4}, BytesOf(train.precision().param()), BytesOf(train.precision().output())});
  // The scores of a large vocabulary are computed in chunks, and computed again in backward. Otherwise the logarithms
  // of the probabilities of each micro-batch in flight are stored until its backward, which needs memory for the
  // gradient of one micro-batch.
  if (sizes.vocabulary >= kHeadLossVocabulary) {
    const bool is_gpu = spec.resources().device() == v1::DEVICE_CUDA;
    if (is_gpu && tensor == 1) return PlanScoresOnGpu(train, sizes, scores, in_flight);
    return 2 * std::min(static_cast<uint64_t>(is_gpu ? kHeadLossElementsOnGpu : kHeadLossElements), scores) * element;
  }
  return (in_flight + 1) * scores * element;
}

// Each link into a stage holds packets that the stage has not received yet: activations from the stage before it, and
// gradients from the stage after it. With several chunks per rank the stages form a ring.
uint64_t PlanLinks(const v1::JobSpec& spec, const ModelSizes& sizes, const PipelineShape& shape, int stage) {
  if (shape.stages == 1) return 0;
  const bool is_ring = shape.chunks_per_rank > 1;
  const uint64_t links = (is_ring || stage > 0 ? 1 : 0) + (is_ring || stage < shape.stages - 1 ? 1 : 0);
  uint64_t rows = TokensOfMicroBatch(spec.train(), sizes);
  if (DividesSequence(spec)) rows = DividedUp(rows, LayoutOf(spec).tensor);
  return links * kSlotsPerLink * rows * static_cast<uint64_t>(sizes.width) * BytesOf(spec.train().precision().param());
}

// Whether a rank holds the gradients of all its parameters during a step even if the strategy shards them: a pipeline
// reduces them at the end of a step, and those of several micro-batches are added up first.
bool AddsUpWholeGradients(const v1::JobSpec& spec, const PipelineShape& shape) {
  return shape.stages > 1 || (!spec.parallel().reduce_every_micro_batch() && shape.micro_batches > 1);
}

// The elements that a rank holds.
struct HeldElements {
  UnitElements total, root, largest;  // `largest`: of any block
  uint64_t blocks = 0, trained_blocks = 0;
};

HeldElements SumUnits(const std::vector<UnitElements>& units) {
  HeldElements held{.total = units[0], .root = units[0], .largest = {}, .blocks = units.size() - 1};
  for (size_t i = 1; i < units.size(); ++i) {
    held.total.all += units[i].all;
    held.total.trained += units[i].trained;
    held.largest.all = std::max(held.largest.all, units[i].all);
    held.largest.trained = std::max(held.largest.trained, units[i].trained);
    if (units[i].trained > 0) ++held.trained_blocks;
  }
  return held;
}

// What is whole only for a time: gathered parameters, and gradients of blocks or buckets before they are reduced.
uint64_t PlanGathered(const v1::JobSpec& spec, const PipelineShape& shape, const HeldElements& held, uint64_t shard) {
  const v1::Parallel& parallel = spec.parallel();
  const v1::PrecisionPolicy& precision = spec.train().precision();
  const uint64_t param = BytesOf(precision.param()), reduce = BytesOf(precision.reduce());
  const uint64_t sum = std::max<uint64_t>(4, reduce);
  const bool shards_parameters = ShardsParameters(parallel.data());
  uint64_t bytes = 0;
  // A rank that holds the only shard computes with it in place, unless it has to be copied from the host.
  if (shards_parameters && (shard > 1 || parallel.offload().parameters())) {
    // The root stays gathered for the whole pass; of the blocks, only the active and the prefetched one are gathered. A
    // pipeline gathers all once per step. Blocks are gathered into memory that also has space for their gradients.
    const uint64_t blocks = shape.stages > 1 ? held.blocks : std::min<uint64_t>(2, held.blocks);
    bytes += held.root.all * param + blocks * held.largest.all * std::max(param, reduce);
  }
  if (shard == 1 || !ShardsGradients(parallel.data())) return bytes;
  const uint64_t bucket = std::min<uint64_t>(held.total.trained, parallel.bucket_elements());
  const uint64_t blocks = std::min<uint64_t>(2, held.trained_blocks);
  if (AddsUpWholeGradients(spec, shape)) {
    // The shards of the sums are received, and 16-bit copies are sent, while the whole gradients are still in memory.
    const uint64_t reduced = shards_parameters ? blocks * held.largest.trained : bucket;
    return bytes + sum * DividedUp(reduced, shard) + (reduce < sum ? reduced * reduce : 0);
  }
  if (!shards_parameters) return bytes + sum * bucket;
  // The buffer for the gradients of a block has the size of the largest block, even if few of its parameters are
  // trained. While the gradients of one block are reduced, those of the next block are computed. Memory for the sums
  // of the first block is allocated only afterwards, so it is subtracted here.
  const uint64_t later = blocks == 2 ? DividedUp(held.largest.trained, shard) : 0;
  return bytes + sum * (held.root.trained + blocks * held.largest.all - later);
}

// The parameters, gradients and optimizer state of a rank that holds `units`.
void PlanState(const v1::JobSpec& spec, const PipelineShape& shape, const std::vector<UnitElements>& units,
               MemoryPlan& plan) {
  const v1::Parallel& parallel = spec.parallel();
  const HeldElements held = SumUnits(units);
  const UnitElements& total = held.total;
  const uint64_t shard = std::max<uint64_t>(1, DataSizesOf(parallel, LayoutOf(spec).data_ranks()).shard);
  const auto share = [shard](uint64_t elements, bool is_sharded) {
    return is_sharded ? DividedUp(elements, shard) : elements;
  };
  const v1::PrecisionPolicy& precision = spec.train().precision();
  const bool shards_parameters = ShardsParameters(parallel.data());
  const bool shards_gradients = ShardsGradients(parallel.data()) && !AddsUpWholeGradients(spec, shape);
  const bool shards_state = ShardsOptimizerState(parallel.data());

  plan.parameters = share(total.all, shards_parameters) * BytesOf(precision.param());
  plan.gathered = PlanGathered(spec, shape, held, shard);
  const uint64_t reduce = BytesOf(precision.reduce()), sum = std::max<uint64_t>(4, reduce);
  plan.gradients = share(total.trained, shards_gradients) * sum;
  // Gradients that are added up in fp32 and sent in 16 bits are copied before they are sent.
  if (!ShardsGradients(parallel.data()) && reduce < sum) plan.gradients += total.trained * reduce;
  const uint64_t moments = 2 * share(total.trained, shards_state) * BytesOf(precision.state());
  const bool keeps_masters = precision.master() != precision.param();
  uint64_t masters = 0;  // elements
  if (keeps_masters || parallel.offload().optimizer()) masters += share(total.trained, shards_state);
  // The masters of frozen parameters are never updated; they are divided only if the parameters are.
  if (keeps_masters) masters += share(total.all - total.trained, shards_parameters);
  const uint64_t optimizer = moments + masters * BytesOf(precision.master());
  if (parallel.offload().optimizer()) {
    plan.host += optimizer;
  } else {
    plan.optimizer = optimizer;
  }
  if (parallel.offload().parameters() && shards_parameters) {
    plan.host += plan.parameters;
    plan.parameters = 0;
  }
}

}  // namespace

std::vector<MemoryPlan> PlanMemoryOfStages(const v1::JobSpec& spec) {
  const v1::Train& train = spec.train();
  const ModelSizes sizes = SizesOf(train);
  const ModelDescription whole = DescribeModel(sizes);
  const JobLayout layout = LayoutOf(spec);
  const PipelinePlan pipeline = PlanPipeline(spec);
  std::vector<BlockElements> blocks = ElementsOfBlocks(whole, layout.tensor, DividesSequence(spec));
  AddAttentionDropout(spec, sizes, blocks);
  const std::vector<int> split(spec.parallel().pipeline().split().begin(), spec.parallel().pipeline().split().end());
  std::vector<MemoryPlan> plans;
  for (int stage = 0; stage < pipeline.shape.stages; ++stage) {
    // Where tensor ranks cannot divide rows equally, the last one has the most.
    const absl::StatusOr<ModelPart> part = PartOfRank(sizes, {.stage = stage,
                                                              .stages = pipeline.shape.stages,
                                                              .chunks_per_rank = pipeline.shape.chunks_per_rank,
                                                              .split = layout.stages > 1 ? split : std::vector<int>(),
                                                              .tensor_rank = static_cast<int>(layout.tensor) - 1,
                                                              .tensor_size = static_cast<int>(layout.tensor)});
    const ModelPart held = part.ok() ? *part : WholeModel(sizes);
    const PartDescription described = DescribePart(whole, held);
    const std::vector<UnitElements> units = CountUnits(train, described);
    const size_t forward_only = layout.stages > 1 ? 0 : CountForwardOnly(train, whole, described, units);
    const uint64_t in_flight = static_cast<uint64_t>(pipeline.in_flight[static_cast<size_t>(stage)]);
    MemoryPlan& plan = plans.emplace_back();
    PlanState(spec, pipeline.shape, units, plan);
    int64_t earlier = 0;  // blocks of earlier chunks
    for (const ModelChunk& chunk : held.chunks) {
      const auto first = blocks.begin() + chunk.first_block;
      const int64_t stores_nothing = std::min(static_cast<int64_t>(forward_only), chunk.num_blocks);
      const StageBlocks of_chunk{.stored = {first + stores_nothing, first + chunk.num_blocks},
                                 .first_number = static_cast<uint64_t>(1 + earlier + stores_nothing),
                                 .in_flight = in_flight,
                                 .heads = held.heads};
      earlier += chunk.num_blocks;
      plan.activations = std::max(plan.activations, PlanActivations(spec, sizes, of_chunk));
    }
    plan.scores = held.heads ? PlanScores(spec, sizes, layout.tensor, in_flight) : 0;
    plan.links = PlanLinks(spec, sizes, pipeline.shape, stage);
  }
  return plans;
}

MemoryPlan PlanMemory(const v1::JobSpec& spec) {
  const std::vector<MemoryPlan> plans = PlanMemoryOfStages(spec);
  return *std::max_element(plans.begin(), plans.end(), [](const MemoryPlan& a, const MemoryPlan& b) {
    return a.device_total() + a.host < b.device_total() + b.host;
  });
}

}  // namespace trainyard
