// The replica checks of FlatState: hashes of parameters, and their comparison over all ranks that hold the same
// parameters.
#include "worker/parallel/flat_state.h"

#include <ATen/ops/empty.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

ParameterHash HashOf(const at::Tensor& dense) {
  const at::Tensor host = dense.cpu();
  const XXH128_hash_t hash = XXH3_128bits(host.const_data_ptr(), host.nbytes());
  return {.low = hash.low64, .high = hash.high64};
}

// Mixes into `hashes` the replicated weights that computation uses, where they are another tensor than the masters.
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

// Returns the ranks whose hash differs from the most frequent one; if several hashes are equally frequent, from the one
// of them that the lowest rank has. `hashes`: one per rank.
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
    std::string name = model_.parameters()[i].name;
    if (!model_.IsWhole(static_cast<int>(i))) {
      const PartParameter& part = model_.boxes()[i];
      absl::StrAppend(&name, BoxText({.start = part.start, .size = part.shape},
                                     model_.description().parameters[part.number].shape));
    }
    named.push_back({.name = std::move(name), .hash = absl::StrFormat("%016x%016x", hashes[i].high, hashes[i].low)});
  }
  return named;
}

// The first parameter of the model that is not the same on all ranks that hold it, and whether this rank is one of
// those whose values differ from the values of most ranks.
struct FlatState::Difference {
  int64_t parameter = -1;  // its number in the whole model; -1: none
  bool is_own = false;

  void Add(int64_t number, bool own) {
    if (parameter >= 0 && parameter < number) return;
    is_own = own || (parameter == number && is_own);
    parameter = number;
  }
};

// Compares these parameters of the model among ranks that should hold the same values.
absl::Status FlatState::CompareAmong(Communicator& copies, const std::vector<ParameterHash>& hashes,
                                     const std::vector<int>& parameters, Difference& first) const {
  const int64_t count = static_cast<int64_t>(parameters.size());
  const int ranks = copies.world_size();
  if (count == 0) return absl::OkStatus();
  at::Tensor own = at::empty({count, 2}, at::kLong), all = at::empty({ranks, count, 2}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    const ParameterHash& hash = hashes[parameters[i]];
    own.mutable_data_ptr<int64_t>()[2 * i] = static_cast<int64_t>(hash.low);
    own.mutable_data_ptr<int64_t>()[2 * i + 1] = static_cast<int64_t>(hash.high);
  }
  RETURN_IF_ERROR(copies.AllGather(all, own)->Wait()) << "while comparing the parameters";
  const int64_t* values = all.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    std::vector<ParameterHash> by_rank;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t* hash = values + (rank * count + i) * 2;
      by_rank.push_back({.low = static_cast<uint64_t>(hash[0]), .high = static_cast<uint64_t>(hash[1])});
    }
    const std::vector<int> differing = DifferingRanks(by_rank);
    if (differing.empty()) continue;
    const int number = model_.boxes().empty() ? parameters[i] : model_.boxes()[parameters[i]].number;
    first.Add(number, std::find(differing.begin(), differing.end(), copies.rank()) != differing.end());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ParameterDifference>> FlatState::CompareParameters() {
  RETURN_IF_ERROR(AwaitParameters());
  ASSIGN_OR_RETURN(std::vector<ParameterHash> hashes, HashMasters());
  MixInWeights(groups_, hashes);
  std::vector<int> all, replicated, tied;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const int parameter = static_cast<int>(i);
    all.push_back(parameter);
    if (model_.boxes().empty()) continue;
    if (model_.boxes()[i].replicated) replicated.push_back(parameter);
    if (model_.boxes()[i].tied) tied.push_back(parameter);
  }
  Difference first;
  RETURN_IF_ERROR(CompareAmong(*communicators_.data, hashes, all, first));
  if (communicators_.tensor != nullptr) {
    RETURN_IF_ERROR(CompareAmong(*communicators_.tensor, hashes, replicated, first));
  }
  if (communicators_.tied != nullptr) {
    RETURN_IF_ERROR(CompareAmong(*communicators_.tied, hashes, tied, first));
  }
  // Ranks with different parts of the model may have found different parameters; all ranks return the first of these.
  const int ranks = communicators_.job->world_size();
  at::Tensor own = at::empty({2}, at::kLong), found = at::empty({ranks, 2}, at::kLong);
  own.mutable_data_ptr<int64_t>()[0] = first.parameter;
  own.mutable_data_ptr<int64_t>()[1] = first.is_own ? 1 : 0;
  RETURN_IF_ERROR(communicators_.job->AllGather(found, own)->Wait()) << "while comparing the parameters";
  const int64_t* values = found.const_data_ptr<int64_t>();
  Difference of_job;
  for (int rank = 0; rank < ranks; ++rank) {
    if (values[2 * rank] >= 0) of_job.Add(values[2 * rank], false);
  }
  if (of_job.parameter < 0) return std::nullopt;
  ParameterDifference difference;
  difference.name = model_.boxes().empty() ? model_.parameters()[of_job.parameter].name
                                           : model_.description().parameters[of_job.parameter].name;
  for (int rank = 0; rank < ranks; ++rank) {
    if (values[2 * rank] == of_job.parameter && values[2 * rank + 1] == 1) difference.ranks.push_back(rank);
  }
  return difference;
}

}  // namespace trainyard
