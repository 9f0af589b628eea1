#include "coordinator/policy/saves.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"

namespace trainyard {
namespace {

// Returns why the request is invalid; empty: it is valid.
std::string FindProblem(const v1::Job& head, const v1::CheckpointReady& ready) {
  if (ready.manifest_hash().empty()) return "it was reported without the hash of a manifest";
  if (ready.manifest_hash().size() > kManifestHashBytes) {
    return absl::StrCat("the hash of its manifest has ", ready.manifest_hash().size(), " bytes, at most ",
                        kManifestHashBytes, " are possible");
  }
  if (ready.path().empty()) return "it was reported without a path";
  if (ready.path().size() > limits::kPathBytes) {
    return absl::StrCat("its path has ", ready.path().size(), " bytes, at most ", limits::kPathBytes, " are possible");
  }
  if (ready.step() == 0 || ready.step() > head.spec().train().steps()) {
    return absl::StrCat("the job has no such step: train.steps is ", head.spec().train().steps());
  }
  return "";
}

// Whether rank 0 has acted on the answer to this request: this generation has recorded this checkpoint, or has recorded
// or was granted one of a later step. Rank 0 requests grants in the order of the steps.
bool IsAnswered(const v1::Job& head, const CheckpointGrants& grants, const v1::CheckpointReady& ready) {
  const auto is_recorded = [&](const v1::CheckpointInfo& info) {
    const bool is_same = info.step() == ready.step() && info.manifest_hash() == ready.manifest_hash();
    return info.generation() == head.generation() && (is_same || info.step() > ready.step());
  };
  const auto is_later = [&](const v1::CheckpointGrant& grant) {
    return !grant.refused() && grant.generation() == head.generation() && grant.step() > ready.step();
  };
  return std::any_of(head.checkpoints().begin(), head.checkpoints().end(), is_recorded) ||
         std::any_of(grants.begin(), grants.end(), is_later);
}

// Returns the hash of the checkpoint of this step that this generation has recorded or was granted; empty: none.
std::string HashOfStep(const v1::Job& head, const CheckpointGrants& grants, uint64_t step) {
  for (const v1::CheckpointInfo& info : head.checkpoints()) {
    if (info.generation() == head.generation() && info.step() == step) return info.manifest_hash();
  }
  for (const v1::CheckpointGrant& grant : grants) {
    if (!grant.refused() && grant.generation() == head.generation() && grant.step() == step)
      return grant.manifest_hash();
  }
  return "";
}

// Returns which other checkpoint of this step contradicts the request; empty: none. REQUIRES: the request is valid, and
// not a repeated one.
std::string FindConflict(const v1::Job& head, const CheckpointGrants& grants, const v1::CheckpointReady& ready) {
  const std::string known = HashOfStep(head, grants, ready.step());
  if (known.empty()) return "";
  return absl::StrCat("this generation has already saved other contents of that step, with the manifest hash ", known);
}

}  // namespace

std::optional<v1::CheckpointGrant> DecideGrant(const v1::Job& head, const CheckpointGrants& grants,
                                               const v1::CheckpointReady& ready) {
  v1::CheckpointGrant grant;
  grant.set_step(ready.step());
  grant.set_generation(head.generation());
  grant.set_manifest_hash(ready.manifest_hash().substr(0, kManifestHashBytes));
  grant.set_path(ready.path().substr(0, limits::kPathBytes));
  grant.set_size_bytes(ready.size_bytes());
  if (FindGrant(grants, grant.generation(), grant.step(), grant.manifest_hash()) != nullptr) return std::nullopt;
  std::string refusal = FindProblem(head, ready);
  if (refusal.empty()) {
    if (IsAnswered(head, grants, ready)) return std::nullopt;
    refusal = FindConflict(head, grants, ready);
  }
  grant.set_refused(!refusal.empty());
  grant.set_reason(std::move(refusal));
  return grant;
}

void AddGrant(v1::CheckpointGrant grant, CheckpointGrants& grants) {
  *grants.Add() = std::move(grant);
  while (grants.size() > kGrantsMax) {
    auto oldest = std::find_if(grants.begin(), grants.end(), [](const auto& known) { return known.refused(); });
    grants.erase(oldest == grants.end() ? grants.begin() : oldest);
  }
}

const v1::CheckpointGrant* FindGrant(const CheckpointGrants& grants, uint64_t generation, uint64_t step,
                                     const std::string& manifest_hash) {
  for (const v1::CheckpointGrant& grant : grants) {
    if (grant.generation() == generation && grant.step() == step && grant.manifest_hash() == manifest_hash)
      return &grant;
  }
  return nullptr;
}

void ForgetGrants(uint64_t generation, uint64_t step, CheckpointGrants& grants) {
  grants.erase(std::remove_if(grants.begin(), grants.end(),
                              [&](const v1::CheckpointGrant& grant) {
                                if (grant.generation() != generation) return false;
                                return grant.step() == step || (grant.refused() && grant.step() < step);
                              }),
               grants.end());
}

const v1::CheckpointGrant* NewestGranted(const CheckpointGrants& grants) {
  const v1::CheckpointGrant* newest = nullptr;
  for (const v1::CheckpointGrant& grant : grants) {
    if (!grant.refused() && (newest == nullptr || grant.step() >= newest->step())) newest = &grant;
  }
  return newest;
}

std::optional<uint64_t> NewestResumeStep(const v1::Job& head, const CheckpointGrants& grants) {
  std::optional<uint64_t> step;
  if (head.checkpoints_size() > 0) step = head.checkpoints(head.checkpoints_size() - 1).step();
  const v1::CheckpointGrant* granted = NewestGranted(grants);
  if (granted != nullptr && granted->step() > step.value_or(0)) step = granted->step();
  return step;
}

bool LastStepIsSaved(const v1::Job& head, uint64_t last_step, uint64_t restored_step) {
  if (!head.spec().has_train()) return true;
  const uint64_t recorded = head.checkpoints().empty() ? 0 : head.checkpoints().rbegin()->step();
  return std::max(recorded, restored_step) >= last_step;
}

}  // namespace trainyard
