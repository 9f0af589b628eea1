#include "foreign/job_text.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/escape.h"
#include "common/strict_yaml.h"

namespace trainyard::foreign {
namespace {

// Lines for the missing keys of `train`, with an example of each.
std::string RequiredLines(const ForeignJob& job) {
  std::string lines;
  const auto is_missing = [&](absl::string_view prefix) {
    return std::any_of(job.missing.begin(), job.missing.end(),
                       [&](const std::string& key) { return absl::StartsWith(key, prefix); });
  };
  struct Example {
    const char* key;
    const char* line;
    bool is_begun;  // the job has other keys of this group, so that only `rest` is missing
    const char* rest;
  };
  const v1::Train& train = job.spec.train();
  for (const Example& example :
       {Example{"train.model", "model: {preset: lab-tiny}   # a preset, a folder of transformers (path), or sizes",
                train.has_model(), "in model: a preset, a folder of transformers (path), or sizes"},
        Example{"train.data", "data: {text: [corpus.txt]}   # files, folders or globs; or jsonl, or tokens",
                train.has_data(), "in data: text, jsonl, tokens or csv"},
        Example{"train.batch", "batch: {global: 32}   # the sequences of a step, over all ranks", train.has_batch(),
                "in batch: global, the sequences of a step over all ranks"},
        Example{"train.steps", "steps: 1000   # the optimizer steps of the job", false, ""}}) {
    if (!is_missing(example.key)) continue;
    absl::StrAppend(&lines, "  # REQUIRED: ", example.is_begun ? example.rest : example.line, "\n");
  }
  return lines;
}

}  // namespace

std::string JobText(const ForeignJob& job, const std::string& source) {
  std::string text = absl::StrCat("# Imported from ", EscapeText(source), ", a configuration file of ",
                                  DialectName(job.dialect), ".\n");
  for (const auto& [key, from] : job.origins) {
    absl::StrAppend(&text, "#   ", key, " is from ", EscapeText(from), "\n");
  }
  const std::string required = RequiredLines(job);
  if (!required.empty()) {
    absl::StrAppend(&text, "# The keys marked REQUIRED are not in that file. The job is not valid without them.\n");
  }
  const std::string yaml = WriteYaml(job.spec);
  bool has_train = false;
  for (absl::string_view line : absl::StrSplit(yaml, '\n', absl::SkipEmpty())) {
    absl::StrAppend(&text, line, "\n");
    if (line == "train:") {
      has_train = true;
      absl::StrAppend(&text, required);
    }
  }
  // WriteYaml writes no line for an empty `train`. With `train: {}`, reading the job reports which of its keys are
  // required.
  if (!has_train) absl::StrAppend(&text, "train: {}\n", required);
  return text;
}

}  // namespace trainyard::foreign
