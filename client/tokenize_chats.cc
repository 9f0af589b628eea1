#include "client/tokenize_chats.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/output.h"
#include "common/escape.h"
#include "common/files.h"
#include "common/limits.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "tokenizers/open_tokenizer.h"
#include "worker/data/records.h"

namespace trainyard::client {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kTemplateBytesMax = 64 << 10;  // as train.data.chat_template
constexpr size_t kShownTokensMax = 64 << 10;
constexpr size_t kProblemsShown = 20;

struct Counts {
  uint64_t conversations = 0, tokens = 0, tokens_with_loss = 0;

  void Add(const Counts& other) {
    conversations += other.conversations;
    tokens += other.tokens;
    tokens_with_loss += other.tokens_with_loss;
  }
};

struct ShownChat {
  size_t line = 0;
  ChatTokens chat;
};

struct ChatFile {
  std::string file;
  Counts counts;
  std::vector<ShownChat> shown;  // empty unless they are to be shown
};

class ChatReader {
 public:
  ChatReader(const ChatOptions& options, const Tokenizer& tokenizer, const TextEncoder& encoder, RecordRules rules)
      : options_(options), tokenizer_(tokenizer), encoder_(encoder), rules_(std::move(rules)) {}

  absl::StatusOr<ChatFile> Read(const std::string& file) {
    ASSIGN_OR_RETURN(const std::string text, ReadFile(file, limits::kTokenizerTextBytes));
    ChatFile read{.file = file, .counts = {}, .shown = {}};
    size_t number = 0, shown_tokens = 0;
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      ++number;
      if (line.find_first_not_of(" \t\r") == absl::string_view::npos) continue;
      absl::StatusOr<ChatTokens> chat = Tokenize(line);
      if (!chat.ok()) {
        ++problem_count_;
        if (problems_.size() < kProblemsShown) {
          problems_.push_back(absl::StrCat(file, ":", number, ": ", chat.status().message()));
        }
        continue;
      }
      const auto with_loss = std::count(chat->is_reply.begin(), chat->is_reply.end(), true);
      read.counts.Add(
          {.conversations = 1, .tokens = chat->tokens.size(), .tokens_with_loss = static_cast<uint64_t>(with_loss)});
      if (!options_.show) continue;
      shown_tokens += chat->tokens.size();
      if (shown_tokens > kShownTokensMax) {
        return absl::InvalidArgumentError(absl::StrCat(file, ":", number, ": --show shows at most ", kShownTokensMax,
                                                       " tokens; cut some lines out of the file"));
      }
      read.shown.push_back({.line = number, .chat = *std::move(chat)});
    }
    return read;
  }

  // All lines that cannot be used.
  absl::Status Problems() const {
    if (problems_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(Plural(problem_count_, "line"), " cannot be used:\n",
                                                   absl::StrJoin(problems_, "\n"),
                                                   AndMore(problems_.size(), problem_count_, "\n", "line")));
  }

  OrderedJson ToJson(const Counts& counts) const {
    return {{"conversations", counts.conversations},
            {"tokens", counts.tokens},
            {"tokens_with_loss", counts.tokens_with_loss}};
  }

  OrderedJson ToJson(const ChatFile& read) const {
    OrderedJson json = {{"file", read.file}};
    json.update(ToJson(read.counts));
    if (!options_.show) return json;
    json["chats"] = OrderedJson::array();
    for (const ShownChat& shown : read.shown) {
      const ChatTokens& chat = shown.chat;
      OrderedJson pieces = OrderedJson::array();
      for (const int64_t id : chat.tokens) pieces.push_back(tokenizer_.TokenOf(static_cast<int32_t>(id)));
      json["chats"].push_back({{"line", shown.line},
                               {"text", chat.text},
                               {"ids", chat.tokens},
                               {"pieces", std::move(pieces)},
                               {"loss", std::vector<int>(chat.is_reply.begin(), chat.is_reply.end())}});
    }
    return json;
  }

  void PrintCounts(const std::string& name, const Counts& counts) const {
    Print(absl::StrFormat("%s: %s of %s; tokens that count for the loss: %d\n", name, Plural(counts.tokens, "token"),
                          Plural(counts.conversations, "conversation"), counts.tokens_with_loss));
  }

  void PrintChats(const ChatFile& read) const {
    for (const ShownChat& shown : read.shown) {
      Print(absl::StrCat("\n", read.file, ":", shown.line, ":\n", shown.chat.text, "\n\n"));
      for (size_t i = 0; i < shown.chat.tokens.size(); ++i) {
        const auto id = static_cast<int32_t>(shown.chat.tokens[i]);
        const std::string token = EscapeText(tokenizer_.TokenOf(id));  // on one line
        Print(absl::StrFormat("%c %8d  %s\n", shown.chat.is_reply[i] ? '*' : ' ', id, token));
      }
    }
  }

 private:
  absl::StatusOr<ChatTokens> Tokenize(absl::string_view line) const {
    if (const size_t at = FindInvalidUtf8(line); at != absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat("is not valid UTF-8 at byte ", at, " of the line"));
    }
    return TokenizeChatLine(line, rules_, encoder_);
  }

  const ChatOptions& options_;
  const Tokenizer& tokenizer_;
  const TextEncoder& encoder_;
  const RecordRules rules_;
  std::vector<std::string> problems_;  // the first ones
  size_t problem_count_ = 0;
};

}  // namespace

absl::Status TokenizeChats(const ChatOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, OpenTokenizer(options.tokenizer));
  ASSIGN_OR_RETURN(const std::unique_ptr<TextEncoder> encoder, OpenTextEncoder(options.tokenizer));
  std::string replacement;
  if (!options.template_file.empty()) {
    ASSIGN_OR_RETURN(replacement, ReadFile(options.template_file, kTemplateBytesMax));
    if (replacement.empty()) return absl::InvalidArgumentError(absl::StrCat(options.template_file, " is empty"));
  }
  RecordRules rules{.fields = {.messages = options.messages}, .vocabulary = tokenizer->vocabulary()};
  absl::StatusOr<std::unique_ptr<ChatTemplate>> chat = ChatTemplate::Open(options.tokenizer, replacement);
  if (!chat.ok()) {
    const std::string& named = replacement.empty() ? options.tokenizer : options.template_file;
    return absl::Status(chat.status().code(),
                        absl::StrCat("the chat template of ", named, " cannot be used: ", chat.status().message()));
  }
  rules.chat = *std::move(chat);
  ChatReader reader(options, *tokenizer, *encoder, std::move(rules));
  std::vector<ChatFile> files;
  Counts total;
  for (const std::string& file : options.files) {
    ASSIGN_OR_RETURN(ChatFile read, reader.Read(file));
    total.Add(read.counts);
    files.push_back(std::move(read));
  }
  RETURN_IF_ERROR(reader.Problems());
  if (options.json) {
    OrderedJson json = {{"tokenizer", {{"path", options.tokenizer}, {"hash", tokenizer->hash()}}},
                        {"files", OrderedJson::array()}};
    for (const ChatFile& read : files) json["files"].push_back(reader.ToJson(read));
    json.update(reader.ToJson(total));
    PrintJson(json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
    return OutputStatus();
  }
  for (const ChatFile& read : files) {
    reader.PrintCounts(read.file, read.counts);
    reader.PrintChats(read);
  }
  if (files.size() > 1) reader.PrintCounts("all files", total);
  return OutputStatus();
}

}  // namespace trainyard::client
