// A model is a list of units and a forward pass that runs them. A unit is the set of parameters that a data-parallel
// strategy communicates together: a block of the network, or the root, which has all other parameters (embeddings, last
// norm). LibTorch's C++ modules have no forward hooks, so the forward pass calls the strategy for each unit explicitly,
// in a plain loop.
//
//   model->LossSum(inputs, targets, strategy, key)
//      BeforeRoot()                     embeddings
//      x = RunUnit(1, x, body of 1)     and so on, in the order of units()
//      return AfterRoot(loss)           last norm, head, loss
//
// Parameters have stable names and shapes, which checkpoints use unchanged, in the order of `parameters()`. Not
// thread-safe: a model is used only by the thread that trains it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "models/model_description.h"
#include "models/model_part.h"

namespace trainyard {

// A tensor with its name in a checkpoint.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

class KeyValueCache;
class ProductTape;
struct CacheShape;
struct SequenceTokens;

// Parameters [first_parameter, first_parameter + num_parameters) of the model.
struct Unit {
  std::string name;
  int first_parameter = 0;
  int num_parameters = 0;
  int number = 0;  // in the whole model, of which this model may be a part
};

// The computation of a unit: its output for input `x`. It must return the same result when called again, and own
// everything that it captures. Its matrix products use `tape` if that is not null (product_tape.h).
using UnitBody = std::function<at::Tensor(const at::Tensor& x, ProductTape* tape)>;

// Receives gradients where they are computed, instead of autograd: an operation's backward asks where the gradient of a
// parameter should be stored and writes it there, in the type of that memory, without an intermediate tensor. Gradients
// that the sink does not accept go through autograd. Errors are thrown, like those of UnitHooks.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  struct Place {
    at::Tensor tensor;       // dense, in the parameter's shape; undefined: not accepted
    bool overwrites = true;  // false: the gradient is added to the content
  };
  // `parameter`: its index in the model. If the gradient is accepted, the operation must write it and then call Done,
  // exactly once in each pass.
  virtual Place Claim(int parameter) = 0;
  virtual void Done(int parameter) = 0;
  // Whether the gradients of weights are computed later, because other stages of a pipeline wait for the gradients of
  // the inputs. If so, the operation passes to Defer a function that computes the gradient of a weight and calls Claim
  // and Done.
  virtual bool defers() const { return false; }
  virtual void Defer(std::function<void()> /*product*/) {}
};

// The actions of a strategy around each unit. `unit` is an index into Model::units(); 0 is the root, which is in use
// from BeforeRoot until the end of the pass (backward included). No operation may change a unit's output in place.
class UnitHooks {
 public:
  virtual ~UnitHooks() = default;
  virtual void BeforeRoot() = 0;
  // Returns `y`, the result of the pass, or a view of it.
  virtual at::Tensor AfterRoot(const at::Tensor& y) = 0;
  virtual at::Tensor RunUnit(int unit, const at::Tensor& x, const UnitBody& body) = 0;
  // The sink for the gradients of the current pass; null: they go to autograd.
  virtual GradientSink* sink() { return nullptr; }
};

// For passes without a strategy; only tests run them.
class NoUnitHooks final : public UnitHooks {
 public:
  void BeforeRoot() override {}
  at::Tensor AfterRoot(const at::Tensor& y) override { return y; }
  at::Tensor RunUnit(int, const at::Tensor& x, const UnitBody& body) override { return body(x, nullptr); }
};

// What the random draws of a forward pass depend on, in addition to the place of an element in the model
// (ops/dropout.h). Neither the rank nor the size of micro-batches is a part of the key, so results do not depend on
// the layout.
struct DropoutKey {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t first_sample = 0;  // index within the step, across all ranks, of the first sequence of the pass
};

// The samples of one pass; see Model::LossSum.
struct MicroBatch {
  at::Tensor inputs = {};
  at::Tensor targets = {};
  at::Tensor starts = {};
  std::optional<DropoutKey> dropout = {};
};

// Writes the initial values of one parameter, given by its index in the whole model, to `out`, which has the shape of
// the whole parameter and any floating-point type and may be on any device.
using InitialValues = std::function<void(int parameter, const at::Tensor& out)>;

// A model is created without memory for its parameters (their data address is null): the user of the model decides
// where they are stored, and can initialise them one by one. Any access to the data of such a parameter fails
// immediately.
//
// A Model may be a part of a whole model (models/model_part.h): it then has the parameters and units of that part,
// under the names that they have in the whole model, and runs chunks instead of whole passes.
class Model {
 public:
  virtual ~Model() = default;

  // Writes the initial values of a parameter to `out`; if the model has memory, the parameter's current values.
  void WriteInitialValues(int parameter, const at::Tensor& out) const;
  // REQUIRES: the model has no memory yet.
  void set_initial_values(InitialValues initial) { initial_ = std::move(initial); }
  // Allocates memory for each parameter and writes its initial values, for use without a strategy.
  void Materialize();
  // The device on which the parameters' memory will be allocated. REQUIRES: the model has no memory yet.
  void PlaceOn(at::Device device);

  const std::vector<Unit>& units() const { return units_; }
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  int64_t num_elements() const;
  // By index of the parameter: its number in the whole model, and the box (the rectangular part) of it that this model
  // has. Empty in models that do not call AddParameters (only tests have such models): all are whole.
  const std::vector<PartParameter>& boxes() const { return boxes_; }
  // Whether this model has all of parameter `index`, not only a box of it.
  bool IsWhole(int index) const;
  const ModelDescription& description() const { return description_; }  // of the whole model
  const ModelPart& part() const { return part_; }

