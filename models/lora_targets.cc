#include "models/lora_targets.h"

#include <fnmatch.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/model_description.h"

namespace trainyard {
namespace {

// The description of the same model with one layer and without adapters.
ModelDescription OneLayer(ModelSizes sizes) {
  sizes.lora = {};
  sizes.layers = 1;
  return DescribeModel(sizes);
}

// Calls `visit(projection, name)` for the projections of all layers.
template <typename Visit>
void ForProjections(const ModelSizes& sizes, const ModelDescription& layer, const Visit& visit) {
  const std::string first = absl::StrCat(layer.units[1].name, ".");                     // "h.0."
  const absl::string_view stem = absl::string_view(first).substr(0, first.size() - 2);  // "h."
  for (int64_t i = 0; i < sizes.layers; ++i) {
    for (const ProjectionDescription& projection : layer.projections) {
      visit(projection, absl::StrCat(stem, i, ".", absl::string_view(projection.name).substr(first.size())));
    }
  }
}

}  // namespace

bool IsAdapterName(absl::string_view parameter) {
  return absl::EndsWith(parameter, kLoraASuffix) || absl::EndsWith(parameter, kLoraBSuffix);
}

double LoraScale(const LoraSettings& lora) { return lora.alpha / static_cast<double>(lora.rank); }

bool IsGlob(absl::string_view target) { return target.find_first_of("*?[") != absl::string_view::npos; }

TargetMatcher::TargetMatcher(const std::vector<std::string>& targets, std::string prefix) : prefix_(std::move(prefix)) {
  for (const std::string& target : targets) {
    if (IsGlob(target)) {
      globs_.push_back(target);
    } else {
      names_.insert(target);
    }
  }
}

std::vector<std::string> TargetMatcher::AllThatMatch(absl::string_view name, bool first_only) const {
  std::vector<std::string> matches;
  const std::string whole = absl::StrCat(prefix_, name);
  const std::string own(name);
  // `end` is first the whole name, then what follows its first dot, its second dot, and so on.
  for (absl::string_view end = whole;;) {
    if (const auto found = names_.find(end); found != names_.end()) matches.push_back(*found);
    const size_t dot = end.find('.');
    if (dot == absl::string_view::npos || (first_only && !matches.empty())) break;
    end.remove_prefix(dot + 1);
  }
  for (const std::string& glob : globs_) {
    if (first_only && !matches.empty()) break;
    if (fnmatch(glob.c_str(), own.c_str(), 0) == 0 || fnmatch(glob.c_str(), whole.c_str(), 0) == 0) {
      matches.push_back(glob);
    }
  }
  return matches;
}

std::vector<std::string> DefaultLoraTargets(ModelFamily family) {
  if (family == ModelFamily::kGpt2) return {"c_attn"};
  return {"q_proj", "v_proj"};
}

std::vector<std::string> UnmatchedTargets(const ModelSizes& sizes) {
  const ModelDescription layer = OneLayer(sizes);
  const TargetMatcher matcher(sizes.lora.targets, layer.hugging_face.prefix);
  std::set<std::string> matched;
  ForProjections(sizes, layer, [&](const ProjectionDescription&, const std::string& name) {
    for (std::string& target : matcher.AllThatMatch(name)) matched.insert(std::move(target));
  });
  std::vector<std::string> left = sizes.lora.targets;
  std::erase_if(left, [&](const std::string& target) { return matched.count(target) > 0; });
  return left;
}

std::vector<std::string> ShortTargets(const ModelSizes& sizes) {
  const ModelDescription layer = OneLayer(sizes);
  const TargetMatcher matcher(sizes.lora.targets, layer.hugging_face.prefix);
  const std::vector<std::string> ends = ProjectionNames(sizes);
  std::vector<int64_t> blocks(ends.size());  // for each end: the number of blocks in which that projection is a target
  size_t index = 0;
  ForProjections(sizes, layer, [&](const ProjectionDescription&, const std::string& name) {
    if (matcher.Matches(name)) ++blocks[index];
    index = (index + 1) % ends.size();
  });
  std::vector<std::string> targets;
  for (size_t i = 0; i < ends.size(); ++i) {
    if (blocks[i] == sizes.layers) {
      targets.push_back(ends[i]);
    } else if (blocks[i] > 0) {
      return sizes.lora.targets;
    }
  }
  const bool is_shorter = targets.size() < sizes.lora.targets.size() && !targets.empty();
  return is_shorter ? targets : sizes.lora.targets;
}

std::vector<std::string> ProjectionNames(const ModelSizes& sizes) {
  const ModelDescription layer = OneLayer(sizes);
  std::vector<std::string> names;
  for (const ProjectionDescription& projection : layer.projections) {
    names.push_back(projection.name.substr(layer.units[1].name.size() + 1));
  }
  return names;
}

uint64_t CountAdapterParameters(const ModelSizes& sizes) {
  if (sizes.lora.rank == 0) return 0;
  const ModelDescription layer = OneLayer(sizes);
  const TargetMatcher matcher(sizes.lora.targets, layer.hugging_face.prefix);
  uint64_t inputs_and_outputs = 0;
  ForProjections(sizes, layer, [&](const ProjectionDescription& projection, const std::string& name) {
    if (!matcher.Matches(name)) return;
    inputs_and_outputs += static_cast<uint64_t>(projection.in + projection.out);
  });
  return inputs_and_outputs * static_cast<uint64_t>(sizes.lora.rank);
}

}  // namespace trainyard
