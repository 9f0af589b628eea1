#include "worker/data/chat_records.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/escape.h"
#include "common/status_macros.h"
#include "templates/budget.h"
#include "tokenizers/utf8.h"

namespace trainyard {
namespace {

using Span = std::pair<size_t, size_t>;  // bytes of the text

constexpr char kAssistant[] = "assistant";
constexpr size_t kDifferenceShown = 40;
// If a reply begins or ends within a token, the ends of the token are searched for among this many characters on each
// side.
constexpr int kTokenCharactersMax = 64;
// Limits of one conversation, so that a hostile line fails within seconds. Without {% generation %} a conversation is
// rendered twice for each reply.
constexpr size_t kMessagesMax = 4'096;
constexpr size_t kRenderingStepsMax = templates::Budget::kStepsMax;
constexpr size_t kSearchBytesMax = size_t{64} << 20;  // tokenized to find the tokens where replies begin and end

absl::Status NotABeginning(absl::string_view part, absl::string_view whole, absl::string_view what) {
  const size_t same =
      static_cast<size_t>(std::mismatch(part.begin(), part.end(), whole.begin(), whole.end()).first - part.begin());
  const auto shown = [same](absl::string_view text) {
    return EscapeText(text.substr(std::min(same, text.size()), kDifferenceShown));
  };
  return absl::InvalidArgumentError(
      absl::StrCat("the text of ", what, " is not the beginning of the text of the conversation: '", shown(part),
                   "' instead of '", shown(whole), "' after ", same,
                   " bytes. The template changes earlier messages, so it is unknown which tokens are a "
                   "reply; mark the replies by {% generation %} and {% endgeneration %} in chat_template.jinja"));
}

// Finds the replies of a template without {% generation %}: each reply is the text that its message adds to the text of
// the messages before it, which ends with the prompt for a reply.
absl::StatusOr<std::vector<Span>> RepliesByPrefix(const Conversation& conversation, const ChatTemplate& chat,
                                                  absl::string_view whole) {
  if (conversation.messages.size() > kMessagesMax) {
    return absl::InvalidArgumentError(absl::StrCat("has ", conversation.messages.size(), " messages; at most ",
                                                   kMessagesMax,
                                                   " are accepted if the template does not mark the "
                                                   "replies by {% generation %} and {% endgeneration %}"));
  }
  std::vector<Span> replies;
  size_t steps = 0;
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const templates::Value* role = conversation.messages[i].dict().Find("role");
    if (role == nullptr || role->text() != kAssistant) continue;
    ASSIGN_OR_RETURN(const templates::Rendered before, chat.Render(conversation, i, /*prompts=*/true),
                     << "while rendering the " << i << " messages before a reply");
    ASSIGN_OR_RETURN(const templates::Rendered after, chat.Render(conversation, i + 1, /*prompts=*/false),
                     << "while rendering the first " << i + 1 << " messages");
    steps += before.steps + after.steps;
    if (steps > kRenderingStepsMax) {
      return absl::InvalidArgumentError(absl::StrCat("has ", conversation.messages.size(),
                                                     " messages, which are rendered again for each reply, in "
                                                     "more than ",
                                                     kRenderingStepsMax,
                                                     " steps; shorten the conversation, or mark the replies by "
                                                     "{% generation %} and {% endgeneration %} in the template"));
    }
    if (!absl::StartsWith(whole, before.text)) {
      return NotABeginning(before.text, whole,
                           absl::StrCat("the first ", i, " messages, with the prompt for a reply,"));
    }
    if (!absl::StartsWith(whole, after.text)) {
      return NotABeginning(after.text, whole, absl::StrCat("the first ", i + 1, " messages"));
    }
    if (before.text.size() < after.text.size()) replies.emplace_back(before.text.size(), after.text.size());
  }
  return replies;
}

// Finds the tokens of parts of a text. A position is between two tokens if the text before it, tokenized alone, has the
// tokens with which the whole text begins.
class TokenPositions {
 public:
  TokenPositions(absl::string_view text, const std::vector<int64_t>& tokens, const TextEncoder& encoder)
      : text_(text), tokens_(tokens), encoder_(encoder) {}

  // The number of tokens before the token with the byte at `at`.
  absl::StatusOr<size_t> FirstOf(size_t at) { return CountUpTo(at, /*counts_divided=*/false); }
  // The number of tokens up to the one with the byte before `at`.
  absl::StatusOr<size_t> EndOf(size_t at) { return CountUpTo(at, /*counts_divided=*/true); }

