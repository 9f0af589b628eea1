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

// Replaces the name of a file in train.data.chat_template by the content of that file.
void ReadChatTemplate(const JobFile& file, v1::JobSpec* spec, Problems* problems, Positions* positions) {
  constexpr char kKey[] = "train.data.chat_template";
  const v1::Data& data = spec->train().data();
  const bool is_text = data.chat_template().find('{') != std::string::npos;
  if (!data.has_chat_template() || is_text || file.read_chat_template == nullptr) return;
  absl::StatusOr<std::string> text = file.read_chat_template(data.chat_template());
  if (text.ok() && text->find('{') == std::string::npos) {
    text = absl::InvalidArgumentError(absl::StrCat(data.chat_template(), " has no '{', so it is no template"));
  }
  if (text.ok()) {
    spec->mutable_train()->mutable_data()->set_chat_template(*std::move(text));
    return;
  }
  problems->AddError(
      *positions, kKey,
      absl::StrCat("is no template, because it has no '{', and not the path of a template: ", text.status().message()));
  spec->mutable_train()->mutable_data()->clear_chat_template();
}

}  // namespace

void ApplyOverrides(const JobFile& file, v1::JobSpec* spec, Problems* problems, Positions* positions) {
  for (const std::string& text : file.overrides) ApplyOverride(file, text, spec, problems, positions);
}

void CompleteModel(const JobFile& file, v1::JobSpec* spec, Problems* problems, Positions* positions) {
  const int before_preset = problems->error_count();
  ApplyPreset(*positions, spec, problems);
  if (problems->error_count() > before_preset) {
    // The preset would have set these keys, so they are not reported as missing.
    for (const char* key : {"layers", "heads", "width", "context"}) {
      positions->insert({absl::StrCat("train.model.", key), Position{.file = file.file_name, .line = 0, .column = 0}});
    }
  }
  ReadModelConfig(file, spec, problems, positions);
  ApplyModelConfig(positions, spec, problems);
}

void CompleteJob(const JobFile& file, v1::JobSpec* spec, Problems* problems, Positions* positions) {
  CompleteModel(file, spec, problems, positions);
  ReadAdapterConfig(file, spec, problems, positions);
  ApplyLoraConfig(*positions, spec, problems);
  ReadChatTemplate(file, spec, problems, positions);
  if (spec->has_command() && !spec->command().has_workdir() && positions->count("command.workdir") == 0) {
    spec->mutable_command()->set_workdir(file.working_directory);
  }
  if (file.before_checks != nullptr) file.before_checks(spec, positions);
  DropInvalid(spec, positions, problems);
  ValidateJob(*spec, *positions, problems);
}

v1::JobSpec ReadJobFile(const JobFile& file, Problems* problems, Positions* positions) {
  Positions own_positions;
  if (positions == nullptr) positions = &own_positions;
  v1::JobSpec spec;
  const int before = problems->error_count();
  ReadYaml({.text = file.text, .file_name = file.file_name, .working_directory = file.working_directory}, &spec,
           problems, positions);
  // If the text is not YAML, only that is reported, and not every required key as well.
  const bool readable = problems->error_count() == before || positions->size() > 1;
  ApplyOverrides(file, &spec, problems, positions);
  if (readable) CompleteJob(file, &spec, problems, positions);
  return spec;
}

}  // namespace trainyard
