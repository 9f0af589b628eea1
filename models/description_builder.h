// Collects the parameters and units of a model in the order of their numbers. For the descriptions of the families.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "models/lora_targets.h"
#include "models/model_description.h"

namespace trainyard {

class DescriptionBuilder {
 public:
  DescriptionBuilder(const ModelSizes& sizes, HuggingFaceNames names) : matcher_(sizes.lora.targets, names.prefix) {
    model_.sizes = sizes;
    model_.hugging_face = std::move(names);
  }

  void BeginUnit(std::string name) {
    first_projection_ = model_.projections.size();
    model_.units.push_back(
        {.name = std::move(name), .first_parameter = static_cast<int>(model_.parameters.size()), .num_parameters = 0});
  }
  // Adds a parameter of the unit that was begun last.
  void AddMatrix(std::string name, int64_t rows, int64_t columns, double deviation = 0.02) {
    Add(std::move(name), {rows, columns}, {.kind = InitialValue::Kind::kNormal, .deviation = deviation});
  }
  void AddOnes(std::string name, int64_t size) { Add(std::move(name), {size}, {.kind = InitialValue::Kind::kOnes}); }
  void AddZeros(std::string name, int64_t size) { Add(std::move(name), {size}, {.kind = InitialValue::Kind::kZeros}); }

  // Describe the parameter that was added last.
  void UsedBy(RootUse use) { model_.parameters.back().use = use; }
  void Split(const TensorSplit& split) { model_.parameters.back().split = split; }

  // Adds the matrix of a projection, which can have an adapter.
  void AddProjection(const std::string& name, int64_t in, int64_t out, bool transposed) {
    const int weight = static_cast<int>(model_.parameters.size());
    model_.projections.push_back({.name = name, .in = in, .out = out, .transposed = transposed, .weight = weight});
    AddMatrix(name + ".weight", transposed ? out : in, transposed ? in : out);
  }

  // Adds the adapters of the unit's projections. They follow all other parameters of the unit.
  void EndUnit() {
    const LoraSettings& lora = model_.sizes.lora;
    if (lora.rank == 0) return;
    for (size_t i = first_projection_; i < model_.projections.size(); ++i) {
      ProjectionDescription& projection = model_.projections[i];
      if (!matcher_.Matches(projection.name)) continue;
      projection.lora_a = static_cast<int>(model_.parameters.size());
      projection.lora_b = projection.lora_a + 1;
      // The initial values of PEFT.
      Add(projection.name + kLoraASuffix, {lora.rank, projection.in},
          {.kind = InitialValue::Kind::kUniform, .bound = 1 / std::sqrt(static_cast<double>(projection.in))});
      Add(projection.name + kLoraBSuffix, {projection.out, lora.rank}, {.kind = InitialValue::Kind::kZeros});
    }
  }

  ModelDescription TakeModel() { return std::move(model_); }

 private:
  void Add(std::string name, std::vector<int64_t> shape, InitialValue initial) {
    model_.parameters.push_back({.name = std::move(name), .shape = std::move(shape), .initial = initial});
    model_.units.back().num_parameters++;
  }

  const TargetMatcher matcher_;
  ModelDescription model_;
  size_t first_projection_ = 0;  // of the unit
};

}  // namespace trainyard
