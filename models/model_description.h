// What a model consists of, as plain values: its parameters, the units they belong to, their initial values and their
// names in files. No other place defines this for a family: the engine builds its tensors from the description, the
// check of `train.freeze` uses it, and so do the export and import of checkpoints.
//
//   ModelDescription model = DescribeModel({.layers = 2, .heads = 2, .width = 16, .context = 8});
//   model.parameters[0].name;          // "wte.weight"
//   model.units[1].first_parameter;    // 4: the first parameter of block 0
//
// A new family adds a name to ModelFamily, a file like gpt2_description.cc and a case in each switch over ModelFamily.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model_sizes.h"

namespace trainyard {

struct InitialValue {
  enum class Kind { kZeros, kOnes, kNormal, kUniform };
  Kind kind = Kind::kZeros;
  double deviation = 0;  // the standard deviation of kNormal, whose mean is 0
  double bound = 0;      // of kUniform: values are in [-bound, bound)
  bool operator==(const InitialValue&) const = default;
};

// What uses a parameter of the root unit.
enum class RootUse { kEmbedding, kHead, kBoth };

// How tensor ranks divide a parameter (model_part.h).
struct TensorSplit {
  int dimension = -1;   // -1: every rank has the whole parameter
  int64_t parts = 1;    // the dimension consists of this number of equal parts, each of which is divided
  int64_t granule = 1;  // elements of a part that stay together: those of a head
  bool operator==(const TensorSplit&) const = default;
};

struct ParameterDescription {
  std::string name;
  std::vector<int64_t> shape;
  InitialValue initial = {};
  RootUse use = RootUse::kHead;  // has no meaning for a parameter of a block
  TensorSplit split = {};
  bool operator==(const ParameterDescription&) const = default;
};

// Parameters [first_parameter, first_parameter + num_parameters). A unit is what a data-parallel strategy communicates
// together.
struct UnitDescription {
  std::string name;
  int first_parameter = 0;
  int num_parameters = 0;
  bool operator==(const UnitDescription&) const = default;
};

// A matrix of a block that can have a low-rank adapter (lora.h), in the order of the parameters.
struct ProjectionDescription {
  std::string name;  // of its parameters, without ".weight": "h.0.attn.c_attn"
  int64_t in = 0;
  int64_t out = 0;
  bool transposed = false;  // the matrix is stored as [out, in]
  int weight = 0;           // the index of the parameter
  // The indexes of the parameters of its adapter, "NAME.lora_A.weight" [rank, in] and "NAME.lora_B.weight" [out, rank];
  // -1: it has none.
  int lora_a = -1;
  int lora_b = -1;
  bool operator==(const ProjectionDescription&) const = default;
};

// How model.safetensors of the Python library transformers names the weights.
struct HuggingFaceNames {
  std::string prefix;                // of every name but the head's; some files leave it out
  std::string embedding;             // without the prefix
  std::string head;                  // if the head is tied and a file has it, its values must be the embedding's
  std::vector<std::string> ignored;  // globs of names, without the prefix, of tensors that are not weights
};

struct ModelDescription {
  ModelSizes sizes;
  // Random initial values, flat groups, buckets and manifests depend on the index of a parameter.
  std::vector<ParameterDescription> parameters;
  std::vector<UnitDescription> units;  // 0 is the root, which has the parameters that are in no block
  std::vector<int> export_order;       // indexes of all parameters in the order of an exported file
  std::vector<ProjectionDescription> projections;
  HuggingFaceNames hugging_face;

  std::vector<ParameterDescription> ParametersInExportOrder() const;
};

// The name that a parameter has in files of transformers.
std::string HuggingFaceName(const ModelDescription& model, const std::string& name);

// REQUIRES: CheckSizes(sizes).
ModelDescription DescribeModel(const ModelSizes& sizes);

// The number of elements of all parameters, without making the description; the time depends on the layers only if the
// model has adapters. REQUIRES: sizes are not negative.
uint64_t CountParameters(const ModelSizes& sizes);

// The same model without adapters. Files of transformers contain its parameters.
ModelSizes BaseSizes(ModelSizes sizes);

}  // namespace trainyard
