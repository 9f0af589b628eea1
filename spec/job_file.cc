#include "spec/job_file.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/strict_yaml.h"
#include "spec/lora_config.h"
#include "spec/model_config.h"
#include "spec/presets.h"
#include "spec/validate.h"

namespace trainyard {
namespace {

void ApplyOverride(const JobFile& file, const std::string& text, v1::JobSpec* spec, Problems* problems,
                   Positions* positions) {
  const std::string place = absl::StrCat("--set ", text);
  size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    problems->Add({.is_warning = false,
                   .position = {.file = place, .line = 0, .column = 0},
                   .path = "",
                   .text = "expected key=value, for example train.steps=100"});
    return;
  }
  std::string key(absl::StripAsciiWhitespace(text.substr(0, equals)));
  std::string value = text.substr(equals + 1);
  SetYamlKey(key, {.text = value, .file_name = place, .working_directory = file.working_directory}, spec, problems,
             positions);
}

// Fills in train.model.config from the folder that the job names.
void ReadModelConfig(const JobFile& file, v1::JobSpec* spec, Problems* problems, Positions* positions) {
  const v1::Model& model = spec->train().model();
  if (!model.has_path() || model.has_config() || file.read_config == nullptr) return;
  absl::StatusOr<std::string> text = file.read_config(model.path());
  if (text.ok()) {
    spec->mutable_train()->mutable_model()->set_config(*std::move(text));
    return;
  }
  problems->AddError(*positions, "train.model.path", std::string(text.status().message()));
  positions->insert({"train.model.config", Position{.file = file.file_name, .line = 0, .column = 0}});
}

// Fills in train.lora.config from the folder that the job names.
void ReadAdapterConfig(const JobFile& file, v1::JobSpec* spec, Problems* problems, Positions* positions) {
  const v1::Lora& lora = spec->train().lora();
  if (!lora.has_path() || lora.has_config() || file.read_adapter_config == nullptr) return;
  absl::StatusOr<std::string> text = file.read_adapter_config(lora.path());
  if (text.ok()) {
    spec->mutable_train()->mutable_lora()->set_config(*std::move(text));
    return;
  }
  problems->AddError(*positions, "train.lora.path", std::string(text.status().message()));
  positions->insert({"train.lora.config", Position{.file = file.file_name, .line = 0, .column = 0}});
}

}  // namespace

v1::JobSpec ReadJobFile(const JobFile& file, Problems* problems, Positions* positions) {
  Positions own_positions;
  if (positions == nullptr) positions = &own_positions;
  v1::JobSpec spec;
  const int before = problems->error_count();
  ReadYaml({.text = file.text, .file_name = file.file_name, .working_directory = file.working_directory}, &spec,
           problems, positions);
  // If the text is not YAML, only that is reported, and not every required key as well.
  const bool readable = problems->error_count() == before || positions->size() > 1;
  for (const std::string& text : file.overrides) ApplyOverride(file, text, &spec, problems, positions);
  if (!readable) return spec;
  const int before_preset = problems->error_count();
  ApplyPreset(*positions, &spec, problems);
  if (problems->error_count() > before_preset) {
    // The preset would have set these keys, so they are not reported as missing.
    for (const char* key : {"layers", "heads", "width", "context"}) {
      positions->insert({absl::StrCat("train.model.", key), Position{.file = file.file_name, .line = 0, .column = 0}});
    }
  }
  ReadModelConfig(file, &spec, problems, positions);
  ApplyModelConfig(positions, &spec, problems);
  ReadAdapterConfig(file, &spec, problems, positions);
  ApplyLoraConfig(*positions, &spec, problems);
  DropInvalid(&spec, positions, problems);
  ValidateJob(spec, *positions, problems);
  return spec;
}

}  // namespace trainyard
