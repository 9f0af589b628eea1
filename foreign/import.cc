#include "foreign/import.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/escape.h"
#include "common/strict_yaml.h"
#include "foreign/translators.h"

namespace trainyard::foreign {
namespace {

constexpr size_t kNameBytesMax = 63;  // of a job's name
constexpr char kRequired[] = "is required";

// A name for the job from the name of its file: "ds-config" for "/tmp/DS_config.json".
std::string NameOf(absl::string_view file_name) {
  file_name = file_name.substr(file_name.rfind('/') + 1);
  file_name = file_name.substr(0, file_name.rfind('.'));
  std::string name;
  for (char c : file_name) {
    const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
    const bool is_letter = absl::ascii_islower(static_cast<unsigned char>(lower));
    if (name.empty() && !is_letter) continue;
    name += is_letter || absl::ascii_isdigit(static_cast<unsigned char>(lower)) ? lower : '-';
  }
  name = name.substr(0, kNameBytesMax);
  return name.empty() ? "imported" : name;
}

// The options that give a key of a job, or, if the key is a group, the options that give what the group needs.
std::string FlagsFor(absl::string_view key) {
  if (key == "train.model") return "--set train.model.preset=NAME, or train.model.path=FOLDER";
  if (key == "train.data") return "--set train.data.text=[FILE]";
  if (key == "train.batch") return "--set train.batch.global=N";
  return absl::StrCat("--set ", key, "=VALUE");
}

class Importer {
 public:
  Importer(const JobFile& file, Dialect dialect, const TextReader& read_text, Problems* problems, Positions* positions)
      : file_(file), read_text_(read_text), problems_(*problems), positions_(*positions) {
    job_.dialect = dialect;
  }

  ForeignJob Import() {
    positions_.insert({"", Position{.file = file_.file_name, .line = 0, .column = 0}});
    ReadFlags();
    Translation translation(flags_, flag_positions_, &problems_);
    const Reading* referenced = nullptr;
    Reading other;
    if (const yaml::NodePtr root = ParseDocument(file_.text, file_.file_name, &problems_); root != nullptr) {
      const Reading reading = ReadKeys(*root, job_.dialect, file_.file_name, &problems_);
      if (ReadReferenced(reading, &other)) referenced = &other;
      translation.AddReading(reading);
      if (referenced != nullptr) translation.AddReading(*referenced);
      Translate(&translation, referenced != nullptr);
      SetTrainingDefaults(&translation);
    }
    translation.Finish();
    SetKeys(translation);
    for (const std::string& key : translation.rejected()) {
      positions_.insert({key, Position{.file = file_.file_name, .line = 0, .column = 0}});
      if (absl::StartsWith(key, "train.batch.")) job_.spec.mutable_train()->mutable_batch();
    }
    job_.keys = translation.outcomes();
    job_.notes.insert(job_.notes.end(), translation.notes().begin(), translation.notes().end());
    ApplyOverrides(file_, &job_.spec, &problems_, &positions_);
    return std::move(job_);
  }

 private:
  // Reads the job that --set alone describes. Its problems are reported later, with those of the whole job.
  void ReadFlags() {
    Problems ignored;
    ApplyOverrides(file_, &flags_, &ignored, &flag_positions_);
    Positions positions = flag_positions_;
    CompleteModel(file_, &flags_, &ignored, &positions);
  }

  // Reads the file that a key of this file names: in an Accelerate file a DeepSpeed file, in TrainingArguments the file
  // of fsdp_config. Returns whether there is one.
  bool ReadReferenced(const Reading& reading, Reading* other) {
    const bool is_accelerate = job_.dialect == Dialect::kAccelerate;
    const Value* path = reading.Find(is_accelerate ? "deepspeed_config.deepspeed_config_file" : "fsdp_config");
    const bool names_file = path != nullptr && (is_accelerate || path->is_path);
    if (!names_file || read_text_ == nullptr) return false;
    absl::StatusOr<std::string> text = read_text_(path->whole);
    if (!text.ok()) {
      problems_.Add({.is_warning = false,
                     .position = path->position,
                     .path = path->key,
                     .text = std::string(text.status().message())});
      return false;
    }
    const std::string name = EscapeText(path->whole);
    const yaml::NodePtr root = ParseDocument(*text, name, &problems_);
    if (root == nullptr) return false;
    *other = ReadKeys(*root, is_accelerate ? Dialect::kDeepSpeed : Dialect::kFsdpConfig, name, &problems_);
    return true;
  }

