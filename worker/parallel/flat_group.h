// A flat group: parameters that are communicated together, stored one after another in one flat buffer, with their
// gradients and this rank's shard of both. Where parameters are replicated a group is a bucket; where they are sharded
// it is a unit. group_plan.h lists the exceptions.
//
// [Note: sharded parameters] Sharded parameters are views of one storage whose length never changes and whose address
// is null until Open() points it at memory that holds the whole group. Autograd may store such a parameter, or any view
// of it, from forward to backward: all of them access the same storage, so closing and reopening it is valid, changes
// no version counter and allocates nothing. An access while the storage is closed fails immediately; it never reads
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

// The type in which a rank adds up gradients: sums of many values in 16 bits lose too much precision.
at::ScalarType AccumulatorType(const Precision& precision);

class FlatGroup {
 public:
  // `parameters` are indices into the parameters of `model`. Either all of them are trained, or all are frozen and have
  // neither gradients nor moments. The decayed ones are stored first. `shard` is the communicator of dp_shard; a group
  // that shards nothing has a layout of one shard. `ledger` may be null; not owned. `data` reduces whole gradients
  // where nothing is sharded; may be null. `unit`: gathered and freed with this unit; -1: never freed.
  FlatGroup(const Model& model, std::string name, std::vector<int> parameters, const StateSharding& sharding,
            const Precision& precision, Communicator& shard, const Offload& offload = {}, Ledger* ledger = nullptr,
            Communicator* data = nullptr, int unit = -1);

  FlatGroup(const FlatGroup&) = delete;
  FlatGroup& operator=(const FlatGroup&) = delete;

  // Copies the values of rank 0 of `data`. Fails with the errors of a Collective.
  absl::Status CopyFromRankZero(Communicator& data);
  // Makes the model's parameters views of this group. Called once, before the first pass.
  void MoveParametersHere();

  const std::string& name() const { return name_; }
  const StateSharding& sharding() const { return sharding_; }
  const std::vector<int>& parameters() const { return parameters_; }  // in the model's order
  const ShardLayout& layout() const { return layout_; }               // of parameters()[i]
  int rank() const { return rank_; }                                  // the number of this rank's shard
  bool trained() const { return trained_; }
  int unit() const { return unit_; }

  // Flat. The whole tensor is undefined where it is sharded; where it is replicated, a shard is a part of it.
  const at::Tensor& whole_parameters() const { return whole_parameters_; }
  const at::Tensor& whole_gradients() const { return whole_gradients_; }
  const at::Tensor& weights() const { return weights_; }                  // this rank's shard for computation
  const at::Tensor& parameter_shard() const { return parameter_shard_; }  // what is updated: the masters, or weights()
  const at::Tensor& gradient_shard() const { return gradient_shard_; }
  const at::Tensor& first_moment() const { return first_moment_; }  // of this rank's shard
  const at::Tensor& second_moment() const { return second_moment_; }

  // Whether the masters are a second copy of the weights, in another type or (trained groups only) in host memory.
  bool keeps_masters() const { return precision_.keeps_masters() || (offload_.optimizer && trained_); }
  // Whether this rank's weights are sharded and stored in host memory.
  bool weights_on_host() const { return offload_.parameters && sharding_.parameters == Sharding::kSharded; }

  // Sharded gradients: records in the ledger whether their memory is in use.
  void SetGradientsInUse(bool in_use);
  // Copies the masters to this rank's weights, after the masters were changed from outside.
  void CopyMastersToWeights();

  // For sharded parameters: see [Note: sharded parameters]. `whole` is flat, has at least layout().total elements and
  // is owned by the caller.
  void Open(const at::Tensor& whole);
  void Close();

  // Returns parameter parameters()[i], in its own shape, from a flat buffer with the layout of this group.
  at::Tensor View(const at::Tensor& flat, size_t i) const;
  // The parts of this rank's gradient that it counts in the norm of the model's gradient, without the copies that a
  // lower tensor rank or the first stage counts. They are taken from whole_gradients() if `whole`, otherwise from
  // gradient_shard().
  std::vector<at::Tensor> CountedGradients(bool whole) const;
  // is_replicated: each of several tensor ranks has all parameters of the group whole. is_tied: the first and the last
  // stage both have them.
  bool is_replicated() const { return is_replicated_; }
  bool is_tied() const { return is_tied_; }
  // The sum of the gradients after the reduction: of this rank's shard if reductions scatter, otherwise the whole.
  const at::Tensor& gradient_sum(bool scatters) const {
    return !scatters && whole_gradients_.defined() ? whole_gradients_ : gradient_shard_;
  }
  // Copies the values of rank 0 of `peers`, which has a group with an equal layout.
  absl::Status CopyFromPeer(Communicator& peers);
  // Sets the gaps between the parameters to zero.
  void ZeroGaps(const at::Tensor& flat) const;

  // Returns this rank's shard for the optimizer: at most one range with weight decay and one without.
  std::vector<AdamW::Range> OptimizerRanges() const;

 private:
  void Allocate(Communicator& shard, Ledger* ledger, Communicator* data);
  at::Tensor NewShardedParameter(int64_t offset, const at::Tensor& like) const;
  std::vector<AdamW::Span> SpansIn(const ElementRange& range) const;
  int NumberInModel(int i) const;
  ElementRuns RunsInModel(int i) const;

  const Model& model_;
  const std::string name_;
  const StateSharding sharding_;
  const Precision precision_;
  const Offload offload_;
  const at::Device device_;
  const int rank_;
  const int unit_;
  std::vector<int> parameters_;
  bool trained_ = false, is_replicated_ = false, is_tied_ = false;
  ShardLayout layout_;
  int64_t num_decayed_ = 0;  // elements at the start of the layout
  std::vector<ElementRange> gaps_;
  c10::Storage storage_;  // of the sharded parameters
  at::Tensor whole_parameters_, whole_gradients_, weights_, parameter_shard_, gradient_shard_, first_moment_,
      second_moment_;
  TrackedMemory parameters_use_, masters_use_, gradients_use_, moment_uses_[2];
};

using FlatGroups = std::vector<std::unique_ptr<FlatGroup>>;

}  // namespace trainyard
