#include "client/config_draft.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/config_questions.h"
#include "client/job_input.h"
#include "client/local_checks.h"
#include "common/files.h"
#include "common/plain_text.h"
#include "common/strict_yaml.h"
#include "spec/job_file.h"

namespace trainyard::client {
namespace {

// The keys of a job that have a counterpart in Accelerate's file.
constexpr absl::string_view kAccelerateKeys[] = {
    "resources.ranks",        "resources.device",           "parallel.data",
    "train.precision.type",   "parallel.offload.optimizer", "parallel.offload.parameters",
    "parallel.recompute.mode"};

class DraftMaker {
 public:
  DraftMaker(const ConfigInput& input, const ConfigFacts& facts, const ConfigAnswers& answers)
      : input_(input), facts_(facts), answers_(answers) {}

  Draft Make() {
    const std::string text = input_.text.empty() ? "{}" : input_.text;
    ReadYaml({.text = text, .file_name = input_.file_name, .working_directory = facts_.working_directory}, &draft_.spec,
             &draft_.problems, &positions_);
    const JobFile file = File();
    ApplyOverrides(file, &draft_.spec, &draft_.problems, &positions_);
    given_ = positions_;
    if (draft_.problems.ok()) CheckGiven();
    if (!draft_.problems.ok()) return std::move(draft_);
    is_script_ = draft_.spec.has_command();
    for (const ConfigQuestion& question : ConfigQuestions()) Answer(question);
    if (draft_.problems.ok() && !facts_.accelerate && draft_.unanswered.empty()) CheckJob(file);
    return std::move(draft_);
  }

 private:
  JobFile File() const {
    JobFile file = JobFileOf(JobInput{.file = input_.file_name, .overrides = input_.overrides}, input_.text);
    file.working_directory = facts_.working_directory;
    return file;
  }

  QuestionContext Context() const { return {.spec = draft_.spec, .facts = facts_, .is_script = is_script_}; }

  void CheckGiven() {
    if (!facts_.accelerate) return;
    for (const auto& [key, position] : given_) {
      const bool is_group = std::any_of(
          std::begin(kAccelerateKeys), std::end(kAccelerateKeys),
          [&, name = absl::StrCat(key, ".")](absl::string_view known) { return absl::StartsWith(known, name); });
      if (key.empty() || is_group || AccelerateHasKey(key)) continue;
      draft_.problems.AddError(given_, key,
                               absl::StrCat("a file for Accelerate has no such key; remove the key, or run `trainctl "
                                            "config` without --accelerate. Keys that it has: ",
                                            absl::StrJoin(kAccelerateKeys, ", ")));
    }
    const v1::DataParallel data = draft_.spec.parallel().data();
    if (data == v1::DATA_PARALLEL_HSDP) {
      draft_.problems.AddError(given_, "parallel.data", "Accelerate's file cannot describe hsdp; choose fsdp or zero3");
    }
  }

  bool IsGiven(const ConfigQuestion& question) const {
    if (question.keys.empty()) return draft_.spec.has_command() || draft_.spec.has_train();
    return std::any_of(given_.begin(), given_.end(), [&](const auto& given) {
      return std::any_of(question.keys.begin(), question.keys.end(), [&](const std::string& key) {
        return given.first == key || absl::StartsWith(given.first, absl::StrCat(key, "."));
      });
    });
  }

