#include "spec/memory_plan.h"

#include <fnmatch.h>

#include <algorithm>
#include <vector>

#include "models/head_loss_limits.h"
#include "models/lora_targets.h"
#include "models/model_description.h"
#include "spec/model_sizes.h"
#include "spec/parallel_rules.h"

namespace trainyard {
namespace {

uint64_t BytesOf(v1::Precision type) {
  if (type == v1::PRECISION_FP64) return 8;
  return type == v1::PRECISION_BF16 || type == v1::PRECISION_FP16 ? 2 : 4;
}

struct UnitElements {
  uint64_t all = 0, trained = 0;
};

bool IsTrained(const v1::Train& train, const std::string& name) {
  if (train.lora().rank() > 0) return IsAdapterName(name);
  return std::none_of(train.freeze().begin(), train.freeze().end(),
                      [&](const std::string& glob) { return fnmatch(glob.c_str(), name.c_str(), 0) == 0; });
}

// The elements of each unit; 0 is the root.
std::vector<UnitElements> CountUnits(const v1::Train& train, const ModelDescription& model) {
  std::vector<UnitElements> units;
  for (const UnitDescription& unit : model.units) {
    UnitElements& count = units.emplace_back();
    for (int i = 0; i < unit.num_parameters; ++i) {
      const ParameterDescription& parameter = model.parameters[static_cast<size_t>(unit.first_parameter + i)];
      uint64_t elements = 1;
      for (int64_t size : parameter.shape) elements *= static_cast<uint64_t>(size);
      count.all += elements;
      if (IsTrained(train, parameter.name)) count.trained += elements;
    }
  }
  return units;
}

// Elements that a block stores per token. The order is that of its computation: the input and its norm, the attention's
// inputs and output, the middle of the residual stream and its norm, the inside of the MLP.
struct BlockElements {
  uint64_t stored = 0;  // without recompute
  // Of these, the outputs of matrix products, which selective recompute stores. Without the last one, which is the
  // input of the next block.
  uint64_t products = 0;
};

BlockElements ElementsPerToken(const ModelSizes& sizes) {
  const uint64_t width = static_cast<uint64_t>(sizes.width);
  // A layer of a classifier stores its input; the product is replaced by its ReLU, which is the next input.
  if (sizes.family == ModelFamily::kMlp) return {.stored = width, .products = 0};
  if (!IsLlamaGraph(sizes.family)) return {.stored = 16 * width, .products = 8 * width};
  const uint64_t q = static_cast<uint64_t>(sizes.heads * sizes.head_width);
  const uint64_t kv = static_cast<uint64_t>(sizes.kv_heads * sizes.head_width);
  const uint64_t inner = static_cast<uint64_t>(sizes.inner);
  return {.stored = 4 * width + 2 * q + 2 * kv + 3 * inner, .products = width + q + 2 * kv + 2 * inner};
}

// The rows of a micro-batch that pass through the model: tokens, or the samples of a classifier.
uint64_t TokensOfMicroBatch(const v1::Train& train, const ModelSizes& sizes) {
  const uint64_t length = sizes.family == ModelFamily::kMlp ? 1 : static_cast<uint64_t>(SequenceLength(train));
  return uint64_t{train.batch().micro()} * length;
}

uint64_t PlanActivations(const v1::JobSpec& spec, const ModelSizes& sizes) {
  const v1::Train& train = spec.train();
  const uint64_t element = BytesOf(train.precision().param());
  const uint64_t tokens = TokensOfMicroBatch(train, sizes);
  const uint64_t width = static_cast<uint64_t>(sizes.width), layers = static_cast<uint64_t>(sizes.layers);
  const BlockElements block = ElementsPerToken(sizes);
  const v1::Recompute& recompute = spec.parallel().recompute();
  const uint64_t every = std::max<uint64_t>(1, recompute.every());
  const bool recomputes =
      recompute.mode() == v1::RECOMPUTE_MODE_BLOCKS || recompute.mode() == v1::RECOMPUTE_MODE_SELECTIVE;
  const uint64_t recomputed = recomputes ? (layers + every - 1) / every : 0;
  const uint64_t kept = recompute.mode() == v1::RECOMPUTE_MODE_SELECTIVE ? width + block.products : width;
  uint64_t elements = (layers - recomputed) * block.stored + recomputed * kept;
  // The block that backward has computed again, which takes over the products that were stored.
  if (recomputes) elements += block.stored - (kept - width);
  elements += 2 * width;  // the last norm and its input
  return elements * tokens * element;
}

uint64_t PlanScores(const v1::Train& train, const ModelSizes& sizes) {
  const uint64_t vocabulary = static_cast<uint64_t>(sizes.vocabulary);
  const uint64_t tokens = TokensOfMicroBatch(train, sizes);
  const uint64_t element = std::max(BytesOf(train.precision().param()), BytesOf(train.precision().output()));
  const uint64_t held = sizes.vocabulary >= kHeadLossVocabulary
                            ? std::min(static_cast<uint64_t>(kHeadLossElements), tokens * vocabulary)
                            : tokens * vocabulary;
  return 2 * held * element;  // the logarithms of the probabilities, and the gradient
}

}  // namespace

MemoryPlan PlanMemory(const v1::JobSpec& spec) {
  const v1::Train& train = spec.train();
  const v1::Parallel& parallel = spec.parallel();
  const ModelSizes sizes = SizesOf(train);
  const std::vector<UnitElements> units = CountUnits(train, DescribeModel(sizes));
  UnitElements total, largest;
  for (size_t i = 0; i < units.size(); ++i) {
    total.all += units[i].all;
    total.trained += units[i].trained;
    if (i > 0) largest.all = std::max(largest.all, units[i].all);
    if (i > 0) largest.trained = std::max(largest.trained, units[i].trained);
  }
  const uint64_t shard = std::max<uint64_t>(1, DataSizesOf(parallel, spec.resources().ranks()).shard);
  const auto share = [shard](uint64_t elements, bool is_sharded) {
    return is_sharded ? (elements + shard - 1) / shard : elements;
  };
  const v1::PrecisionPolicy& precision = train.precision();
  const uint64_t param = BytesOf(precision.param()), sum = std::max<uint64_t>(4, BytesOf(precision.reduce()));
  const bool shards_parameters = ShardsParameters(parallel.data()), shards_gradients = ShardsGradients(parallel.data());
  const bool shards_state = ShardsOptimizerState(parallel.data());

  MemoryPlan plan;
  plan.parameters = share(total.all, shards_parameters) * param;
  if (shards_parameters) {
    // The root stays gathered for the whole pass; of the blocks, the one that computes and the one that is prefetched.
    const uint64_t blocks = std::min<uint64_t>(2, units.size() - 1);
    plan.gathered = (units[0].all + blocks * largest.all) * param;
  }
  plan.gradients = share(total.trained, shards_gradients) * sum;
  if (shards_gradients) {
    plan.gathered += sum * (shards_parameters ? units[0].trained + largest.trained
                                              : std::min<uint64_t>(total.trained, parallel.bucket_elements()));
  }
  const uint64_t moments = 2 * share(total.trained, shards_state) * BytesOf(precision.state());
  const bool keeps_masters = precision.master() != precision.param();
  const uint64_t masters =
      keeps_masters || parallel.offload().optimizer()
          ? share(keeps_masters ? total.all : total.trained, shards_state) * BytesOf(precision.master())
          : 0;
  if (parallel.offload().optimizer()) {
    plan.host += moments + masters;
  } else {
    plan.optimizer = moments + masters;
  }
  if (parallel.offload().parameters() && shards_parameters) {
    plan.host += plan.parameters;
    plan.parameters = 0;
  }
  plan.activations = PlanActivations(spec, sizes);
  plan.scores = PlanScores(train, sizes);
  return plan;
}

}  // namespace trainyard
