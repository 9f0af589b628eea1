#include "spec/lora_rules.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/yaml_schema.h"
#include "models/lora_targets.h"
#include "models/model_description.h"
#include "spec/model_sizes.h"

namespace trainyard {
namespace {

// The limit on the bytes of all globs, multiplied by the number of projections that each glob is compared with. Within
// the limit the check of a submitted job takes a few milliseconds.
constexpr uint64_t kMatchBytesMax = 1'000'000;
constexpr size_t kTargetBytesMax = 100;  // the longest name of a projection is less than half as long

class LoraRules {
 public:
  LoraRules(const v1::Train& train, const Positions& positions, Problems* problems)
      : train_(train), lora_(train.lora()), positions_(positions), problems_(*problems) {}

  bool Check() {
    if (lora_.rank() == 0) {
      WarnOfKeysWithoutEffect();
      return true;
    }
    if (!train_.freeze().empty()) {
      problems_.AddError(positions_, "train.freeze",
                         "cannot be combined with train.lora, which freezes all parameters except those of adapters; "
                         "remove it, or choose projections by train.lora.targets");
    }
    const v1::Model& model = train_.model();
    if (!model.has_path() && !model.has_init_from()) {
      problems_.AddWarning(positions_, "train.lora",
                           "freezes the model's own weights, but these are random: give train.model.path or "
                           "train.model.init_from");
    }
    if (model.layers() == 0 || model.heads() == 0 || model.width() == 0) return true;
    const ModelSizes sizes = SizesOf(train_);
    if (!CheckLengths(sizes)) return false;
    CheckTargets(sizes);
    WarnOfLargeRank(sizes);
    return true;
  }

 private:
  void WarnOfKeysWithoutEffect() {
    if (lora_.has_path() || positions_.count("train.lora.rank") > 0) return;
    for (const char* key : {"alpha", "dropout", "targets"}) {
      const auto* field = yaml::FieldOfKey(*v1::Lora::descriptor(), key);
      const auto& reflection = *lora_.GetReflection();
      const bool is_set = field->is_repeated()
                              ? reflection.FieldSize(lora_, field) > 0
                              : reflection.HasField(lora_, field) && !yaml::HasDefaultValue(lora_, *field);
      if (is_set) Warning(key, "has no effect: train.lora.rank is 0, so there are no adapters");
    }
  }

  bool CheckLengths(const ModelSizes& sizes) {
    uint64_t bytes = 0;
    for (const std::string& target : sizes.lora.targets) {
      if (IsGlob(target)) bytes += target.size() + 1;
      if (target.size() <= kTargetBytesMax) continue;
      Error("targets", absl::StrCat("'", target.substr(0, 40), "...' is ", target.size(),
                                    " bytes long; a target may have at most ", kTargetBytesMax));
      return false;
    }
    const uint64_t projections = ProjectionNames(sizes).size() * static_cast<uint64_t>(sizes.layers);
    if (bytes * projections <= kMatchBytesMax) return true;
    Error("targets", absl::StrCat("have globs of ", bytes, " bytes in total, too many to compare with ", projections,
                                  " projections; use fewer or shorter ones"));
    return false;
  }

  void CheckTargets(const ModelSizes& sizes) {
    std::vector<std::string> unmatched;
    for (const std::string& target : UnmatchedTargets(sizes)) unmatched.push_back(absl::StrCat("'", target, "'"));
    if (unmatched.empty()) return;
    const std::vector<std::string> names = ProjectionNames(sizes);
    ModelSizes one = BaseSizes(sizes);
    one.layers = 1;
    Error("targets", absl::StrCat(absl::StrJoin(unmatched, ", "), unmatched.size() == 1 ? " matches" : " match",
                                  " no projection; the projections of a block are ", absl::StrJoin(names, ", "),
                                  ", and a whole name is like ", DescribeModel(one).projections[0].name));
  }

  void WarnOfLargeRank(const ModelSizes& sizes) {
    ModelSizes one = BaseSizes(sizes);
    one.layers = 1;
    int64_t smallest = sizes.lora.rank;
    for (const ProjectionDescription& projection : DescribeModel(one).projections) {
      smallest = std::min({smallest, projection.in, projection.out});
    }
    if (sizes.lora.rank <= smallest) return;
    Warning("rank", absl::StrCat("is ", sizes.lora.rank, ", but the smallest side of a projection is ", smallest,
                                 ": a larger rank adds parameters, but the adapter can express nothing more"));
  }

  void Error(absl::string_view key, absl::string_view text) {
    problems_.AddError(positions_, absl::StrCat("train.lora.", key), text);
  }
  void Warning(absl::string_view key, absl::string_view text) {
    problems_.AddWarning(positions_, absl::StrCat("train.lora.", key), text);
  }

  const v1::Train& train_;
  const v1::Lora& lora_;
  const Positions& positions_;
  Problems& problems_;
};

}  // namespace

bool CheckLora(const v1::Train& train, const Positions& positions, Problems* problems) {
  return LoraRules(train, positions, problems).Check();
}

}  // namespace trainyard