  void Answer(const ConfigQuestion& question) {
    if (IsGiven(question) || !question.applies(Context())) return;
    const auto answer = answers_.find(question.id);
    AskedQuestion asked = {.id = question.id,
                           .keys = question.keys,
                           .text = question.text,
                           .help = question.help,
                           .suggestion = question.suggest(Context())};
    const std::string text = answer == answers_.end() ? asked.suggestion : answer->second;
    draft_.questions.push_back(std::move(asked));
    if (text.empty()) {
      draft_.unanswered.emplace_back(question.id);
      return;
    }
    const std::string key = question.keys.empty() ? "" : question.keys.front();
    absl::StatusOr<YamlSettings> settings = question.settings(text, Context());
    if (const std::string why = WhyNotPlainText(text); !why.empty()) {
      settings = absl::InvalidArgumentError(absl::StrCat("the answer ", why));
    }
    if (!settings.ok()) {
      draft_.problems.Add({.is_warning = false,
                           .position = {},
                           .path = key.empty() ? question.id : key,
                           .text = std::string(settings.status().message())});
      return;
    }
    if (question.id == absl::string_view(kKindQuestion)) is_script_ = text == "script";
    for (const auto& [name, yaml] : *settings) {
      SetYamlKey(name, {.text = yaml, .file_name = "", .working_directory = facts_.working_directory}, &draft_.spec,
                 &draft_.problems, &positions_);
      if (name == settings->front().first) draft_.comments[name] = question.help;
    }
  }

  void CheckJob(const JobFile& file) {
    LoadedJob job;
    job.spec = draft_.spec;
    job.positions = positions_;
    CompleteJob(file, &job.spec, &draft_.problems, &job.positions);
    if (!draft_.problems.ok()) return;
    CheckFiles(&job);
    CheckScript(&job);
    if (job.problems.ok()) CheckMemory(job.spec, facts_.memory_bytes, job.positions, &job.problems);
    for (Problem problem : job.problems.all()) {
      if (facts_.elsewhere && !problem.is_warning) {
        problem.is_warning = true;
        absl::StrAppend(&problem.text, " (on this machine; the job runs on others)");
      }
      draft_.problems.Add(std::move(problem));
    }
  }

  static void CheckScript(LoadedJob* job) {
    const v1::Command& command = job->spec.command();
    if (command.argv_size() < 2 || command.argv(0) != "python3" || !absl::EndsWith(command.argv(1), ".py")) return;
    const std::string path = AbsolutePath(command.argv(1), command.workdir());
    if (FileExists(path)) return;
    job->problems.AddError(job->positions, "command.argv", absl::StrCat("the script ", path, " does not exist"));
  }

  const ConfigInput& input_;
  const ConfigFacts& facts_;
  const ConfigAnswers& answers_;
  Draft draft_;
  Positions positions_;
  Positions given_;
  bool is_script_ = false;
};

// The number of parts that two dotted keys have in common at their beginnings.
size_t CommonParts(absl::string_view a, absl::string_view b) {
  const std::vector<absl::string_view> left = absl::StrSplit(a, '.'), right = absl::StrSplit(b, '.');
  size_t common = 0;
  while (common < std::min(left.size(), right.size()) && left[common] == right[common]) ++common;
  return common;
}

}  // namespace

Draft MakeDraft(const ConfigInput& input, const ConfigFacts& facts, const ConfigAnswers& answers) {
  return DraftMaker(input, facts, answers).Make();
}

std::string OwnerOf(const Draft& draft, absl::string_view key) {
  std::string owner;
  size_t most = 0;
  for (const AskedQuestion& question : draft.questions) {
    if (question.keys.empty() && key == question.id) return question.id;
    for (const std::string& own : question.keys) {
      const size_t common = CommonParts(own, key);
      // Keys that share only their first part, such as `train`, count as unrelated, unless they are equal (`name`).
      if (common > most && (common > 1 || own == key)) {
        most = common;
        owner = question.id;
      }
    }
  }
  return owner;
}

absl::StatusOr<std::vector<std::string>> SplitCommand(absl::string_view text) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote == 0 && (c == ' ' || c == '\t')) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    } else if (c == '\\' && quote != '\'' && i + 1 < text.size()) {
      words.back() += text[++i];
    } else {
      words.back() += c;
    }
  }
  if (quote != 0)
    return absl::InvalidArgumentError(absl::StrCat("the quote ", std::string(1, quote), " is not closed"));
  return words;
}

bool AccelerateHasKey(absl::string_view key) {
  return std::find(std::begin(kAccelerateKeys), std::end(kAccelerateKeys), key) != std::end(kAccelerateKeys);
}

}  // namespace trainyard::client
