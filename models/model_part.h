// The part of a model that one rank holds where pipeline stages divide its blocks and tensor ranks divide its matrices.
// Plain values; the same on every rank that asks for the same part.
//
//   ModelDescription whole = DescribeModel(sizes);
//   ASSIGN_OR_RETURN(ModelPart part, PartOfRank(sizes, {.stage = 1, .stages = 2}));
//   DescribePart(whole, part).parameters[0].number;   // of the parameter in `whole`
//
// Every parameter of a part is one box of one parameter of the whole model. A matrix of which a rank holds several
// separate ranges (the fused projection of queries, keys and values) becomes several parameters of the same name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/model_description.h"

namespace trainyard {

// Consecutive blocks that a micro-batch passes without leaving the rank.
struct ModelChunk {
  int64_t first_block = 0;
  int64_t num_blocks = 0;
  bool operator==(const ModelChunk&) const = default;
};

struct ModelPart {
  std::vector<ModelChunk> chunks = {};  // in the order in which a micro-batch passes them
  bool embeds = true;                   // the first chunk begins with the embedding
  bool heads = true;                    // the last chunk ends with the last norm, the head and the loss
  int tensor_rank = 0;
  int tensor_size = 1;
  bool divides_sequence = false;  // tensor ranks divide the rows of the activations outside their matrix products

  bool operator==(const ModelPart&) const = default;
};

// The position of a rank among those that share a model. The chunk `c` of a stage is chunk c x stages + stage of the
// model.
struct PartPosition {
  int stage = 0;
  int stages = 1;
  int chunks_per_rank = 1;
  std::vector<int> split = {};  // blocks of each chunk of the model; empty: as equal as possible, the first ones larger
  int tensor_rank = 0;
  int tensor_size = 1;
  bool divides_sequence = false;  // ignored where there is one tensor rank
};

// The number of blocks of each chunk of the model. Fails with InvalidArgument if there are fewer blocks than chunks, or
// `split` has another number of chunks, another sum, or an empty chunk.
absl::StatusOr<std::vector<int64_t>> SplitBlocks(int64_t blocks, int chunks, const std::vector<int>& split);

// Fails with the errors of SplitBlocks, and with InvalidArgument if tensor_size does not divide the heads of queries
// and of keys and values, a rank would have no rows of the vocabulary or hidden units of the MLP, or the family or
// its adapters cannot be divided. All problems are in one message.
absl::StatusOr<ModelPart> PartOfRank(const ModelSizes& sizes, const PartPosition& position);

// The whole model as one part.
ModelPart WholeModel(const ModelSizes& sizes);

struct PartParameter {
  int number = 0;              // of the parameter in the whole model
  std::string name;            // in the whole model
  std::vector<int64_t> shape;  // of the box
  std::vector<int64_t> start;  // of the box in the parameter of the whole model
  bool replicated = false;     // every tensor rank has the same box; false where there is one tensor rank
  bool tied = false;           // the first and the last stage have a copy; the gradients of both are added
};

struct PartUnit {
  std::string name;
  int number = 0;  // of the unit in the whole model
  int first_parameter = 0;
  int num_parameters = 0;
};

struct PartDescription {
  std::vector<PartParameter> parameters;
  std::vector<PartUnit> units;  // 0 is the root, which may have no parameters; then the blocks of all chunks
};

// REQUIRES: `part` comes from PartOfRank or WholeModel for the sizes of `whole`.
PartDescription DescribePart(const ModelDescription& whole, const ModelPart& part);

// The range of `size` elements that a tensor rank holds, in multiples of `granule`, which divides `size`. Ranges may
// differ by one granule.
struct SplitRange {
  int64_t first = 0;
  int64_t count = 0;
};
SplitRange RangeOfTensorRank(int64_t size, int64_t granule, int rank, int ranks);

// The number of rows of activations that each tensor rank has if tensor ranks divide the `rows` rows of a micro-batch
// (sequence parallelism). The last ranks may have padding.
inline int64_t ShareOfSequence(int64_t rows, int ranks) { return (rows + ranks - 1) / ranks; }

}  // namespace trainyard