  // The sum of the cross-entropies of all tokens of `inputs` and `targets` (int64, [sequences, tokens]), as a scalar in
  // fp64 if the logits are in fp64, otherwise in fp32; in gradient mode backward can be run on it. The result is the
  // sum and not the mean, so that the code that adds micro-batches and ranks divides once. A target of -1 is ignored.
  // If `dropout` is unset, nothing is dropped (evaluation). `starts` is undefined, or int64 with the shape of the
  // inputs and holds for each token the position where its document begins: no token sees another document, and
  // positions count from there. REQUIRES: tokens <= context; 0 <= inputs < vocabulary; -1 <= targets < vocabulary;
  // 0 <= starts <= the token's position.
  virtual at::Tensor LossSum(const at::Tensor& inputs, const at::Tensor& targets, UnitHooks& hooks,
                             std::optional<DropoutKey> dropout, const at::Tensor& starts = {}) = 0;

  // Runs chunk `chunk` of the part on a micro-batch. `boundary` is the output of the model's previous chunk, of shape
  // BoundaryShape(batch), and undefined for the first one. Returns the input of the next chunk; the last chunk returns
  // the loss that LossSum returns. A chunk without the head ignores the targets, one without the embedding ignores the
  // inputs. The default is for models that cannot be divided: it ignores `chunk` and `boundary` and runs LossSum.
  virtual at::Tensor RunChunk(int chunk, const at::Tensor& boundary, const MicroBatch& batch, UnitHooks& hooks);

  // The shape of what chunks pass on: [sequences, tokens, width], or, where tensor ranks divide the sequence, this
  // rank's rows of it (ops/sequence_part.h): [share, width].
  std::vector<int64_t> BoundaryShape(const MicroBatch& batch) const;

  // Scores of the next token after each position: [sequences, tokens, vocabulary], without dropout.
  virtual at::Tensor Logits(const at::Tensor& inputs, UnitHooks& hooks) = 0;

  // Adds tokens to sequences of the cache (key_value_cache.h) and returns the scores of the token after the last token
  // of each sequence: [added, vocabulary], without a gradient. If each sequence gets one token, its scores depend on no
  // other sequence. Throws if the model cannot generate text. REQUIRES: no sequence is named twice; each gets a token;
  // the cache is for this model, has at most context() positions, and enough free ones; 0 <= tokens < vocabulary.
  virtual at::Tensor Decode(const std::vector<SequenceTokens>& added, KeyValueCache& cache);
  virtual CacheShape cache_shape() const;

  // The type of the logits, from which the loss is computed; by default the type of the parameters.
  void set_output_type(at::ScalarType type) { output_type_ = type; }

  // Whether root parameter `number` (its index in parameters()) is used before the other units run (an embedding), and
  // not only after them. If so, its gradient is complete only after backward has passed all units.
  virtual bool FeedsUnits(int /*number*/) const { return true; }

  // The order in which backward completes the gradients of the parameters, each listed once; frozen parameters are
  // ignored. Replicated parameters are grouped into buckets in this order. The order is known before the first step, so
  // ranks need not exchange it, and a resumed run starts with the same buckets. By default from the last parameter to
  // the first.
  virtual std::vector<int> ReadyOrder() const;

  virtual int64_t context() const = 0;
  virtual int64_t vocabulary() const = 0;

 protected:
  // Adds the parameters of a part of `description`, which get no memory yet, and its units.
  void AddParameters(const ModelDescription& description, const ModelPart& part, at::ScalarType type);
  void AddParameters(const ModelDescription& description, at::ScalarType type) {
    AddParameters(description, WholeModel(description.sizes), type);
  }

  // The units of a chunk of the part. The root (unit 0) is in no chunk.
  struct UnitRange {
    int first = 0;
    int last = 0;  // exclusive
  };
  UnitRange UnitsOfChunk(int chunk) const;
  // By index of a parameter in the whole model: the index of its first box here; -1: it is in another part.
  std::vector<int> IndexesInPart() const;

  std::vector<Unit> units_;
  std::vector<NamedTensor> parameters_;  // leaf tensors; frozen ones require no gradient
  std::vector<PartParameter> boxes_;     // by index of the parameter; empty: all are whole
  ModelDescription description_;
  ModelPart part_;
  InitialValues initial_;  // null: the parameters have memory
  std::optional<at::ScalarType> output_type_;
};

// The box of a parameter of the whole model, as a view.
at::Tensor BoxOf(const PartParameter& box, at::Tensor whole);

// The positions of tokens in documents with these starts (Model::LossSum); undefined if `starts` is.
at::Tensor PositionsInDocuments(const at::Tensor& starts);

// A tensor of the given shape and type whose data address on `device` is null.
at::Tensor NewUnbacked(at::IntArrayRef sizes, at::ScalarType type, at::Device device = at::kCPU);

// Excludes the parameters whose names match one of `globs` from training; they need no memory yet. Possible errors:
// InvalidArgument if a glob matches nothing, or if no parameter would be left to train.
absl::Status Freeze(const std::vector<std::string>& globs, Model& model);

// Checks that `values` have the names and shapes of the parameters of the whole model, of which `model` may be a part;
// ignores their data. Possible errors: those of LoadParameters.
absl::Status CheckParameters(const std::vector<NamedTensor>& values, const Model& model);

// Copies `values`, the parameters of the whole model, into the parameters of `model` by name; a part of a model copies
// only its boxes. REQUIRES: the model has memory. Possible errors: InvalidArgument if names are missing, unknown or
// duplicate, or shapes are wrong; the message lists all kinds of problems, with at most three examples each.
absl::Status LoadParameters(const std::vector<NamedTensor>& values, Model& model);

}  // namespace trainyard
