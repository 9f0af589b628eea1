// What FlatState contributes to a save: which rank writes which range, and which ranks compare their copies of it.
#include "worker/parallel/flat_state.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "common/status_macros.h"

namespace trainyard {

bool FlatState::InParts() const {
  const ModelPart& part = model_.part();
  return part.tensor_size > 1 || !part.embeds || !part.heads;
}

// Replicated parameters are written by tensor rank 0, tied ones by the first stage.
bool FlatState::Writes(int parameter) const {
  if (model_.boxes().empty()) return true;
  const PartParameter& box = model_.boxes()[parameter];
  return (!box.replicated || model_.part().tensor_rank == 0) && (!box.tied || model_.part().embeds);
}

absl::StatusOr<std::vector<StateEntry>> FlatState::PrepareSaves() {
  if (!InParts()) return Entries();
  RETURN_IF_ERROR(errors_.status());
  cuts_.assign(model_.parameters().size(), {});
  if (communicators_.tensor != nullptr) {
    RETURN_IF_ERROR(AgreeOnCuts(*communicators_.tensor, &PartParameter::replicated));
  }
  if (communicators_.tied != nullptr) {
    RETURN_IF_ERROR(AgreeOnCuts(*communicators_.tied, &PartParameter::tied));
  }
  // One number for each role of each parameter of the whole model: 0 if this rank holds no part of it, else 1 + its
  // type.
  const std::vector<ParameterDescription>& parameters = model_.description().parameters;
  const int64_t count = static_cast<int64_t>(parameters.size()), roles = std::size(kRoles);
  const int ranks = communicators_.job->world_size();
  at::Tensor own = at::zeros({roles, count}, at::kLong), all = at::zeros({ranks, roles, count}, at::kLong);
  for (int64_t role = 0; role < roles; ++role) {
    for (const auto& group : groups_) {
      if (!Has(*group, kRoles[role])) continue;
      const int64_t type = static_cast<int64_t>((*group.*kRoles[role].shard)().scalar_type());
      for (int i : group->parameters()) {
        own.mutable_data_ptr<int64_t>()[role * count + model_.boxes()[i].number] = 1 + type;
      }
    }
  }
  RETURN_IF_ERROR(errors_.Record(communicators_.job->AllGather(all, own)->Wait())) << "while preparing to save";
  const int64_t* types = all.const_data_ptr<int64_t>();
  std::vector<StateEntry> entries;
  for (int64_t i = 0; i < roles * count; ++i) {
    int64_t type = 0;
    for (int rank = 0; rank < ranks; ++rank) type = std::max(type, types[rank * roles * count + i]);
    if (type == 0) continue;
    const ParameterDescription& parameter = parameters[i % count];
    entries.push_back({.role = kRoles[i / count].name,
                       .name = parameter.name,
                       .type = static_cast<at::ScalarType>(type - 1),
                       .shape = parameter.shape,
                       .box = WholeBox(parameter.shape)});
  }
  return entries;
}

// How the ranks that hold a flat group's shards divide them into shares.
ShardCut FlatState::CutOf(const FlatGroup& group) const {
  const ShardLayout& layout = group.layout();
  const bool over_shards = layout.num_shards == communicators_.shard->world_size();
  const Communicator& holders = over_shards ? *communicators_.replicate : *communicators_.data;
  const int64_t ranks = holders.world_size();
  return {.num_shards = layout.num_shards,
          .shard = layout.shard,
          .share = ((layout.shard + ranks - 1) / ranks + kAlignment - 1) / kAlignment * kAlignment};
}

// All ranks of `copies` hold copies of some parameters. Cuts these parameters at the bounds of the shares of each rank,
// so that all ranks visit equal ranges of them.
absl::Status FlatState::AgreeOnCuts(Communicator& copies, bool PartParameter::*is_copied) {
  std::vector<int> copied;
  std::vector<std::array<int64_t, 4>> own_cuts;
  for (const auto& group : groups_) {
    const ShardCut cut = CutOf(*group);
    for (size_t i = 0; i < group->parameters().size(); ++i) {
      if (!(model_.boxes()[group->parameters()[i]].*is_copied)) continue;
      copied.push_back(group->parameters()[i]);
      own_cuts.push_back({cut.num_shards, cut.shard, cut.share, group->layout().offsets[i]});
    }
  }
  // The ranks may group their parameters differently, but all have the copied ones in the model's order.
  std::vector<size_t> order(copied.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return copied[a] < copied[b]; });
  const int64_t count = static_cast<int64_t>(copied.size());
  const int ranks = copies.world_size();
  if (count == 0 || ranks == 1) return absl::OkStatus();
  at::Tensor own = at::zeros({count, 4}, at::kLong), all = at::zeros({ranks, count, 4}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(own_cuts[order[i]].begin(), 4, own.mutable_data_ptr<int64_t>() + 4 * i);
  }
  RETURN_IF_ERROR(errors_.Record(copies.AllGather(all, own)->Wait())) << "while preparing to save copies";
  for (int64_t i = 0; i < count; ++i) {
    const int parameter = copied[order[i]];
    std::vector<int64_t>& cuts = cuts_[parameter];
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t* cut = all.const_data_ptr<int64_t>() + (rank * count + i) * 4;
      const std::vector<int64_t> bounds =
          BoundsWithin({.num_shards = static_cast<int>(cut[0]), .shard = cut[1], .share = cut[2]}, cut[3],
                       model_.parameters()[parameter].tensor.numel());
      cuts.insert(cuts.end(), bounds.begin(), bounds.end());
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  }
  return absl::OkStatus();
}

