// Imports a text and gives the parts of the result as text, for tests.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/strict_yaml.h"
#include "foreign/import.h"
#include "foreign/job_text.h"

namespace trainyard::foreign {

struct Imported {
  ForeignJob job;
  v1::JobSpec complete;
  Problems problems;

  std::string Errors() const { return Lines(problems.Errors()); }
  std::string Warnings() const { return Lines(problems.Warnings()); }
  std::string Notes() const { return absl::StrJoin(job.notes, "\n"); }
  std::string Yaml() const { return WriteYaml(job.spec); }

  // The settings of the key, each as "parallel.data=zero2", or the note of the key if it has no settings.
  std::string Became(absl::string_view key) const {
    for (const KeyOutcome& outcome : job.keys) {
      if (outcome.key != key) continue;
      std::vector<std::string> settings;
      for (const Setting& setting : outcome.settings) settings.push_back(absl::StrCat(setting.key, "=", setting.value));
      return settings.empty() ? outcome.note : absl::StrJoin(settings, " ");
    }
    return "no such key";
  }

 private:
  static std::string Lines(const std::vector<Problem>& problems) {
    return absl::StrJoin(problems, "\n", [](std::string* out, const Problem& p) { out->append(p.ToString()); });
  }
};

// Returns the settings that a key of the file became.
inline std::vector<Setting> SettingsOf(const Imported& imported, absl::string_view key) {
  for (const KeyOutcome& outcome : imported.job.keys) {
    if (outcome.key == key) return outcome.settings;
  }
  return {};
}

// The flags for the keys that every job needs and that no foreign file has.
inline const std::vector<std::string>& RequiredFlags() {
  static const auto* const flags =
      new std::vector<std::string>{"train.model.preset=lab-tiny", "train.data.text=[corpus]", "train.steps=10"};
  return *flags;
}

inline std::vector<std::string> RequiredFlagsAnd(std::vector<std::string> flags) {
  flags.insert(flags.begin(), RequiredFlags().begin(), RequiredFlags().end());
  return flags;
}

inline Imported Import(const std::string& text, const std::vector<std::string>& flags,
                       const TextReader& read_text = nullptr) {
  Imported imported;
  Positions positions;
  const JobFile file{.text = text, .file_name = "their.file", .working_directory = "/work", .overrides = flags};
  const absl::optional<Dialect> dialect = DialectOf(text);
  imported.job = ImportFile(file, dialect.value_or(Dialect::kDeepSpeed), read_text, &imported.problems, &positions);
  imported.complete = imported.job.spec;
  CheckForeignJob(&imported.job, file, &imported.complete, &imported.problems, &positions);
  return imported;
}

}  // namespace trainyard::foreign
