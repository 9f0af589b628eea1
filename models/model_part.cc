#include "models/model_part.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

// Whether the part holds a parameter of the root unit.
bool HoldsOfRoot(const ModelPart& part, RootUse use) {
  switch (use) {
    case RootUse::kEmbedding:
      return part.embeds;
    case RootUse::kHead:
      return part.heads;
    case RootUse::kBoth:
      return part.embeds || part.heads;
  }
  return true;
}

// Appends the boxes of a parameter that the part holds.
void AddBoxes(const ModelDescription& whole, const ModelPart& part, int number, std::vector<PartParameter>& out) {
  const ParameterDescription& parameter = whole.parameters[static_cast<size_t>(number)];
  const TensorSplit& split = parameter.split;
  PartParameter box{.number = number,
                    .name = parameter.name,
                    .shape = parameter.shape,
                    .start = std::vector<int64_t>(parameter.shape.size(), 0)};
  box.tied = parameter.use == RootUse::kBoth && part.embeds != part.heads;
  if (part.tensor_size == 1 || split.dimension < 0) {
    box.replicated = part.tensor_size > 1;
    out.push_back(std::move(box));
    return;
  }
  const size_t d = static_cast<size_t>(split.dimension);
  const int64_t size = parameter.shape[d] / split.parts;
  const SplitRange range = RangeOfTensorRank(size, split.granule, part.tensor_rank, part.tensor_size);
  for (int64_t i = 0; i < split.parts; ++i) {
    out.push_back(box);
    out.back().shape[d] = range.count;
    out.back().start[d] = i * size + range.first;
  }
}

void AddProblem(std::vector<std::string>& problems, absl::string_view what, int64_t heads, int tensor) {
  if (heads % tensor == 0) return;
  problems.push_back(absl::StrCat("tensor ", tensor, " does not divide the ", heads, " heads of ", what));
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> SplitBlocks(int64_t blocks, int chunks, const std::vector<int>& split) {
  if (blocks < chunks) {
    return absl::InvalidArgumentError(absl::StrCat("the model has ", blocks, blocks == 1 ? " block" : " blocks",
                                                   ", but the pipeline divides it into ", chunks,
                                                   " chunks, each of which needs one"));
  }
  if (split.empty()) {
    std::vector<int64_t> equal;
    for (int64_t i = 0; i < chunks; ++i) equal.push_back(blocks / chunks + (i < blocks % chunks ? 1 : 0));
    return equal;
  }
  const int64_t sum = std::accumulate(split.begin(), split.end(), int64_t{0});
  bool any_empty = false;
  for (const int each : split) any_empty = any_empty || each < 1;
  if (static_cast<int>(split.size()) != chunks || sum != blocks || any_empty) {
    return absl::InvalidArgumentError(absl::StrCat(
        "split [", absl::StrJoin(split, ", "), "] has ", split.size(), " chunks with ", sum, " blocks",
        any_empty ? ", one of them empty" : "", "; the pipeline needs ", chunks, " chunks with ", blocks, " blocks"));
  }
  return std::vector<int64_t>(split.begin(), split.end());
}

absl::StatusOr<ModelPart> PartOfRank(const ModelSizes& sizes, const PartPosition& position) {
  const int tensor = position.tensor_size, stages = position.stages, chunks = stages * position.chunks_per_rank;
  std::vector<std::string> problems;
  if (tensor > 1) {
    AddProblem(problems, "queries", sizes.heads, tensor);
    if (IsLlamaGraph(sizes.family)) AddProblem(problems, "keys and values", sizes.kv_heads, tensor);
    // Parts may be unequal, but not empty.
    const auto add_if_empty = [&](absl::string_view what, int64_t size) {
      if (size < tensor) problems.push_back(absl::StrCat("tensor ", tensor, " is more than the ", size, " ", what));
    };
    add_if_empty("tokens of the vocabulary", sizes.vocabulary);
    if (IsLlamaGraph(sizes.family)) add_if_empty("hidden units of the MLP", sizes.inner);
    if (sizes.lora.rank > 0) problems.push_back("adapters cannot be divided among tensor ranks");
  }
  if (sizes.family == ModelFamily::kMlp && (tensor > 1 || stages > 1)) {
    problems.push_back("a model of family mlp cannot be divided among ranks");
  }
  const absl::StatusOr<std::vector<int64_t>> blocks = chunks == 1 && position.split.empty()
                                                          ? std::vector<int64_t>{sizes.layers}
                                                          : SplitBlocks(sizes.layers, chunks, position.split);
  if (!blocks.ok()) problems.emplace_back(blocks.status().message());
  if (!problems.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems, "; "));

  ModelPart part{.embeds = position.stage == 0,
                 .heads = position.stage == stages - 1,
                 .tensor_rank = position.tensor_rank,
                 .tensor_size = tensor,
                 .divides_sequence = position.divides_sequence && tensor > 1};
  int64_t first = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int64_t count = (*blocks)[static_cast<size_t>(chunk)];
    if (chunk % stages == position.stage) part.chunks.push_back({.first_block = first, .num_blocks = count});
    first += count;
  }
  return part;
}

ModelPart WholeModel(const ModelSizes& sizes) { return {.chunks = {{.first_block = 0, .num_blocks = sizes.layers}}}; }

PartDescription DescribePart(const ModelDescription& whole, const ModelPart& part) {
  PartDescription description;
  const auto add_unit = [&](int number) {
    const UnitDescription& unit = whole.units[static_cast<size_t>(number)];
    const int first = static_cast<int>(description.parameters.size());
    for (int i = unit.first_parameter; i < unit.first_parameter + unit.num_parameters; ++i) {
      if (number == 0 && !HoldsOfRoot(part, whole.parameters[static_cast<size_t>(i)].use)) continue;
      AddBoxes(whole, part, i, description.parameters);
    }
    description.units.push_back({.name = unit.name,
                                 .number = number,
                                 .first_parameter = first,
                                 .num_parameters = static_cast<int>(description.parameters.size()) - first});
  };
  add_unit(0);
  for (const ModelChunk& chunk : part.chunks) {
    for (int64_t i = 0; i < chunk.num_blocks; ++i) add_unit(static_cast<int>(chunk.first_block + i) + 1);
  }
  return description;
}

SplitRange RangeOfTensorRank(int64_t size, int64_t granule, int rank, int ranks) {
  const int64_t granules = size / granule;
  const int64_t first = granules * rank / ranks, last = granules * (rank + 1) / ranks;
  return {.first = first * granule, .count = (last - first) * granule};
}

}  // namespace trainyard
