// Which projections of a model have low-rank adapters, with the rule of the Python library PEFT: a target is the whole
// name of a module in transformers, or the end of such a name after a dot. In addition, a target with one of * ? [ is a
// glob of whole names, with or without the prefix of transformers. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "models/lora.h"
#include "models/model_sizes.h"

namespace trainyard {

// What follows the name of a projection in the names of its adapter's parameters.
inline constexpr char kLoraASuffix[] = ".lora_A.weight";
inline constexpr char kLoraBSuffix[] = ".lora_B.weight";

// Whether this is the name of an adapter's parameter.
bool IsAdapterName(absl::string_view parameter);

// The factor by which the product B A is multiplied: alpha / rank.
double LoraScale(const LoraSettings& lora);

bool IsGlob(absl::string_view target);

// The targets of one model. There may be many: PEFT lists the whole names of all projections if all of them have
// adapters. Therefore the time of a match hardly depends on the number of targets that are no globs.
class TargetMatcher {
 public:
  // A name in transformers is `prefix` followed by our name.
  TargetMatcher(const std::vector<std::string>& targets, std::string prefix);

  // Whether one of the targets matches the projection.
  bool Matches(absl::string_view name) const { return !AllThatMatch(name, /*first_only=*/true).empty(); }
  // The targets that match the projection.
  std::vector<std::string> AllThatMatch(absl::string_view name) const { return AllThatMatch(name, false); }

 private:
  std::vector<std::string> AllThatMatch(absl::string_view name, bool first_only) const;

  std::set<std::string, std::less<>> names_;  // targets that are no globs
  std::vector<std::string> globs_;
  std::string prefix_;
};

// The targets that PEFT chooses for the family.
std::vector<std::string> DefaultLoraTargets(ModelFamily family);

// The targets that match no projection. REQUIRES: CheckSizes(sizes).
std::vector<std::string> UnmatchedTargets(const ModelSizes& sizes);

// A shorter list that matches the same projections: the ends of their names. Returns the targets unchanged if they
// match different projections in different blocks, or if the list would not be shorter.
std::vector<std::string> ShortTargets(const ModelSizes& sizes);

// The ends of the names of a family's projections, each the same in every block: "attn.c_attn".
std::vector<std::string> ProjectionNames(const ModelSizes& sizes);

// The number of elements of all adapters. REQUIRES: sizes are not negative.
uint64_t CountAdapterParameters(const ModelSizes& sizes);

}  // namespace trainyard
