#include "worker/trainer/prompts.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/escape.h"
#include "common/files.h"
#include "common/json_nesting.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kPromptFileBytesMax = uint64_t{64} << 20;
constexpr int kPromptDepthMax = 64;

absl::StatusOr<std::string> PromptOf(absl::string_view line) {
  if (JsonNestsDeeperThan(line, kPromptDepthMax)) {
    return absl::InvalidArgumentError(absl::StrCat("is nested more than ", kPromptDepthMax, " deep"));
  }
  Json json;
  try {
    json = Json::parse(line.begin(), line.end());
  } catch (const Json::exception&) {
    return absl::InvalidArgumentError("is not JSON; expected an object such as {\"prompt\": \"Once upon\"}");
  }
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("is not a JSON object but of type ", json.type_name(), "; expected {\"prompt\": \"...\"}"));
  }
  const auto found = json.find("prompt");
  if (found == json.end()) return absl::InvalidArgumentError("has no field 'prompt'");
  if (!found->is_string()) {
    return absl::InvalidArgumentError(absl::StrCat("'prompt' is not a text but of type ", found->type_name()));
  }
  if (found->get_ref<const std::string&>().empty()) return absl::InvalidArgumentError("'prompt' is empty");
  return found->get<std::string>();
}

}  // namespace

std::vector<Prompt> ParsePrompts(absl::string_view text, const std::string& path, Problems& problems) {
  const bool is_json = absl::EndsWith(path, ".jsonl");
  std::vector<Prompt> prompts;
  int number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    absl::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (absl::EndsWith(line, "\r")) line.remove_suffix(1);
    const Position position{.file = path, .line = ++number, .column = 1};
    if (line.find_first_not_of(is_json ? " \t" : "") == absl::string_view::npos) continue;
    const absl::StatusOr<std::string> prompt = is_json ? PromptOf(line) : std::string(line);
    if (prompt.ok()) {
      prompts.push_back({.text = *prompt, .position = position});
    } else {
      problems.Add(
          {.is_warning = false, .position = position, .path = "", .text = std::string(prompt.status().message())});
    }
  }
  return prompts;
}

absl::StatusOr<std::vector<Prompt>> ReadPrompts(const std::string& path, Problems& problems) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kPromptFileBytesMax), << "--prompts");
  std::vector<Prompt> prompts = ParsePrompts(text, path, problems);
  if (prompts.empty() && problems.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--prompts: ", path, " has no prompt: write one in each line"));
  }
  return prompts;
}

}  // namespace trainyard
