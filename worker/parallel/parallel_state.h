// The state of a parallel model (parameters and moments of the optimizer, and a few counters) under the parameters' own
// names, independent of how it is sharded: what checkpoints hold, so that every layout can load what any other wrote.
// Where a rank holds only a part of the model (models/model_part.h), its tensors are boxes (common/box.h) of whole
// tensors.
//
// After the first error of the strategy every call that can fail returns that error. Belongs to the loop's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/box.h"
#include "common/tensor_roles.h"
#include "worker/model/model.h"
#include "worker/numerics/loss_scaler.h"

namespace trainyard {

// A box of a tensor of the state.
struct StateEntry {
  std::string role;
  std::string name;  // of the parameter, of which a rank may have several boxes
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> shape;  // of the whole tensor
  Box box;
};

struct NamedHash {
  std::string name;  // with its box, if that is not the whole parameter: "h.0.attn.c_attn.weight[0:8,0:4]"
  std::string hash;  // xxh3-128, hex
  bool operator==(const NamedHash&) const = default;
};

struct ParameterDifference {
  std::string name;        // the first parameter that is not the same on all ranks that hold it
  std::vector<int> ranks;  // ranks of the job whose values differ from those of most ranks
};

// `values` are the whole box in its shape, dense and row-major, and valid during the call.
using StateVisitor = absl::FunctionRef<absl::Status(const StateEntry& entry, const at::Tensor& values)>;
// `values`, flat and dense, are elements [first, first + values.numel()) of the box, in row-major order.
using RangeVisitor = absl::FunctionRef<absl::Status(const StateEntry& entry, int64_t first, const at::Tensor& values)>;
// Fills `out`, flat and dense, with elements [first, first + count) of the box; count > 0.
using RangeSource =
    absl::FunctionRef<absl::Status(const StateEntry& entry, int64_t first, int64_t count, const at::Tensor& out)>;

class ParallelState {
 public:
  virtual ~ParallelState() = default;

  // All boxes of this rank's part, in the order of Visit: by role, then in the order in which the groups store them.
  virtual std::vector<StateEntry> Entries() const = 0;
  // Collective; called once, before the first save. Needs no communication if every rank has the whole model. Returns
  // the whole tensors of the job, also those of which this rank holds no box. Agrees with the ranks that hold copies of
  // this rank's parameters on ranges that all of them visit, because the shards of their groups may be cut differently.
  virtual absl::StatusOr<std::vector<StateEntry>> PrepareSaves() = 0;

  // Collective. Passes each box of this rank's part to `visit` on data rank 0 (the other ranks only take part), with
  // one group in memory at a time. An error of `visit` is returned after all collectives are done; `visit` is not
  // called again.
  virtual absl::Status Visit(StateVisitor visit) = 0;
  // The same for the parameters alone.
  virtual absl::Status VisitParameters(StateVisitor visit) = 0;

  // Local. Passes the ranges of the state that this rank must write. Over all ranks of the job every element of every
  // tensor is visited once. What several data ranks hold is divided among them; what several tensor ranks hold is
  // written by tensor rank 0, and what the first and the last stage both hold is written by the first. The values are
  // views of the state: any thread may read them until the next Step or Load. The first error of `visit` is returned.
  virtual absl::Status VisitOwn(RangeVisitor visit) = 0;
  // Local. Passes ranges that this rank holds and another rank must write, so that a comparison finds ranks whose
  // copies differ. Each is a range that VisitOwn passes on that other rank. There are none where nothing is held twice.
  virtual absl::Status VisitWitnessed(RangeVisitor visit) = 0;

  // Local. Overwrites the whole state; requests the ranges that this rank holds. Returns the first error of `source`,
  // after which the state is not valid.
  virtual absl::Status Load(RangeSource source) = 0;
  // The same for the parameters alone, before the first step, while the moments are zero.
  virtual absl::Status LoadParameters(RangeSource source) = 0;

  virtual uint64_t num_updates() const = 0;
  virtual void set_num_updates(uint64_t num_updates) = 0;
  // Changes with every step where losses are scaled.
  virtual LossScale loss_scale() const = 0;
  virtual void set_loss_scale(const LossScale& scale) = 0;

  // Names of the parameters of each trained group, in the order in which the last round of a step reduces the groups.
  virtual std::vector<std::vector<std::string>> BucketOrder() const = 0;

  // Collective. Returns the hash of each parameter of this rank's part, in the model's order, on every rank.
  virtual absl::StatusOr<std::vector<NamedHash>> HashParameters() = 0;
  // Collective. Compares the hashes of each parameter over all ranks that hold it: those of its master weights and, if
  // it has replicated weights in other memory, those of these weights. All ranks of the job return the same answer.
  virtual absl::StatusOr<std::optional<ParameterDifference>> CompareParameters() = 0;
};

}  // namespace trainyard