  void Translate(Translation* t, bool has_deepspeed_file) {
    switch (job_.dialect) {
      case Dialect::kAccelerate: {
        TranslateAccelerate(t);
        const bool is_megatron = t->Find("megatron_lm_config.megatron_lm_num_micro_batches") != nullptr;
        if (has_deepspeed_file) {
          TranslateBatch(t, kDeepSpeedBatch);
        } else {
          TranslateBatch(t, {"", "",
                             is_megatron ? "megatron_lm_config.megatron_lm_num_micro_batches"
                                         : "deepspeed_config.gradient_accumulation_steps"});
        }
        return SetReduction(t);
      }
      case Dialect::kDeepSpeed:
        TranslateDeepSpeed(t);
        TranslateBatch(t, kDeepSpeedBatch);
        return SetReduction(t);
      case Dialect::kTrainingArguments:
        TranslateTrainer(t);
        return TranslateBatch(t, {"", "per_device_train_batch_size", "gradient_accumulation_steps"});
      case Dialect::kFsdpConfig:
        return TranslateFsdp(t, /*version=*/2, /*ranks_per_host=*/0);
    }
  }

  // Sets the keys of the job. A value that a job file refuses is reported as a problem of the foreign key.
  void SetKeys(const Translation& translation) {
    job_.spec.mutable_train();
    if (!translation.HasFlag("name")) {
      const std::string name = NameOf(file_.file_name);
      SetYamlKey("name", {.text = name, .file_name = file_.file_name, .working_directory = ""}, &job_.spec, &problems_,
                 &positions_);
      job_.notes.push_back(absl::StrCat("name is ", name, ", from the name of the file"));
    }
    if (translation.ValueOf("resources.ranks").empty()) {
      job_.notes.push_back(
          "resources.ranks is 1, because the file does not give it; --set resources.ranks=N changes it");
    }
    for (const auto& [key, assigned] : translation.assigned()) {
      if (translation.HasFlag(key)) continue;
      Problems problems;
      SetYamlKey(
          key,
          {.text = assigned.value, .file_name = assigned.position.file, .working_directory = file_.working_directory},
          &job_.spec, &problems, &positions_);
      positions_[key] = assigned.position;
      job_.origins[key] = assigned.from;
      for (const Problem& problem : problems.all()) {
        problems_.Add({.is_warning = problem.is_warning,
                       .position = assigned.position,
                       .path = assigned.from,
                       .text = absl::StrCat("becomes ", key, ", which ", problem.text)});
      }
    }
  }

  static constexpr BatchKeys kDeepSpeedBatch = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                                "gradient_accumulation_steps"};

  const JobFile& file_;
  const TextReader& read_text_;
  Problems& problems_;
  Positions& positions_;
  v1::JobSpec flags_;
  Positions flag_positions_;
  ForeignJob job_;
};

}  // namespace

absl::optional<Dialect> DialectOf(absl::string_view text) {
  Problems ignored;
  const yaml::NodePtr root = ParseDocument(text, "", &ignored);
  return root == nullptr || !root->IsMap() ? absl::nullopt : DetectDialect(*root);
}

std::string WhyNeither(absl::string_view text) {
  Problems ignored;
  const yaml::NodePtr root = ParseDocument(text, "", &ignored);
  if (root == nullptr || !root->IsMap() || root->entries.empty()) return "";
  if (DetectDialect(*root).has_value() || HasJobKeys(*root)) return "";
  return "is neither a job file, which has the keys name and train, nor a configuration file of Accelerate "
         "(distributed_type, num_processes), DeepSpeed (zero_optimization, train_batch_size) or transformers (fsdp, "
         "fsdp_config)";
}

ForeignJob ImportFile(const JobFile& file, Dialect dialect, const TextReader& read_text, Problems* problems,
                      Positions* positions) {
  return Importer(file, dialect, read_text, problems, positions).Import();
}

void CheckForeignJob(ForeignJob* job, const JobFile& file, v1::JobSpec* spec, Problems* problems,
                     Positions* positions) {
  Problems found;
  CompleteJob(file, spec, &found, positions);
  for (Problem problem : found.all()) {
    if (!problem.is_warning && absl::StartsWith(problem.text, kRequired)) {
      job->missing.push_back(problem.path);
      absl::StrAppend(&problem.text, "; add ", FlagsFor(problem.path), ", because a file of ",
                      DialectName(job->dialect), " does not give it");
    }
    problems->Add(std::move(problem));
  }
}

}  // namespace trainyard::foreign
