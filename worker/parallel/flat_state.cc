#include "worker/parallel/flat_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "common/status_macros.h"

namespace trainyard {
namespace {

// Whether this rank holds the masters of all parameters of the group, and not only those of its shard.
bool HoldsAll(const FlatGroup& group) {
  return group.whole_parameters().defined() && group.parameter_shard().is_alias_of(group.whole_parameters());
}

}  // namespace

const std::string& FlatState::NameOf(const FlatGroup& group, int parameter) const {
  return model_.parameters()[group.parameters()[parameter]].name;
}

StateEntry FlatState::EntryOf(const FlatGroup& group, const Role& role, int parameter) const {
  const int index = group.parameters()[parameter];
  const NamedTensor& named = model_.parameters()[index];
  StateEntry entry{.role = role.name,
                   .name = named.name,
                   .type = (group.*role.shard)().scalar_type(),
                   .shape = named.tensor.sizes().vec(),
                   .box = WholeBox(named.tensor.sizes().vec())};
  if (model_.IsWhole(index)) return entry;
  const PartParameter& part = model_.boxes()[index];
  entry.shape = model_.description().parameters[part.number].shape;
  entry.box = {.start = part.start, .size = part.shape};
  return entry;
}

absl::Status FlatState::AwaitParameters() {
  RETURN_IF_ERROR(errors_.status());
  return errors_.Record(updater_.AwaitParameters());
}

// The whole tensor of `role`, gathered from all ranks of the shard group; in new memory unless this rank has the whole.
absl::StatusOr<at::Tensor> FlatState::Gather(const FlatGroup& group, const Role& role) {
  const at::Tensor& own = (group.*role.shard)();
  if (group.layout().num_shards == 1 || group.layout().total == 0) return own;
  if (role.name == kParameters.name && HoldsAll(group)) return group.whole_parameters();
  at::Tensor whole = at::empty({group.layout().total}, own.options());
  RETURN_IF_ERROR(communicators_.shard->AllGather(whole, own)->Wait())
      << "while gathering the state of " << group.name();
  return whole;
}

std::vector<StateEntry> FlatState::Entries() const {
  std::vector<StateEntry> entries;
  for (const Role& role : kRoles) {
    for (const auto& group : groups_) {
      if (!Has(*group, role)) continue;
      for (size_t i = 0; i < group->parameters().size(); ++i) {
        entries.push_back(EntryOf(*group, role, static_cast<int>(i)));
      }
    }
  }
  return entries;
}

std::vector<std::vector<std::string>> FlatState::BucketOrder() const {
  std::vector<std::vector<std::string>> order;
  int num_units = 0;
  for (const auto& group : groups_) {
    if (!group->trained()) continue;
    if (group->unit() >= 0) ++num_units;
    order.emplace_back();
    for (int i : group->layout().order) order.back().push_back(NameOf(*group, i));
  }
  // Groups that belong to no unit follow the units in `groups_`, and are reduced after them.
  if (reduces_last_unit_first_) std::reverse(order.begin(), order.begin() + num_units);
  return order;
}

// `visited`: the first error of `visit`, after which the rank only takes part in the collectives.
absl::Status FlatState::VisitRole(const Role& role, StateVisitor visit, absl::Status& visited) {
  for (const auto& group : groups_) {
    if (!Has(*group, role)) continue;
    ASSIGN_OR_RETURN(at::Tensor whole, Gather(*group, role));
    if (communicators_.data->rank() != 0) continue;
    for (size_t i = 0; visited.ok() && i < group->parameters().size(); ++i) {
      visited = visit(EntryOf(*group, role, static_cast<int>(i)), group->View(whole, i).cpu());
    }
  }
  return absl::OkStatus();
}

absl::Status FlatState::Visit(StateVisitor visit) {
  RETURN_IF_ERROR(AwaitParameters());
  absl::Status visited;
  for (const Role& role : kRoles) RETURN_IF_ERROR(VisitRole(role, visit, visited));
  return visited;
}

absl::Status FlatState::VisitParameters(StateVisitor visit) {
  RETURN_IF_ERROR(AwaitParameters());
  absl::Status visited;
  RETURN_IF_ERROR(VisitRole(kParameters, visit, visited));
  return visited;
}

// Loads replicated parameters one after another. If the masters and the weights have separate memory, reads each
// parameter into a temporary tensor of the masters' type, and copies it to both. The gaps between parameters have been
// zero since the group was made.
absl::Status FlatState::LoadWhole(FlatGroup& group, RangeSource source) {
  const ShardLayout& layout = group.layout();
  const at::Tensor& shard = group.parameter_shard();
  const int64_t begin = group.rank() * layout.shard, end = begin + layout.shard;
  for (int i : layout.order) {
    const int64_t offset = layout.offsets[i], size = layout.sizes[i];
    at::Tensor weights = group.whole_parameters().narrow(0, offset, size);
    at::Tensor values = HoldsAll(group) ? weights : at::empty({size}, shard.options());
    if (size > 0) {
      RETURN_IF_ERROR(source(EntryOf(group, kParameters, i), 0, size, values));
    }
    if (HoldsAll(group)) continue;
    weights.copy_(values);
    const int64_t low = std::max(offset, begin), high = std::min(offset + size, end);
    if (low < high) shard.narrow(0, low - begin, high - low).copy_(values.narrow(0, low - offset, high - low));
  }
  return absl::OkStatus();
}

absl::Status FlatState::LoadRoles(RangeSource of_host_memory, bool parameters_only) {
  RETURN_IF_ERROR(AwaitParameters());
  c10::NoGradGuard no_grad;
  auto source = [&](const StateEntry& entry, int64_t first, int64_t count, const at::Tensor& out) -> absl::Status {
    if (out.is_cpu()) return of_host_memory(entry, first, count, out);
    at::Tensor staged = at::empty(out.sizes(), out.options().device(at::kCPU));
    RETURN_IF_ERROR(of_host_memory(entry, first, count, staged));
    out.copy_(staged);
    return absl::OkStatus();
  };
  for (const Role& role : kRoles) {
    for (const auto& group : groups_) {
      if (!Has(*group, role)) continue;
      const bool parameters = role.name == kParameters.name;
      if (parameters_only && !parameters) continue;
      if (parameters && group->whole_parameters().defined()) {
        RETURN_IF_ERROR(LoadWhole(*group, source));
        continue;
      }
      for (const ShardPiece& piece : group->layout().PiecesOf(group->rank())) {
        at::Tensor out = (*group.*role.shard)().narrow(0, piece.offset, piece.range.count);
        RETURN_IF_ERROR(source(EntryOf(*group, role, piece.parameter), piece.range.first, piece.range.count, out));
      }
      if (parameters) group->CopyMastersToWeights();
    }
  }
  return absl::OkStatus();
}

}  // namespace trainyard
