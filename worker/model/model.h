// A model is a list of units and a forward pass that walks it. A unit is what a data-parallel strategy communicates
// together: a block of the network, and the root for what is left (embeddings, last norm). LibTorch's C++ modules have
// no forward hooks, so the forward pass calls the strategy before and after each unit itself, in a for-loop anyone can
// read.
//
//   model->LossSum(inputs, targets, strategy, key)
//      root:    BeforeUnit(0)  embeddings
//      block i: BeforeUnit(i + 1)  block  AfterUnit(i + 1)
//      root:    last norm, head, loss  AfterUnit(0)
//
// Parameters have stable names and shapes; checkpoints use them as they stand. Their order is that of `parameters()`.
// Not thread-safe: a model belongs to the thread that trains it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace trainyard {

// A tensor under the name it has in a checkpoint.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Parameters [first_parameter, first_parameter + num_parameters) of the model.
struct Unit {
  std::string name;
  int first_parameter = 0;
  int num_parameters = 0;
};

// What a strategy does around a unit's forward pass. `unit` is an index into Model::units().
class UnitHooks {
 public:
  virtual ~UnitHooks() = default;
  virtual void BeforeUnit(int unit) = 0;
  virtual void AfterUnit(int unit) = 0;
};

// For passes that no strategy takes part in: sampling, a single process.
class NoUnitHooks final : public UnitHooks {
 public:
  void BeforeUnit(int) override {}
  void AfterUnit(int) override {}
};

// All that randomness in a forward pass may depend on: never the rank, so that numbers do not change with the layout.
struct DropoutKey {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t micro_batch = 0;  // index within the step, over all ranks
};

class Model {
 public:
  virtual ~Model() = default;

  const std::vector<Unit>& units() const { return units_; }
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  int64_t num_elements() const;

  // Sum of the cross-entropies of all tokens of `inputs` and `targets` (int64, [sequences, tokens]), as a scalar of the
  // model's type; under gradient mode it can be run backward. The sum, not the mean: whoever adds up micro-batches and
  // ranks divides once. With `dropout` unset nothing is dropped (evaluation).
  // REQUIRES: tokens <= context; 0 <= inputs, targets < vocabulary.
  virtual at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor& targets, UnitHooks& hooks,
                             std::optional<DropoutKey> dropout) = 0;

  // Scores of the next token after each position: [sequences, tokens, vocabulary]. Nothing is dropped.
  virtual at::Tensor Logits(const at::Tensor& inputs, UnitHooks& hooks) = 0;

  virtual int64_t context() const = 0;
  virtual int64_t vocabulary() const = 0;

 protected:
  std::vector<Unit> units_;
  std::vector<NamedTensor> parameters_;  // leaves that require gradients
};

// Copies `values` into the model's parameters by name. All problems are told at once, at most three of a kind.
// Possible errors: InvalidArgument for a name that is missing, unknown or given twice, and for a wrong shape.
absl::Status LoadParameters(const std::vector<NamedTensor>& values, Model& model);

}  // namespace trainyard
