#include "coordinator/policy/saves.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"

namespace trainyard {
namespace {

// What of this generation came to be, or was granted to, last.
struct Newest {
  uint64_t step = 0;
  std::string hash;
};

Newest NewestOfGeneration(const v1::Job& head, const CheckpointGrants& words) {
  Newest newest;
  for (const v1::CheckpointInfo& info : head.checkpoints()) {
    if (info.generation() == head.generation() && info.step() >= newest.step) {
      newest = {.step = info.step(), .hash = info.manifest_hash()};
    }
  }
  for (const v1::CheckpointGrant& word : words) {
    if (!word.refused() && word.generation() == head.generation() && word.step() >= newest.step) {
      newest = {.step = word.step(), .hash = word.manifest_hash()};
    }
  }
  return newest;
}

// Why it does not get its name; empty: it does.
std::string WhyRefused(const v1::Job& head, const CheckpointGrants& words, const v1::CheckpointReady& ready) {
  if (ready.manifest_hash().empty() || ready.manifest_hash().size() > kManifestHashBytes) {
    return "it is told without the hash of a manifest";
  }
  if (ready.path().empty() || ready.path().size() > limits::kPathBytes) return "it is told without a path";
  if (ready.step() == 0 || ready.step() > head.spec().train().steps()) {
    return absl::StrCat("train.steps is ", head.spec().train().steps());
  }
  const Newest newest = NewestOfGeneration(head, words);
  if (ready.step() > newest.step) return "";
  if (ready.step() == newest.step && ready.manifest_hash() == newest.hash) return "";
  return ready.step() == newest.step
             ? absl::StrCat("this generation has other contents of that step, with the manifest hash ", newest.hash)
             : absl::StrCat("this generation has saved step ", newest.step, " since");
}

}  // namespace

v1::CheckpointGrant DecideGrant(const v1::Job& head, const CheckpointGrants& words, const v1::CheckpointReady& ready) {
  const v1::CheckpointGrant* known = FindGrant(words, head.generation(), ready.step(), ready.manifest_hash());
  if (known != nullptr) return *known;
  v1::CheckpointGrant word;
  word.set_step(ready.step());
  word.set_generation(head.generation());
  word.set_manifest_hash(ready.manifest_hash().substr(0, kManifestHashBytes));
  word.set_path(ready.path().substr(0, limits::kPathBytes));
  word.set_size_bytes(ready.size_bytes());
  word.set_reason(WhyRefused(head, words, ready));
  word.set_refused(!word.reason().empty());
  return word;
}

void AddGrant(v1::CheckpointGrant word, CheckpointGrants& words) {
  *words.Add() = std::move(word);
  while (words.size() > kWordsKept) {
    auto oldest = std::find_if(words.begin(), words.end(), [](const auto& known) { return known.refused(); });
    words.erase(oldest == words.end() ? words.begin() : oldest);
  }
}

const v1::CheckpointGrant* FindGrant(const CheckpointGrants& words, uint64_t generation, uint64_t step,
                                     const std::string& manifest_hash) {
  for (const v1::CheckpointGrant& word : words) {
    if (word.generation() == generation && word.step() == step && word.manifest_hash() == manifest_hash) return &word;
  }
  return nullptr;
}

void ForgetGrants(uint64_t generation, uint64_t step, CheckpointGrants& words) {
  words.erase(std::remove_if(words.begin(), words.end(),
                             [&](const v1::CheckpointGrant& word) {
                               if (word.generation() != generation) return false;
                               return word.step() == step || (word.refused() && word.step() < step);
                             }),
              words.end());
}

const v1::CheckpointGrant* NewestGranted(const CheckpointGrants& words) {
  const v1::CheckpointGrant* newest = nullptr;
  for (const v1::CheckpointGrant& word : words) {
    if (!word.refused() && (newest == nullptr || word.step() >= newest->step())) newest = &word;
  }
  return newest;
}

std::optional<uint64_t> NewestKeptStep(const v1::Job& head, const CheckpointGrants& words) {
  std::optional<uint64_t> step;
  if (head.checkpoints_size() > 0) step = head.checkpoints(head.checkpoints_size() - 1).step();
  const v1::CheckpointGrant* granted = NewestGranted(words);
  if (granted != nullptr && granted->step() > step.value_or(0)) step = granted->step();
  return step;
}

bool LastStepIsSaved(const v1::Job& head, uint64_t restored_step) {
  if (head.spec().has_probe()) return true;
  const uint64_t recorded = head.checkpoints().empty() ? 0 : head.checkpoints().rbegin()->step();
  return std::max(recorded, restored_step) >= head.spec().train().steps();
}

}  // namespace trainyard
