#include "worker/trainer/sample_output.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/escape.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

const char* EndName(TextEnd end) {
  switch (end) {
    case TextEnd::kEndToken:
      return "end_token";
    case TextEnd::kLength:
      return "length";
    case TextEnd::kInterrupted:
      break;
  }
  return "interrupted";
}

// Keeps line ends and tabs.
std::string EscapedForTerminal(absl::string_view text) {
  std::string escaped;
  for (const absl::string_view part : absl::StrSplit(text, '\t')) {
    absl::StrAppend(&escaped, part.data() == text.data() ? "" : "\t", EscapeLines(part));
  }
  return escaped;
}

absl::Status WriteToOutput(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return absl::AbortedError(absl::StrCat("standard output cannot be written: ", strerror(errno)));
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace

SampleOutput::SampleOutput(const TextModel& model, const std::vector<Prompt>& prompts,
                           const std::vector<std::vector<int64_t>>& tokens, const SampleStyle& style)
    : model_(model),
      prompts_(prompts),
      tokens_(tokens),
      style_(style),
      texts_(prompts.size(), Text(*model.tokenizer)) {}

absl::Status SampleOutput::Add(size_t prompt, int64_t token) {
  Text& text = texts_[prompt];
  text.generated.push_back(token);
  if (style_.json) return absl::OkStatus();
  if (!std::exchange(text.has_begun, true)) absl::StrAppend(&text.waiting, text.stream.Add(tokens_[prompt]));
  const bool is_end = std::find(model_.ends.begin(), model_.ends.end(), token) != model_.ends.end();
  if (!is_end || !model_.hides_ends) absl::StrAppend(&text.waiting, text.stream.Add({token}));
  return style_.stream && prompt == current_ ? Write(prompt) : absl::OkStatus();
}

absl::Status SampleOutput::End(size_t prompt, TextEnd end) {
  Text& text = texts_[prompt];
  text.has_ended = true;
  text.waiting = style_.json ? Json(prompt, end) : absl::StrCat(text.waiting, text.stream.Finish());
  while (current_ < texts_.size() && texts_[current_].has_ended) {
    if (!style_.json) texts_[current_].waiting += '\n';
    RETURN_IF_ERROR(Write(current_));
    ++current_;
  }
  // Shows what the next text contains so far.
  return style_.stream && current_ < texts_.size() ? Write(current_) : absl::OkStatus();
}

absl::Status SampleOutput::Write(size_t prompt) {
  Text& text = texts_[prompt];
  if (text.waiting.empty()) return absl::OkStatus();
  std::string shown = style_.is_terminal && !style_.json ? EscapedForTerminal(text.waiting) : text.waiting;
  if (style_.headings && !std::exchange(text.has_heading, true)) shown = absl::StrCat(Heading(prompt), shown);
  text.waiting.clear();
  return WriteToOutput(shown);
}

std::string SampleOutput::Heading(size_t prompt) const {
  const Position& position = prompts_[prompt].position;
  return absl::StrCat(prompt == 0 ? "" : "\n", "==> ", EscapeText(position.file), ":", position.line, " <==\n");
}

std::string SampleOutput::Json(size_t prompt, TextEnd end) const {
  const auto decode = [this](const std::vector<int64_t>& tokens) {
    return model_.tokenizer->Decode(std::vector<int32_t>(tokens.begin(), tokens.end()), /*skip_special=*/true);
  };
  const std::vector<int64_t>& generated = texts_[prompt].generated;
  std::vector<int64_t> all = tokens_[prompt];
  all.insert(all.end(), generated.begin(), generated.end());
  if (end == TextEnd::kEndToken && model_.hides_ends) all.pop_back();
  nlohmann::ordered_json json = {{"event", "sample"}};
  json[model_.step.has_value() ? "checkpoint" : "model"] = model_.path;
  if (model_.step.has_value()) json["step"] = *model_.step;
  if (prompts_[prompt].position.line > 0) {
    json["file"] = prompts_[prompt].position.file;
    json["line"] = prompts_[prompt].position.line;
  }
  json["prompt"] = prompts_[prompt].text;
  json["text"] = decode(all);
  json["prompt_tokens"] = tokens_[prompt].size();
  json["generated_tokens"] = generated;
  json["end"] = EndName(end);
  json["seconds"] = absl::ToDoubleSeconds(absl::Now() - began_);
  // With byte tokens the text often ends within a character, which is shown as U+FFFD.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace trainyard
