#include "spec/freeze_rules.h"

#include <fnmatch.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "spec/gpt2_names.h"

namespace trainyard {
namespace {

// Beyond so many comparisons it is left to the ranks, which look at the same.
constexpr uint64_t kComparisonsMax = 1000000;

}  // namespace

void CheckFreeze(const v1::Train& train, const Positions& positions, Problems* problems) {
  if (train.freeze().empty() || train.model().layers() == 0) return;
  const std::vector<std::string> names = Gpt2ParameterNames(train.model().layers());
  if (names.size() * static_cast<uint64_t>(train.freeze_size()) > kComparisonsMax) return;
  std::set<std::string> frozen;
  for (const std::string& glob : train.freeze()) {
    bool matches = false;
    for (const std::string& name : names) {
      if (fnmatch(glob.c_str(), name.c_str(), 0) != 0) continue;
      matches = true;
      frozen.insert(name);
    }
    if (matches) continue;
    problems->AddError(positions, "train.freeze",
                       absl::StrCat("'", glob.substr(0, 80), "' matches none of the ", names.size(),
                                    " parameters; their names are like wte.weight, ln_f.bias, h.0.ln_1.weight, ",
                                    names.back(), "; a * stands for anything"));
  }
  if (frozen.size() < names.size()) return;
  problems->AddError(positions, "train.freeze",
                     absl::StrCat("matches all ", names.size(), " parameters: nothing is left to train"));
}

}  // namespace trainyard
