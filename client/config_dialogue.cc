#include "client/config_dialogue.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/text.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

constexpr size_t kHelpColumns = 100;
constexpr size_t kSuggestionBytes = 200;
constexpr size_t kErrorBytes = 2000;

class Dialogue {
 public:
  Dialogue(const ConfigInput& input, const ConfigFacts& facts, const LineReader& read_line, const LineShower& show)
      : input_(input), facts_(facts), read_line_(read_line), show_(show) {}

  absl::StatusOr<Draft> Ask() {
    draft_ = MakeDraft(input_, facts_, answers_);
    if (draft_.questions.empty()) return Finish();
    ShowUnowned();
    show_("Enter accepts the value in brackets, ? explains the question, < goes back, Ctrl-C ends.");
    while (const AskedQuestion* question = Next()) RETURN_IF_ERROR(AskOne(*question));
    return Finish();
  }

 private:
  absl::StatusOr<Draft> Finish() {
    RETURN_IF_ERROR(draft_.problems.ToStatus());
    return std::move(draft_);
  }

  // The first question without an accepted answer.
  const AskedQuestion* Next() const {
    for (const AskedQuestion& question : draft_.questions) {
      if (passed_.count(question.id) == 0) return &question;
    }
    return nullptr;
  }

  // Shows errors that belong to no question, because the command line gives their keys. Later answers may still resolve
  // them.
  void ShowUnowned() const {
    for (const Problem& problem : draft_.problems.Errors()) {
      if (OwnerOf(draft_, problem.path).empty()) show_(ErrorLine(problem));
    }
  }

  static std::string ErrorLine(const Problem& problem) {
    return absl::StrCat("  ", Printable(problem.Message(), kErrorBytes));
  }

  absl::Status AskOne(const AskedQuestion& question) {
    const auto before = answers_.find(question.id);
    const std::string suggestion = before == answers_.end() ? question.suggestion : before->second;
    const std::string prompt = absl::StrCat(
        question.text, suggestion.empty() ? "" : absl::StrCat(" [", Printable(suggestion, kSuggestionBytes), "]"), " ");
    const absl::StatusOr<std::string> line = read_line_(prompt);
    if (absl::IsInvalidArgument(line.status())) {
      show_(absl::StrCat("  ", line.status().message()));
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(line.status());
    const std::string answer(absl::StripAsciiWhitespace(*line));
    if (answer == "?") {
      for (const std::string& part : WrapText(question.help, kHelpColumns)) show_(absl::StrCat("  ", part));
    } else if (answer == "<") {
      StepBack();
    } else if (answer.empty() && suggestion.empty()) {
      show_("  This question has no default; ? explains what is possible.");
    } else {
      Take(question.id, answer.empty() ? suggestion : answer);
    }
    return absl::OkStatus();
  }

  void StepBack() {
    if (order_.empty()) return show_("  This is the first question.");
    passed_.erase(order_.back());
    order_.pop_back();
  }

  // Refuses an answer that causes a problem of this question, or a problem that belongs to no question. Accepts any
  // other answer; if it causes a problem of an earlier question, returns to that question.
  void Take(const std::string id, const std::string& answer) {
    std::set<std::string> known;
    for (const Problem& problem : draft_.problems.Errors()) known.insert(problem.Message());
    const auto old = answers_.find(id);
    const bool had_answer = old != answers_.end();
    const std::string old_answer = had_answer ? old->second : "";
    answers_[id] = answer;
    Draft next = MakeDraft(input_, facts_, answers_);
    bool is_refused = false;
    std::string back_to;
    for (const Problem& problem : next.problems.Errors()) {
      const std::string owner = OwnerOf(next, problem.path);
      const bool is_own = owner == id;
      const bool is_earlier = passed_.count(owner) > 0;
      // The default of a later question may conflict with this answer, but that question will still be asked.
      const bool is_later = !owner.empty() && !is_own && !is_earlier;
      // If a problem concerns two questions, repeating the answer to one of them lets the user proceed to the other.
      const bool stays = is_own && had_answer && answer == old_answer;
      if (is_later || ((stays || owner.empty()) && known.count(problem.Message()) > 0)) continue;
      show_(ErrorLine(problem));
      if (is_earlier)
        back_to = owner;
      else
        is_refused = true;
    }
    if (is_refused) {
      if (had_answer)
        answers_[id] = old_answer;
      else
        answers_.erase(id);
      draft_ = MakeDraft(input_, facts_, answers_);
      return;
    }
    draft_ = std::move(next);
    if (passed_.insert(id).second) order_.push_back(id);
    while (!back_to.empty() && passed_.count(back_to) > 0) StepBack();
  }

  const ConfigInput& input_;
  const ConfigFacts& facts_;
  const LineReader& read_line_;
  const LineShower& show_;
  ConfigAnswers answers_;
  Draft draft_;
  std::set<std::string> passed_;    // ids of questions with an accepted answer
  std::vector<std::string> order_;  // the same, in the order of their answers
};

}  // namespace

absl::StatusOr<Draft> AskQuestions(const ConfigInput& input, const ConfigFacts& facts, const LineReader& read_line,
                                   const LineShower& show) {
  return Dialogue(input, facts, read_line, show).Ask();
}

absl::StatusOr<bool> AskYesOrNo(const std::string& question, const LineReader& read_line, const LineShower& show) {
  while (true) {
    const absl::StatusOr<std::string> line = read_line(absl::StrCat(question, " (yes or no) [no] "));
    if (!line.ok() && !absl::IsInvalidArgument(line.status())) return line.status();
    const std::string answer = line.ok() ? absl::AsciiStrToLower(absl::StripAsciiWhitespace(*line)) : "?";
    if (answer == "yes" || answer == "y") return true;
    if (answer == "no" || answer == "n" || answer.empty()) return false;
    show("  Answer yes or no.");
  }
}

}  // namespace trainyard::client
