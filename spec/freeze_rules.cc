#include "spec/freeze_rules.h"

#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "models/lora_targets.h"
#include "models/model_description.h"
#include "spec/model_sizes.h"

namespace trainyard {
namespace {

// The limit on the bytes of all globs, multiplied by the number of parameters that each glob is compared with. Within
// the limit, the check of a submitted job takes about a millisecond. Above the limit, the globs are not compared here;
// the ranks compare them by the same rules (worker/model/model.cc).
constexpr uint64_t kWorkMax = 100'000;
constexpr size_t kGlobBytesMax = 100;  // the longest name of a parameter is less than half as long

}  // namespace

bool IsTrained(const v1::Train& train, const std::string& parameter) {
  if (train.lora().rank() > 0) return IsAdapterName(parameter);
  return std::none_of(train.freeze().begin(), train.freeze().end(),
                      [&](const std::string& glob) { return fnmatch(glob.c_str(), parameter.c_str(), 0) == 0; });
}

void CheckFreeze(const v1::Train& train, const Positions& positions, Problems* problems) {
  if (train.freeze().empty() || train.model().layers() == 0) return;
  ModelSizes one_layer = SizesOfModel(train.model());
  one_layer.layers = 1;
  const ModelDescription description = DescribeModel(one_layer);
  const int first_of_block = description.units[1].first_parameter;
  const uint64_t per_block = static_cast<uint64_t>(description.units[1].num_parameters);
  size_t longest = 0;
  for (const ParameterDescription& parameter : description.parameters)
    longest = std::max(longest, parameter.name.size());
  longest += 3;  // a layer has at most 4 digits
  uint64_t work = 0;
  for (const std::string& glob : train.freeze()) {
    if (glob.size() > kGlobBytesMax) {
      problems->AddError(
          positions, "train.freeze",
          absl::StrCat("'", glob.substr(0, 40), "...' is ", glob.size(), " bytes long; names of ",
                       "parameters have at most ", longest, " bytes, and globs may have at most ", kGlobBytesMax));
      return;
    }
    work += (glob.size() + 1) * per_block * train.model().layers();
  }
  if (work > kWorkMax) return;
  std::vector<std::string> names;
  for (ParameterDescription& parameter : DescribeModel(SizesOfModel(train.model())).parameters) {
    names.push_back(std::move(parameter.name));
  }
  std::set<std::string> frozen;
  for (const std::string& glob : train.freeze()) {
    bool matches = false;
    for (const std::string& name : names) {
      if (fnmatch(glob.c_str(), name.c_str(), 0) != 0) continue;
      matches = true;
      frozen.insert(name);
    }
    if (matches) continue;
    problems->AddError(
        positions, "train.freeze",
        absl::StrCat("'", glob.substr(0, 80), "' matches none of the ", names.size(),
                     " parameters; their names are like ", names[0], ", ",
                     names[static_cast<size_t>(first_of_block) - 1], ", ", names[static_cast<size_t>(first_of_block)],
                     ", ", names.back(), "; a * matches any text"));
  }
  if (frozen.size() < names.size()) return;
  problems->AddError(positions, "train.freeze",
                     absl::StrCat("matches all ", names.size(), " parameters, so nothing would be trained"));
}

}  // namespace trainyard