// The part of this rank's shard of `group` that this rank must write: where other ranks hold the same shard, an equal
// share of it. `next`: the share that the next of these ranks must write; empty if there is none.
ElementRange FlatState::ShareOf(const FlatGroup& group, bool next) const {
  const ShardLayout& layout = group.layout();
  const bool over_shards = layout.num_shards == communicators_.shard->world_size();
  const Communicator& holders = over_shards ? *communicators_.replicate : *communicators_.data;
  const int64_t ranks = holders.world_size(), share = CutOf(group).share;
  if (next && ranks == 1) return {};
  const int64_t holder = (holders.rank() + (next ? 1 : 0)) % ranks;
  const int64_t first = std::min(share * holder, layout.shard);
  return {.first = first, .count = std::min(share, layout.shard - first)};
}

// Visits the elements in `share` of the parameters that this rank writes; with `of_copies`, of the parameters that
// another rank writes and that this rank only has copies of.
absl::Status FlatState::VisitShare(const FlatGroup& group, const Role& role, const ElementRange& share, bool of_copies,
                                   RangeVisitor visit) const {
  for (const ShardPiece& piece : group.layout().PiecesOf(group.rank())) {
    const int parameter = group.parameters()[piece.parameter];
    int64_t first = std::max(piece.offset, share.first);
    const int64_t last = std::min(piece.offset + piece.range.count, share.first + share.count);
    if (first >= last || Writes(parameter) == of_copies) continue;
    const StateEntry entry = EntryOf(group, role, piece.parameter);
    const int64_t begin = piece.range.first - piece.offset;  // element of the parameter at the start of the shard
    std::vector<int64_t> ends;
    if (!cuts_.empty()) ends = cuts_[parameter];
    ends.push_back(begin + last);
    for (const int64_t end : ends) {
      const int64_t next = std::min(end - begin, last);
      if (next <= first) continue;
      RETURN_IF_ERROR(visit(entry, begin + first, (group.*role.shard)().narrow(0, first, next - first)));
      first = next;
    }
  }
  return absl::OkStatus();
}

// Does not wait for gathers under way: this rank's shards already have the values of the update.
absl::Status FlatState::VisitOwn(RangeVisitor visit) {
  RETURN_IF_ERROR(errors_.status());
  for (const Role& role : kRoles) {
    for (const auto& group : groups_) {
      if (!Has(*group, role)) continue;
      RETURN_IF_ERROR(VisitShare(*group, role, ShareOf(*group, /*next=*/false), /*of_copies=*/false, visit));
    }
  }
  return absl::OkStatus();
}

absl::Status FlatState::VisitWitnessed(RangeVisitor visit) {
  RETURN_IF_ERROR(errors_.status());
  for (const Role& role : kRoles) {
    for (const auto& group : groups_) {
      if (!Has(*group, role)) continue;
      const ElementRange next = ShareOf(*group, /*next=*/true);
      RETURN_IF_ERROR(VisitShare(*group, role, next, /*of_copies=*/false, visit));
      if (!InParts()) continue;
      RETURN_IF_ERROR(VisitShare(*group, role, ShareOf(*group, /*next=*/false), /*of_copies=*/true, visit));
      RETURN_IF_ERROR(VisitShare(*group, role, next, /*of_copies=*/true, visit));
    }
  }
  return absl::OkStatus();
}

}  // namespace trainyard