 private:
  // The number of tokens before `at`. `counts_divided`: whether a token that has bytes on both sides of `at` counts.
  absl::StatusOr<size_t> CountUpTo(size_t at, bool counts_divided) {
    ASSIGN_OR_RETURN(const std::optional<size_t> exact, Before(at));
    if (exact) return *exact;
    size_t low = at, high = at;
    std::optional<size_t> before, after;
    for (int i = 0; !before && low > 0 && i < kTokenCharactersMax; ++i) {
      low = utf8::Previous(text_, low);
      ASSIGN_OR_RETURN(before, Before(low));
    }
    for (int i = 0; !after && high < text_.size() && i < kTokenCharactersMax; ++i) {
      utf8::Next(text_, high);
      ASSIGN_OR_RETURN(after, Before(high));
    }
    if (low == 0) before = 0;
    // Exactly one token is between the two positions that were found, and `at` is inside of it.
    if (before && after && *before + 1 == *after) return counts_divided ? *after : *before;
    return absl::InvalidArgumentError(absl::StrCat("it is unknown which token has byte ", at,
                                                   " of the text, where a reply begins or ends: '",
                                                   EscapeText(text_.substr(at, kDifferenceShown)), "'"));
  }

  // The number of tokens before `at`; nullopt: no token ends there.
  absl::StatusOr<std::optional<size_t>> Before(size_t at) {
    if (at == text_.size()) return std::optional<size_t>(tokens_.size());
    // Most positions are after the last known one; then only the text between the two is tokenized.
    for (const auto& [begin, count] : {known_, std::pair<size_t, size_t>(0, 0)}) {
      if (begin > at) continue;
      searched_ += at - begin;
      if (searched_ > kSearchBytesMax) {
        return absl::InvalidArgumentError(
            "its replies begin or end inside of tokens so often that it takes too long "
            "to find these tokens; split the conversation into several");
      }
      std::vector<int64_t> part;
      RETURN_IF_ERROR(encoder_.AppendPlain(text_.substr(begin, at - begin), /*begins=*/begin == 0, part));
      const bool fits = part.size() <= tokens_.size() - count &&
                        std::equal(part.begin(), part.end(), tokens_.begin() + static_cast<ptrdiff_t>(count));
      if (!fits) continue;
      known_ = {at, count + part.size()};
      return std::optional<size_t>(known_.second);
    }
    return std::optional<size_t>();
  }

  const absl::string_view text_;
  const std::vector<int64_t>& tokens_;
  const TextEncoder& encoder_;
  size_t searched_ = 0;                       // bytes
  std::pair<size_t, size_t> known_ = {0, 0};  // a position, and the number of tokens before it
};

}  // namespace

absl::StatusOr<ChatTokens> TokenizeChat(const nlohmann::ordered_json& record, const std::string& field,
                                        const ChatTemplate& chat, const TextEncoder& encoder) {
  const auto messages = record.find(field), tools = record.find("tools");
  if (messages == record.end()) return absl::InvalidArgumentError(absl::StrCat("has no field '", field, "'"));
  ASSIGN_OR_RETURN(const Conversation conversation,
                   ReadConversation(*messages, tools == record.end() ? nullptr : &*tools),
                   << "in field '" << field << "'");
  ASSIGN_OR_RETURN(templates::Rendered whole,
                   chat.Render(conversation, conversation.messages.size(), /*prompts=*/false));
  std::vector<Span> replies = std::move(whole.generated);
  if (!chat.has_generation()) {
    ASSIGN_OR_RETURN(replies, RepliesByPrefix(conversation, chat, whole.text));
  }
  ChatTokens made{.text = std::move(whole.text)};
  if (!made.text.empty()) {
    RETURN_IF_ERROR(encoder.AppendPlain(made.text, /*begins=*/true, made.tokens));
  }
  made.is_reply.resize(made.tokens.size());
  TokenPositions positions(made.text, made.tokens, encoder);
  for (const auto& [begin, end] : replies) {
    if (begin == end) continue;
    ASSIGN_OR_RETURN(const size_t first, positions.FirstOf(begin));
    ASSIGN_OR_RETURN(const size_t last, positions.EndOf(end));
    for (size_t i = first; i < last; ++i) made.is_reply[i] = true;
  }
  return made;
}

absl::string_view ChatExportAdvice() {
  return R"(Or write the tokens:
  import json, sys, transformers
  tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
  for line in sys.stdin:
    chat = tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=True, return_dict=True,
                                         return_assistant_tokens_mask=True)
    labels = [i if is_reply else -100 for i, is_reply in zip(chat["input_ids"], chat["assistant_masks"])]
    print(json.dumps({"input_ids": chat["input_ids"], "labels": labels}))
The script marks the replies of templates with {% generation %}; with another template, set the labels yourself)";
}

}  // namespace trainyard
