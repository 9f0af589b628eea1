// The questions of `trainctl config`, as a table: which keys of the job an answer sets, when the question applies, and
// its default. Pure.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/config_draft.h"

namespace trainyard::client {

// The job so far, while a draft is made.
struct QuestionContext {
  const v1::JobSpec& spec;
  const ConfigFacts& facts;
  bool is_script;
};

using YamlSettings = std::vector<std::pair<std::string, std::string>>;  // key of the job, value in YAML

struct ConfigQuestion {
  const char* id;
  std::vector<std::string> keys;  // empty: the answer decides which other questions apply
  const char* text;
  const char* help;
  bool (*applies)(const QuestionContext& context);
  std::string (*suggest)(const QuestionContext& context);
  // The keys that the answer sets. Possible errors: InvalidArgument: the text does not answer this question.
  absl::StatusOr<YamlSettings> (*settings)(const std::string& answer, const QuestionContext& context);
};

// The questions in the order in which they are asked.
const std::vector<ConfigQuestion>& ConfigQuestions();

// The first question: "script" or "model".
inline constexpr char kKindQuestion[] = "kind";

// `text` as a YAML scalar in double quotes.
std::string QuotedYaml(absl::string_view text);

}  // namespace trainyard::client
