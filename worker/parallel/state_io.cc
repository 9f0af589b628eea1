#include "worker/parallel/state_io.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <xxhash.h>

#include <algorithm>

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

bool Has(const FlatGroup& group, const Role& role) { return (group.*role.shard)().defined(); }

// Whether this rank has all parameters as they are updated.
bool HoldsAll(const FlatGroup& group) {
  return group.whole_parameters().defined() && group.parameter_shard().is_alias_of(group.whole_parameters());
}

// The whole of `role`, from all ranks of the shard group; in new memory unless this rank has it.
absl::StatusOr<at::Tensor> Whole(const FlatGroup& group, const Role& role, Communicator& shard) {
  const at::Tensor& own = (group.*role.shard)();
  if (group.layout().num_shards == 1 || group.layout().total == 0) return own;
  if (role.name == kParameters.name && HoldsAll(group)) return group.whole_parameters();
  at::Tensor whole = at::empty({group.layout().total}, own.options());
  RETURN_IF_ERROR(shard.AllGather(whole, own)->Wait()) << "while gathering the state of " << group.name();
  return whole;
}

}  // namespace

std::vector<StateEntry> StateEntriesOf(const Model& model, const FlatGroups& groups) {
  std::vector<StateEntry> entries;
  for (const Role& role : kRoles) {
    for (const auto& group : groups) {
      if (!Has(*group, role)) continue;
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

namespace {

absl::Status VisitRole(const Role& role, const Model& model, const FlatGroups& groups,
                       const MeshCommunicators& communicators, StateVisitor visit, absl::Status& told) {
  for (const auto& group : groups) {
    if (!Has(*group, role)) continue;
    ASSIGN_OR_RETURN(at::Tensor whole, Whole(*group, role, *communicators.shard));
    if (communicators.data->rank() != 0) continue;
    for (size_t i = 0; told.ok() && i < group->parameters().size(); ++i) {
      const std::string& name = model.parameters()[group->parameters()[i]].name;
      told = visit(role.name, {.name = name, .tensor = group->View(whole, i).cpu()});
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VisitStateOf(const Model& model, const FlatGroups& groups, const MeshCommunicators& communicators,
                          StateVisitor visit) {
  absl::Status told;
  for (const Role& role : kRoles) {
    RETURN_IF_ERROR(VisitRole(role, model, groups, communicators, visit, told));
  }
  return told;
}

absl::Status VisitParametersOf(const Model& model, const FlatGroups& groups, const MeshCommunicators& communicators,
                               StateVisitor visit) {
  absl::Status told;
  RETURN_IF_ERROR(VisitRole(kParameters, model, groups, communicators, visit, told));
  return told;
}

namespace {

// What of this rank's shard of `group` it is to show: an equal share, where other ranks hold the same; or that of the
// next of them, to be witnessed.
ElementRange ShareOf(const FlatGroup& group, const MeshCommunicators& communicators, bool witnessed) {
  const ShardLayout& layout = group.layout();
  const bool over_shards = layout.num_shards == communicators.shard->world_size();
  const Communicator& alike = over_shards ? *communicators.replicate : *communicators.data;
  const int64_t ranks = alike.world_size();
  const int64_t share = ((layout.shard + ranks - 1) / ranks + kAlignment - 1) / kAlignment * kAlignment;
  if (witnessed && ranks == 1) return {};
  const int64_t holder = (alike.rank() + (witnessed ? 1 : 0)) % ranks;
  const int64_t first = std::min(share * holder, layout.shard);
  return {.first = first, .count = std::min(share, layout.shard - first)};
}

}  // namespace

absl::Status VisitLocalStateOf(const Model& model, const FlatGroups& groups, const MeshCommunicators& communicators,
                               bool witnessed, RangeVisitor visit) {
  for (const Role& role : kRoles) {
    for (const auto& group : groups) {
      if (!Has(*group, role)) continue;
      const ElementRange share = ShareOf(*group, communicators, witnessed);
      for (const ShardPiece& piece : group->layout().PiecesOf(group->rank())) {
        const int64_t first = std::max(piece.offset, share.first);
        const int64_t last = std::min(piece.offset + piece.range.count, share.first + share.count);
        if (first >= last) continue;
        const std::string& name = model.parameters()[group->parameters()[piece.parameter]].name;
        RETURN_IF_ERROR(visit(role.name, name, piece.range.first + first - piece.offset,
                              (*group.*role.shard)().narrow(0, first, last - first)));
      }
    }
  }
  return absl::OkStatus();
}

namespace {

// Replicated parameters: all of them, one after another by way of memory in the masters' type where the weights have
// another. What lies between them is zero since it was made.
absl::Status LoadWhole(const Model& model, FlatGroup& group, RangeSource source) {
  const ShardLayout& layout = group.layout();
  const at::Tensor& shard = group.parameter_shard();
  const int64_t begin = group.rank() * layout.shard, end = begin + layout.shard;
  for (int i : layout.order) {
    const int64_t offset = layout.offsets[i], size = layout.sizes[i];
    at::Tensor weights = group.whole_parameters().narrow(0, offset, size);
    at::Tensor values = HoldsAll(group) ? weights : at::empty({size}, shard.options());
    RETURN_IF_ERROR(source(kParameterRole, model.parameters()[group.parameters()[i]].name, 0, size, values));
    if (HoldsAll(group)) continue;
    weights.copy_(values);
    const int64_t low = std::max(offset, begin), high = std::min(offset + size, end);
    if (low < high) shard.narrow(0, low - begin, high - low).copy_(values.narrow(0, low - offset, high - low));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadStateInto(const Model& model, const FlatGroups& groups, RangeSource of_host_memory) {
  auto source = [&](absl::string_view role, absl::string_view name, int64_t first, int64_t count,
                    const at::Tensor& out) -> absl::Status {
    if (out.is_cpu()) return of_host_memory(role, name, first, count, out);
    at::Tensor staged = at::empty(out.sizes(), out.options().device(at::kCPU));
    RETURN_IF_ERROR(of_host_memory(role, name, first, count, staged));
    out.copy_(staged);
    return absl::OkStatus();
  };
  for (const Role& role : kRoles) {
    for (const auto& group : groups) {
      if (!Has(*group, role)) continue;
      const bool parameters = role.name == kParameters.name;
      if (parameters && group->whole_parameters().defined()) {
        RETURN_IF_ERROR(LoadWhole(model, *group, source));
        continue;
      }
      for (const ShardPiece& piece : group->layout().PiecesOf(group->rank())) {
        at::Tensor out = (*group.*role.shard)().narrow(0, piece.offset, piece.range.count);
        const std::string& name = model.parameters()[group->parameters()[piece.parameter]].name;
        RETURN_IF_ERROR(source(role.name, name, piece.range.first, piece.range.count, out));
      }
      if (parameters) group->TakeMasters();
    }
  }
  return absl::OkStatus();
}

namespace {

XXH128_hash_t HashOf(const at::Tensor& dense) {
  const at::Tensor host = dense.cpu();
  return XXH3_128bits(host.const_data_ptr(), host.nbytes());
}

// Of each parameter of the model as it is updated.
absl::StatusOr<std::vector<XXH128_hash_t>> HashMasters(const Model& model, const FlatGroups& groups,
                                                       const MeshCommunicators& communicators) {
  std::vector<XXH128_hash_t> hashes(model.parameters().size());
  for (const auto& group : groups) {
    ASSIGN_OR_RETURN(at::Tensor whole, Whole(*group, kParameters, *communicators.shard));
    for (size_t i = 0; i < group->parameters().size(); ++i) {
      hashes[group->parameters()[i]] = HashOf(group->View(whole, i));
    }
  }
  return hashes;
}

// Of those with a replicated copy that is computed with and is another tensor.
void MixInWeights(const FlatGroups& groups, std::vector<XXH128_hash_t>& hashes) {
  for (const auto& group : groups) {
    if (!group->whole_parameters().defined() || HoldsAll(*group)) continue;
    for (size_t i = 0; i < group->parameters().size(); ++i) {
      const XXH128_hash_t weights = HashOf(group->View(group->whole_parameters(), i));
      XXH128_hash_t& hash = hashes[group->parameters()[i]];
      hash = {.low64 = hash.low64 * 31 + weights.low64, .high64 = hash.high64 * 31 + weights.high64};
    }
  }
}

// Those of `hashes`, one a rank, that are not the commonest; of equally common ones the first rank's counts.
std::vector<int> OddOnes(const std::vector<std::pair<int64_t, int64_t>>& hashes) {
  auto count = [&](const auto& hash) { return std::count(hashes.begin(), hashes.end(), hash); };
  const auto& commonest = *std::max_element(hashes.begin(), hashes.end(),
                                            [&](const auto& a, const auto& b) { return count(a) < count(b); });
  std::vector<int> odd;
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    if (hashes[rank] != commonest) odd.push_back(static_cast<int>(rank));
  }
  return odd;
}

}  // namespace

absl::StatusOr<std::vector<NamedHash>> HashParametersOf(const Model& model, const FlatGroups& groups,
                                                        const MeshCommunicators& communicators) {
  ASSIGN_OR_RETURN(std::vector<XXH128_hash_t> hashes, HashMasters(model, groups, communicators));
  std::vector<NamedHash> named;
  for (size_t i = 0; i < hashes.size(); ++i) {
    named.push_back(
        {.name = model.parameters()[i].name, .hash = absl::StrFormat("%016x%016x", hashes[i].high64, hashes[i].low64)});
  }
  return named;
}

absl::StatusOr<std::optional<ParameterDifference>> CompareParametersOf(const Model& model, const FlatGroups& groups,
                                                                       const MeshCommunicators& communicators) {
  ASSIGN_OR_RETURN(std::vector<XXH128_hash_t> hashes, HashMasters(model, groups, communicators));
  MixInWeights(groups, hashes);
  const int64_t count = static_cast<int64_t>(hashes.size());
  const int world = communicators.data->world_size();
  at::Tensor own = at::empty({count, 2}, at::kLong), all = at::empty({world, count, 2}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    own.mutable_data_ptr<int64_t>()[2 * i] = static_cast<int64_t>(hashes[i].low64);
    own.mutable_data_ptr<int64_t>()[2 * i + 1] = static_cast<int64_t>(hashes[i].high64);
  }
  RETURN_IF_ERROR(communicators.data->AllGather(all, own)->Wait()) << "while comparing the parameters";
  const int64_t* values = all.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    std::vector<std::pair<int64_t, int64_t>> by_rank;
    for (int64_t rank = 0; rank < world; ++rank) {
      const int64_t* hash = values + (rank * count + i) * 2;
      by_rank.emplace_back(hash[0], hash[1]);
    }
    std::vector<int> odd = OddOnes(by_rank);
    if (!odd.empty()) return ParameterDifference{.name = model.parameters()[i].name, .ranks = std::move(odd)};
  }
  return std::nullopt;
}

}  // namespace trainyard
