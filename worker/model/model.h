// A model is a list of units and a forward pass that walks it. A unit is what a data-parallel strategy communicates
// together: a block of the network, and the root for what is left (embeddings, last norm). LibTorch's C++ modules have
// no forward hooks, so the forward pass hands each unit to the strategy itself, in a for-loop anyone can read.
//
//   model->LossSum(inputs, targets, strategy, key)
//      BeforeRoot()                     embeddings
//      x = RunUnit(1, x, body of 1)     and so on, in the order of units()
//      return AfterRoot(loss)           last norm, head, loss
//
// Parameters have stable names and shapes; checkpoints use them as they stand. Their order is that of `parameters()`.
// Not thread-safe: a model belongs to the thread that trains it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
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

class ProductTape;

// Parameters [first_parameter, first_parameter + num_parameters) of the model.
struct Unit {
  std::string name;
  int first_parameter = 0;
  int num_parameters = 0;
};

// The computation of a unit: its output from `x`. It gives the same again when called again, and owns what it captures.
// Its matrix products go by way of `tape`, if that is not null (product_tape.h).
using UnitBody = std::function<at::Tensor(const at::Tensor& x, ProductTape* tape)>;

// Takes gradients where they are made, in place of autograd: an operation's backward asks where the gradient of a
// parameter goes and writes it there, in whatever type that is, with no tensor between. What is not taken goes through
// autograd as ever. Possible errors are thrown, as those of a UnitHooks.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  struct Place {
    at::Tensor tensor;  // dense, in the parameter's shape; undefined: not taken
    bool first = true;  // written over; otherwise the gradient is added to what is there
  };
  // `parameter`: its number in the model. One that is taken must be written, then Done called, once in a pass.
  virtual Place Claim(int parameter) = 0;
  virtual void Done(int parameter) = 0;
};

// What a strategy does around each unit. `unit` is an index into Model::units(); 0 is the root, which is in use from
// BeforeRoot until the pass (backward included) is over. No operation may change a unit's output in place.
class UnitHooks {
 public:
  virtual ~UnitHooks() = default;
  virtual void BeforeRoot() = 0;
  // Returns `y`, the result of the pass, or a view of it.
  virtual at::Tensor AfterRoot(const at::Tensor& y) = 0;
  virtual at::Tensor RunUnit(int unit, const at::Tensor& x, const UnitBody& body) = 0;
  // Where backward of the pass under way leaves gradients; null: to autograd.
  virtual GradientSink* sink() { return nullptr; }
};

// For passes that no strategy takes part in: sampling, a single process.
class NoUnitHooks final : public UnitHooks {
 public:
  void BeforeRoot() override {}
  at::Tensor AfterRoot(const at::Tensor& y) override { return y; }
  at::Tensor RunUnit(int, const at::Tensor& x, const UnitBody& body) override { return body(x, nullptr); }
};

// All that randomness in a forward pass may depend on: never the rank, so that numbers do not change with the layout.
struct DropoutKey {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t micro_batch = 0;  // index within the step, over all ranks
};

// How parameters begin: writes the values of one, by its number, to `out`, which has its shape and any floating type,
// and lies on any device.
using InitialValues = std::function<void(int parameter, const at::Tensor& out)>;

// A model is made without memory for its parameters (sizes on a null address): whoever trains it decides where they
// lie, and never needs the whole of it to draw them. Anything that reads an unbacked parameter fails at once.
class Model {
 public:
  virtual ~Model() = default;

  // Initial values; for a model that has memory, those that are there.
  void WriteInitialValues(int parameter, const at::Tensor& out) const;
  // REQUIRES: the model has no memory yet.
  void set_initial_values(InitialValues initial) { initial_ = std::move(initial); }
  // Gives each parameter memory of its own with its initial values, for whoever trains or samples plainly.
  void Materialize();
  // Where the parameters lie once they get memory. REQUIRES: the model has none yet.
  void PlaceOn(at::Device device);

  const std::vector<Unit>& units() const { return units_; }
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  int64_t num_elements() const;

  // Sum of the cross-entropies of all tokens of `inputs` and `targets` (int64, [sequences, tokens]), as a scalar of the
  // logits' type; under gradient mode it can be run backward. The sum, not the mean: whoever adds up micro-batches and
  // ranks divides once. A target of -1 counts for nothing. With `dropout` unset nothing is dropped (evaluation).
  // REQUIRES: tokens <= context; 0 <= inputs < vocabulary; -1 <= targets < vocabulary.
  virtual at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor& targets, UnitHooks& hooks,
                             std::optional<DropoutKey> dropout) = 0;

  // Scores of the next token after each position: [sequences, tokens, vocabulary]. Nothing is dropped.
  virtual at::Tensor Logits(const at::Tensor& inputs, UnitHooks& hooks) = 0;

  // Of logits, from which the loss is computed; unless it was set, the parameters'. Changes nothing else.
  void set_output_type(at::ScalarType type) { output_type_ = type; }

  // Whether parameter `number`, of the root, is used before the units run (an embedding), not only after them: then its
  // gradient comes through all of them.
  virtual bool FeedsUnits(int /*number*/) const { return true; }

  // The order in which backward is done with the gradients of the parameters, each named once; frozen ones are passed
  // over. Replicated parameters are cut into buckets in it: it is known before the first step, so ranks have nothing to
  // tell each other and a resumed run begins with the same buckets. Unless a model knows better: from the last to the
  // first.
  virtual std::vector<int> ReadyOrder() const;

  virtual int64_t context() const = 0;
  virtual int64_t vocabulary() const = 0;

 protected:
  std::vector<Unit> units_;
  std::vector<NamedTensor> parameters_;  // leaves; those that require no gradient are frozen
  InitialValues initial_;                // null: the parameters have memory
  std::optional<at::ScalarType> output_type_;
};

// A tensor of that shape and type on a null address of `device`.
at::Tensor NewUnbacked(at::IntArrayRef sizes, at::ScalarType type, at::Device device = at::kCPU);

// Takes the parameters whose names match one of `globs` out of training; they need no memory yet. Possible errors:
// InvalidArgument for a glob that matches nothing, and where nothing would be left to train.
absl::Status Freeze(const std::vector<std::string>& globs, Model& model);

// Whether `values`, of which only names and shapes are looked at, are the model's parameters. Possible errors: those of
// LoadParameters.
absl::Status CheckParameters(const std::vector<NamedTensor>& values, const Model& model);

// Copies `values` into the model's parameters by name. All problems are told at once, at most three of a kind.
// REQUIRES: the model has memory. Possible errors: InvalidArgument for a name that is missing, unknown or given twice,
// and for a wrong shape.
absl::Status LoadParameters(const std::vector<NamedTensor>& values, Model& model);

}  // namespace trainyard
