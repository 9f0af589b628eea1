#include "planner/model_work.h"

#include <algorithm>

#include "models/model_description.h"
#include "spec/freeze_rules.h"
#include "spec/model_sizes.h"
#include "spec/precision_rules.h"

namespace trainyard::planner {
namespace {

double SizeOf(v1::Precision type) { return static_cast<double>(BytesOf(type)); }

double ElementsOf(const ParameterDescription& parameter) {
  double elements = 1;
  for (const int64_t size : parameter.shape) elements *= static_cast<double>(size);
  return elements;
}

// The products of a row with the matrices of a block; norms and biases are too small to count.
double ProductFlops(const ModelDescription& model, const UnitDescription& unit) {
  double flops = 0;
  for (int i = 0; i < unit.num_parameters; ++i) {
    const ParameterDescription& parameter = model.parameters[static_cast<size_t>(unit.first_parameter + i)];
    if (parameter.shape.size() >= 2) flops += 2 * ElementsOf(parameter);
  }
  return flops;
}

// A row attends to half of the sequence on average: queries times keys, and weights times values.
double AttentionFlops(const ModelSizes& sizes, double length) {
  if (sizes.family == ModelFamily::kMlp) return 0;
  const int64_t head_width = sizes.head_width > 0 ? sizes.head_width : sizes.width / std::max<int64_t>(sizes.heads, 1);
  return 2 * length * static_cast<double>(sizes.heads * head_width);
}

void CountParts(const v1::Train& train, const ModelDescription& model, ModelWork& work) {
  double all = 0, trained = 0;
  for (const ParameterDescription& parameter : model.parameters) {
    const double elements = ElementsOf(parameter);
    all += elements;
    if (IsTrained(train, parameter.name)) trained += elements;
  }
  for (int i = 0; i < model.units[0].num_parameters; ++i) {
    const ParameterDescription& parameter = model.parameters[static_cast<size_t>(model.units[0].first_parameter + i)];
    const double elements = ElementsOf(parameter);
    work.root_parameters += elements;
    if (parameter.use != RootUse::kHead) work.embedding_parameters += elements;
    if (parameter.use != RootUse::kEmbedding) work.head_parameters += elements;
  }
  work.trained_share = all > 0 ? trained / all : 1;
  // Of a classifier the first block may be smaller or larger than the others, so this is the mean.
  work.block_parameters = (all - work.root_parameters) / static_cast<double>(work.layers);
}

}  // namespace

ModelWork WorkOf(const v1::JobSpec& spec) {
  const v1::Train& train = spec.train();
  const ModelSizes sizes = SizesOf(train);
  const ModelDescription model = DescribeModel(sizes);
  const bool is_classifier = sizes.family == ModelFamily::kMlp;
  ModelWork work;
  work.layers = static_cast<uint64_t>(std::max<int64_t>(sizes.layers, 1));
  work.global = std::max(train.batch().global_size(), 1u);
  work.rows_per_sequence = is_classifier ? 1 : static_cast<uint64_t>(SequenceLength(train));
  work.width = static_cast<double>(sizes.width);
  CountParts(train, model, work);

  work.attention_flops = AttentionFlops(sizes, static_cast<double>(work.rows_per_sequence));
  work.block_flops = ProductFlops(model, model.units.back()) + work.attention_flops;
  work.head_flops = 2 * static_cast<double>(sizes.vocabulary) * static_cast<double>(sizes.width);

  const v1::PrecisionPolicy& precision = train.precision();
  work.type = precision.param();
  work.param_bytes = SizeOf(precision.param());
  work.reduce_bytes = SizeOf(precision.reduce());
  const double sum = std::max(4.0, work.reduce_bytes), master = SizeOf(precision.master());
  const double moments = 2 * SizeOf(precision.state());
  const bool has_masters = precision.master() != precision.param();
  // An update reads the gradient, reads and writes masters and moments, and writes the parameter.
  work.update_bytes = sum + 2 * master + 2 * moments + (has_masters ? work.param_bytes : 0);
  work.state_bytes = master + moments;

  const v1::Parallel& parallel = spec.parallel();
  work.bucket_parameters = static_cast<double>(parallel.bucket_elements());
  work.overlaps = !parallel.has_overlap() || parallel.overlap();
  work.offloads_optimizer = parallel.offload().optimizer();
  work.offloads_parameters = parallel.offload().parameters();
  return work;
}

}  // namespace trainyard::planner
