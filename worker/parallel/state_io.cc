#include "worker/parallel/state_io.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <xxhash.h>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

struct Role {
  const char* name;
  const at::Tensor& (FlatGroup::*shard)() const;
};
constexpr Role kParameters = {kParameterRole, &FlatGroup::parameter_shard};
constexpr Role kRoles[] = {
    kParameters, {kFirstMomentRole, &FlatGroup::first_moment}, {kSecondMomentRole, &FlatGroup::second_moment}};

// The whole of `role`, from all ranks of the shard group; in new memory unless this rank has it.
absl::StatusOr<at::Tensor> Whole(const FlatGroup& group, const Role& role, Communicator& shard) {
  const at::Tensor& own = (group.*role.shard)();
  if (group.layout().world == 1) return own;
  if (role.name == kParameters.name && group.whole_parameters().defined()) return group.whole_parameters();
  at::Tensor whole = at::empty({group.layout().total}, own.options());
  RETURN_IF_ERROR(shard.AllGather(whole, own)->Wait()) << "while gathering the state of " << group.name();
  return whole;
}

}  // namespace

std::vector<StateEntry> StateEntriesOf(const Model& model, const FlatGroups& groups) {
  std::vector<StateEntry> entries;
  for (const Role& role : kRoles) {
    for (const auto& group : groups) {
      for (int parameter : group->parameters()) {
        const NamedTensor& named = model.parameters()[parameter];
        entries.push_back({.role = role.name,
                           .name = named.name,
                           .type = (*group.*role.shard)().scalar_type(),
                           .shape = named.tensor.sizes().vec()});
      }
    }
  }
  return entries;
}

absl::Status VisitStateOf(const Model& model, const FlatGroups& groups, const MeshCommunicators& communicators,
                          StateVisitor visit) {
  absl::Status told;
  for (const Role& role : kRoles) {
    for (const auto& group : groups) {
      ASSIGN_OR_RETURN(at::Tensor whole, Whole(*group, role, *communicators.shard));
      if (communicators.world->rank() != 0) continue;
      for (size_t i = 0; told.ok() && i < group->parameters().size(); ++i) {
        const std::string& name = model.parameters()[group->parameters()[i]].name;
        told = visit(role.name, {.name = name, .tensor = group->View(whole, i)});
      }
    }
  }
  return told;
}

absl::Status LoadStateInto(const Model& model, const FlatGroups& groups, RangeSource source) {
  for (const Role& role : kRoles) {
    for (const auto& group : groups) {
      const ShardLayout& layout = group->layout();
      auto name = [&](int i) { return absl::string_view(model.parameters()[group->parameters()[i]].name); };
      if (role.name == kParameters.name && group->whole_parameters().defined()) {
        for (int i : layout.order) {
          at::Tensor out = group->whole_parameters().narrow(0, layout.offsets[i], layout.sizes[i]);
          RETURN_IF_ERROR(source(role.name, name(i), 0, layout.sizes[i], out));
        }
        continue;
      }
      for (const ShardPiece& piece : layout.PiecesOf(group->rank())) {
        at::Tensor out = (*group.*role.shard)().narrow(0, piece.offset, piece.range.count);
        RETURN_IF_ERROR(source(role.name, name(piece.parameter), piece.range.first, piece.range.count, out));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<NamedHash>> HashParametersOf(const Model& model, const FlatGroups& groups,
                                                        const MeshCommunicators& communicators) {
  std::vector<NamedHash> hashes(model.parameters().size());
  for (const auto& group : groups) {
    ASSIGN_OR_RETURN(at::Tensor whole, Whole(*group, kParameters, *communicators.shard));
    for (size_t i = 0; i < group->parameters().size(); ++i) {
      at::Tensor view = group->View(whole, i);
      const XXH128_hash_t hash = XXH3_128bits(view.const_data_ptr(), view.nbytes());
      hashes[group->parameters()[i]] = {.name = model.parameters()[group->parameters()[i]].name,
                                        .hash = absl::StrFormat("%016x%016x", hash.high64, hash.low64)};
    }
  }
  return hashes;
}

}  // namespace trainyard
