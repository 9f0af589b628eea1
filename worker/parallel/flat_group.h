// A flat group: parameters that travel together, side by side in one flat buffer, with their gradients and this rank's
// share of both. Where parameters are replicated a group is a bucket, where they are sharded a unit.
//
// [Note: doors] Parameters that are sharded are views of one storage whose length never changes and whose address is
// null until Open() points it at memory that holds the whole group. Autograd may keep such a parameter, or any view of
// it, from forward to backward: all of them look through the storage, so closing and opening it again is valid, changes
// no version counter, allocates nothing and costs nothing. Looking through a closed door fails at once; it never shows
// another unit's weights.
//
// Belongs to the loop's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/collectives/communicator.h"
#include "worker/diagnostics/ledger.h"
#include "worker/model/model.h"
#include "worker/numerics/adamw.h"
#include "worker/numerics/precision.h"
#include "worker/parallel/offload.h"
#include "worker/parallel/shard_layout.h"
#include "worker/parallel/sharding.h"

namespace trainyard {

// In which gradients are added up on a rank: sums of many in 16 bits lose too much.
at::ScalarType AccumulatorType(const Precision& precision);

class FlatGroup {
 public:
  // `parameters` are indices into those of `model`, whose values are copied; all are trained, or all frozen: those have
  // neither gradients nor moments. They lie with those that are decayed first. `shard` is the communicator of dp_shard;
  // what shards nothing has a layout of one rank. `ledger` may be null; not owned. `world`: what whole gradients are
  // reduced by where nothing is sharded; may be null. `unit`: that it comes and goes with, -1: it is always there.
  FlatGroup(const Model& model, std::string name, std::vector<int> parameters, const StateSharding& sharding,
            const Precision& precision, Communicator& shard, const Offload& offload = {}, Ledger* ledger = nullptr,
            Communicator* world = nullptr, int unit = -1);

  FlatGroup(const FlatGroup&) = delete;
  FlatGroup& operator=(const FlatGroup&) = delete;

  // Makes the values those of rank 0 of `world`, then moves the model's parameters here. Possible errors: those of a
  // Collective.
  absl::Status CopyFromRankZero(Communicator& world);

  const std::string& name() const { return name_; }
  const StateSharding& sharding() const { return sharding_; }
  const std::vector<int>& parameters() const { return parameters_; }  // in the model's order
  const ShardLayout& layout() const { return layout_; }               // of parameters()[i]
  int rank() const { return rank_; }                                  // which shard is this rank's
  bool trained() const { return trained_; }
  int unit() const { return unit_; }

  // Flat. The whole is undefined where it is sharded; a shard is a part of the whole where that is replicated.
  const at::Tensor& whole_parameters() const { return whole_parameters_; }
  const at::Tensor& whole_gradients() const { return whole_gradients_; }
  const at::Tensor& weights() const { return weights_; }                  // this rank's, as computed with and gathered
  const at::Tensor& parameter_shard() const { return parameter_shard_; }  // as updated: the masters, or the weights
  const at::Tensor& gradient_shard() const { return gradient_shard_; }
  const at::Tensor& first_moment() const { return first_moment_; }  // of this rank's shard
  const at::Tensor& second_moment() const { return second_moment_; }

  // The masters are a second copy: of another type, or in another memory, which what is frozen has no use for.
  bool keeps_masters() const { return precision_.keeps_masters() || (offload_.optimizer && trained_); }
  // This rank's weights are sharded and lie in host memory.
  bool weights_on_host() const { return offload_.parameters && sharding_.parameters == Sharding::kSharded; }

  // Sharded gradients: whether their sums are of use, as far as the ledger is concerned.
  void HoldGradients(bool in_use);
  // After the masters were changed from outside: sets this rank's weights by them.
  void TakeMasters();

  // For sharded parameters: see [Note: doors]. `whole` is flat and at least layout().total long; the caller keeps it.
  void Open(const at::Tensor& whole);
  void Close();

  // Parameter parameters()[i] in a flat buffer laid out as this group, in its own shape.
  at::Tensor View(const at::Tensor& flat, size_t i) const;
  // Sets to zero what lies between the parameters.
  void ZeroGaps(const at::Tensor& flat) const;

  // This rank's shard for the optimizer: at most one range that decays and one that does not.
  std::vector<AdamW::Range> OptimizerRanges() const;

 private:
  void Allocate(Communicator& shard, Ledger* ledger, Communicator* world);
  at::Tensor NewDoor(int64_t offset, const at::Tensor& like) const;
  std::vector<AdamW::Span> SpansIn(const ElementRange& range) const;

  const Model& model_;
  const std::string name_;
  const StateSharding sharding_;
  const Precision precision_;
  const Offload offload_;
  const at::Device device_;
  const int rank_;
  const int unit_;
  std::vector<int> parameters_;
  bool trained_ = false;
  ShardLayout layout_;
  int64_t num_decayed_ = 0;  // elements at the start of the whole
  std::vector<ElementRange> gaps_;
  c10::Storage doors_;
  at::Tensor whole_parameters_, whole_gradients_, weights_, parameter_shard_, gradient_shard_, first_moment_,
      second_moment_;
  TrackedMemory parameters_use_, masters_use_, gradients_use_, moment_uses_[2];
};

using FlatGroups = std::vector<std::unique_ptr<FlatGroup>>;

}  // namespace trainyard
