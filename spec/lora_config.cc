#include "spec/lora_config.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "common/strict_yaml.h"
#include "common/yaml_schema.h"
#include "models/adapter_config.h"
#include "models/lora_targets.h"
#include "spec/model_sizes.h"

namespace trainyard {
namespace {

std::set<std::string> SetOf(const v1::Lora& lora) { return {lora.targets().begin(), lora.targets().end()}; }

v1::Lora MessageOf(const LoraSettings& settings) {
  v1::Lora lora;
  lora.set_rank(static_cast<uint32_t>(settings.rank));
  lora.set_alpha(settings.alpha);
  lora.set_dropout(settings.dropout);
  for (const std::string& target : settings.targets) lora.add_targets(target);
  return lora;
}

}  // namespace

void ApplyLoraConfig(const Positions& positions, v1::JobSpec* spec, Problems* problems) {
  if (!spec->train().lora().has_path() && !spec->train().lora().has_config()) return;
  v1::Lora& lora = *spec->mutable_train()->mutable_lora();
  if (!lora.has_config()) {
    if (positions.count("train.lora.config") > 0) return;  // it could not be read, which is reported
    return problems->AddError(positions, "train.lora.path",
                              "needs the text of its adapter_config.json in train.lora.config: submit the job with "
                              "trainctl, which reads the file, or give that key");
  }
  const auto& config = *yaml::FieldOfKey(*v1::Lora::descriptor(), "config");
  if (!yaml::TextProblem(config, lora.config()).empty()) return;  // DropInvalid reports it
  const std::string origin =
      lora.has_path() ? JoinPath(lora.path(), kAdapterConfigName) : std::string("train.lora.config");
  const absl::StatusOr<LoraSettings> settings =
      ParseAdapterConfig(lora.config(), origin, SizesOfModel(spec->train().model()).family);
  if (!settings.ok()) {
    return problems->AddError(positions, lora.has_path() ? "train.lora.path" : "train.lora.config",
                              std::string(settings.status().message()));
  }
  // The file may list each projection of each block, which can be more targets than a job may list.
  ModelSizes sizes = SizesOfModel(spec->train().model());
  sizes.lora = *settings;
  // The sizes are not checked yet. In a model of billions of layers the comparison would take hours; DropInvalid
  // refuses such a model.
  const auto& layers = *yaml::FieldOfKey(*v1::Model::descriptor(), "layers");
  if (sizes.heads > 0 && yaml::InRange(layers, static_cast<double>(sizes.layers))) {
    sizes.lora.targets = ShortTargets(sizes);
  }
  const v1::Lora expected = MessageOf(sizes.lora);
  const auto check = [&](bool differs, const char* key) {
    if (!differs) return;
    const auto& field = *yaml::FieldOfKey(*v1::Lora::descriptor(), key);
    problems->AddError(positions, absl::StrCat("train.lora.", key),
                       absl::StrCat("is ", FieldYaml(lora, field), ", but ", origin, " says ",
                                    FieldYaml(expected, field), "; remove the key"));
  };
  check(lora.has_rank() && lora.rank() != expected.rank(), "rank");
  check(lora.has_alpha() && lora.alpha() != expected.alpha(), "alpha");
  check(lora.targets_size() > 0 && SetOf(lora) != SetOf(expected), "targets");
  lora.set_rank(expected.rank());
  lora.set_alpha(expected.alpha());
  *lora.mutable_targets() = expected.targets();
  if (!lora.has_dropout()) lora.set_dropout(expected.dropout());
}

}  // namespace trainyard
