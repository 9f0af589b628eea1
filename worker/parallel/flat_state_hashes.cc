// The replica checks of FlatState: hashes of parameters, and their comparison over all data ranks.
#include "worker/parallel/flat_state.h"

#include <ATen/ops/empty.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

ParameterHash HashOf(const at::Tensor& dense) {
  const at::Tensor host = dense.cpu();
  const XXH128_hash_t hash = XXH3_128bits(host.const_data_ptr(), host.nbytes());
  return {.low = hash.low64, .high = hash.high64};
}

// Mixes in the replicated weights that computation uses, where they are another tensor than the masters.
void MixInWeights(const FlatGroups& groups, std::vector<ParameterHash>& hashes) {
  for (const auto& group : groups) {
    const at::Tensor& whole = group->whole_parameters();
    if (!whole.defined() || group->parameter_shard().is_alias_of(whole)) continue;
    for (size_t i = 0; i < group->parameters().size(); ++i) {
      const ParameterHash weights = HashOf(group->View(whole, i));
      ParameterHash& hash = hashes[group->parameters()[i]];
      hash = {.low = hash.low * 31 + weights.low, .high = hash.high * 31 + weights.high};
    }
  }
}

// Those of `hashes`, one per rank, that differ from the most frequent one; of equally frequent ones the first rank's
// counts.
std::vector<int> DifferingRanks(const std::vector<ParameterHash>& hashes) {
  auto count = [&](const ParameterHash& hash) { return std::count(hashes.begin(), hashes.end(), hash); };
  const ParameterHash& commonest =
      *std::max_element(hashes.begin(), hashes.end(),
                        [&](const ParameterHash& a, const ParameterHash& b) { return count(a) < count(b); });
  std::vector<int> ranks;
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    if (!(hashes[rank] == commonest)) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace

// The hash of the masters of each parameter of the model.
absl::StatusOr<std::vector<ParameterHash>> FlatState::HashMasters() {
  std::vector<ParameterHash> hashes(model_.parameters().size());
  for (const auto& group : groups_) {
    ASSIGN_OR_RETURN(at::Tensor whole, Gather(*group, kParameters));
    for (size_t i = 0; i < group->parameters().size(); ++i) {
      hashes[group->parameters()[i]] = HashOf(group->View(whole, i));
    }
  }
  return hashes;
}

absl::StatusOr<std::vector<NamedHash>> FlatState::HashParameters() {
  RETURN_IF_ERROR(AwaitParameters());
  ASSIGN_OR_RETURN(std::vector<ParameterHash> hashes, HashMasters());
  std::vector<NamedHash> named;
  for (size_t i = 0; i < hashes.size(); ++i) {
    named.push_back(
        {.name = model_.parameters()[i].name, .hash = absl::StrFormat("%016x%016x", hashes[i].high, hashes[i].low)});
  }
  return named;
}

absl::StatusOr<std::optional<ParameterDifference>> FlatState::CompareParameters() {
  RETURN_IF_ERROR(AwaitParameters());
  ASSIGN_OR_RETURN(std::vector<ParameterHash> hashes, HashMasters());
  MixInWeights(groups_, hashes);
  const int64_t count = static_cast<int64_t>(hashes.size());
  const int ranks = communicators_.data->world_size();
  at::Tensor own = at::empty({count, 2}, at::kLong), all = at::empty({ranks, count, 2}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    own.mutable_data_ptr<int64_t>()[2 * i] = static_cast<int64_t>(hashes[i].low);
    own.mutable_data_ptr<int64_t>()[2 * i + 1] = static_cast<int64_t>(hashes[i].high);
  }
  RETURN_IF_ERROR(communicators_.data->AllGather(all, own)->Wait()) << "while comparing the parameters";
  const int64_t* values = all.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    std::vector<ParameterHash> by_rank;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t* hash = values + (rank * count + i) * 2;
      by_rank.push_back({.low = static_cast<uint64_t>(hash[0]), .high = static_cast<uint64_t>(hash[1])});
    }
    std::vector<int> differing = DifferingRanks(by_rank);
    if (!differing.empty()) {
      return ParameterDifference{.name = model_.parameters()[i].name, .ranks = std::move(differing)};
    }
  }
  return std::nullopt;
}

}  // namespace trainyard
