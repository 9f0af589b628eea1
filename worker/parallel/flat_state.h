// ParallelState over flat groups.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/parallel/first_error.h"
#include "worker/parallel/flat_group.h"
#include "worker/parallel/mesh_communicators.h"
#include "worker/parallel/parallel_state.h"
#include "worker/parallel/updater.h"

namespace trainyard {

// The 128-bit XXH3 hash of a parameter's values.
struct ParameterHash {
  uint64_t low = 0, high = 0;
  bool operator==(const ParameterHash&) const = default;
};

class FlatState final : public ParallelState {
 public:
  // Owns nothing. `reduces_last_unit_first`: the passes reduce the groups of units from the last to the first;
  // otherwise, groups are reduced in their order. `errors`: those of the strategy.
  FlatState(const Model& model, const FlatGroups& groups, bool reduces_last_unit_first,
            const MeshCommunicators& communicators, Updater& updater, FirstError& errors)
      : model_(model),
        groups_(groups),
        reduces_last_unit_first_(reduces_last_unit_first),
        communicators_(communicators),
        updater_(updater),
        errors_(errors) {}

  std::vector<StateEntry> Entries() const override;
  absl::StatusOr<std::vector<StateEntry>> PrepareSaves() override;
  absl::Status Visit(StateVisitor visit) override;
  absl::Status VisitParameters(StateVisitor visit) override;
  absl::Status VisitOwn(RangeVisitor visit) override;
  absl::Status VisitWitnessed(RangeVisitor visit) override;
  absl::Status Load(RangeSource source) override { return LoadRoles(source, /*parameters_only=*/false); }
  absl::Status LoadParameters(RangeSource source) override { return LoadRoles(source, /*parameters_only=*/true); }

  uint64_t num_updates() const override { return updater_.num_updates(); }
  void set_num_updates(uint64_t num_updates) override { updater_.set_num_updates(num_updates); }
  LossScale loss_scale() const override { return loss_scale_; }
  void set_loss_scale(const LossScale& scale) override { loss_scale_ = scale; }

  std::vector<std::vector<std::string>> BucketOrder() const override;
  absl::StatusOr<std::vector<NamedHash>> HashParameters() override;
  absl::StatusOr<std::optional<ParameterDifference>> CompareParameters() override;

 private:
  struct Role {
    const char* name;
    const at::Tensor& (FlatGroup::*shard)() const;
  };
  static constexpr Role kParameters = {kParameterRole, &FlatGroup::parameter_shard};
  static constexpr Role kRoles[] = {
      kParameters, {kFirstMomentRole, &FlatGroup::first_moment}, {kSecondMomentRole, &FlatGroup::second_moment}};

  static bool Has(const FlatGroup& group, const Role& role) { return (group.*role.shard)().defined(); }
  const std::string& NameOf(const FlatGroup& group, int parameter) const;
  // `parameter` is an index into the group's parameters().
  StateEntry EntryOf(const FlatGroup& group, const Role& role, int parameter) const;
  // Whether each rank holds only a part of the model (stages or tensor ranks).
  bool InParts() const;
  // Whether this rank writes its copy of a parameter of the model, and the other ranks that have a copy do not.
  bool Writes(int parameter) const;
  ShardCut CutOf(const FlatGroup& group) const;
  absl::Status AgreeOnCuts(Communicator& copies, bool PartParameter::*is_copied);
  // Waits for the gathers that the previous step started.
  absl::Status AwaitParameters();
  absl::StatusOr<at::Tensor> Gather(const FlatGroup& group, const Role& role);
  absl::Status VisitRole(const Role& role, StateVisitor visit, absl::Status& visited);
  ElementRange ShareOf(const FlatGroup& group, bool next) const;
  absl::Status VisitShare(const FlatGroup& group, const Role& role, const ElementRange& share, bool of_copies,
                          RangeVisitor visit) const;
  absl::Status LoadRoles(RangeSource source, bool parameters_only);
  absl::Status LoadWhole(FlatGroup& group, RangeSource source);
  absl::StatusOr<std::vector<ParameterHash>> HashMasters();
  struct Difference;
  absl::Status CompareAmong(Communicator& copies, const std::vector<ParameterHash>& hashes,
                            const std::vector<int>& parameters, Difference& first) const;

  const Model& model_;
  const FlatGroups& groups_;
  const bool reduces_last_unit_first_;
  const MeshCommunicators communicators_;
  Updater& updater_;
  FirstError& errors_;
  LossScale loss_scale_;
  // For each parameter, the sorted offsets at which its ranges are cut: the bounds of the shares (ShardCut) of all its
  // copies. An empty list: its ranges are not cut.
  std::vector<std::vector<int64_t>> cuts_;
};

}  // namespace trainyard
