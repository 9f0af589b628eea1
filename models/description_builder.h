// Collects the parameters and units of a model in the order of their numbers. For the descriptions of the families.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/model_description.h"

namespace trainyard {

class DescriptionBuilder {
 public:
  explicit DescriptionBuilder(const ModelSizes& sizes) { model_.sizes = sizes; }

  void BeginUnit(std::string name) {
    model_.units.push_back(
        {.name = std::move(name), .first_parameter = static_cast<int>(model_.parameters.size()), .num_parameters = 0});
  }
  // Adds a parameter of the unit that was begun last.
  void AddMatrix(std::string name, int64_t rows, int64_t columns) {
    Add(std::move(name), {rows, columns}, {.kind = InitialValue::Kind::kNormal, .deviation = 0.02});
  }
  void AddOnes(std::string name, int64_t size) { Add(std::move(name), {size}, {.kind = InitialValue::Kind::kOnes}); }
  void AddZeros(std::string name, int64_t size) { Add(std::move(name), {size}, {.kind = InitialValue::Kind::kZeros}); }

  ModelDescription TakeModel() { return std::move(model_); }

 private:
  void Add(std::string name, std::vector<int64_t> shape, InitialValue initial) {
    model_.parameters.push_back({.name = std::move(name), .shape = std::move(shape), .initial = initial});
    model_.units.back().num_parameters++;
  }

  ModelDescription model_;
};

}  // namespace trainyard
