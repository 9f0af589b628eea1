// trainctl tokenize: counts the tokens of files, or shows how a text is split. It needs no coordinator.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/byte_progress.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "common/files.h"
#include "common/limits.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "tokenizers/open_tokenizer.h"

namespace trainyard::client {
namespace {

using OrderedJson = nlohmann::ordered_json;

// A text is encoded in parts of about this size, where the tokenizer allows cuts, so that progress is seen.
constexpr size_t kPartBytes = 1 << 20;
constexpr size_t kMaxShownBytes = 64 << 10;

struct TokenizeOptions {
  std::string tokenizer = "bytes";
  std::vector<std::string> files;
  bool show = false;
  bool json = false;
};

struct FileTokens {
  std::string file;
  uint64_t bytes = 0;
  uint64_t tokens = 0;
  std::vector<int32_t> ids;  // kept to be shown only
};

double BytesPerToken(const FileTokens& counted) {
  return counted.tokens == 0 ? 0 : static_cast<double>(counted.bytes) / static_cast<double>(counted.tokens);
}

absl::StatusOr<FileTokens> Count(const Tokenizer& tokenizer, const std::string& file, bool keep_ids) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(file, limits::kTokenizerTextBytes));
  if (keep_ids && text.size() > kMaxShownBytes) {
    return absl::InvalidArgumentError(absl::StrCat(file, " has ", text.size(), " bytes: --show shows at most ",
                                                   kMaxShownBytes, "; cut a part out of it"));
  }
  ByteProgress progress(stderr, absl::StrCat("tokenize ", file), text.size());
  FileTokens counted{.file = file, .bytes = text.size(), .tokens = 0, .ids = {}};
  for (size_t begin = 0; begin < text.size();) {
    const size_t from = std::min(begin + kPartBytes, text.size());
    const size_t end = from < text.size() ? tokenizer.NextSafeCut(text, from) : text.size();
    const absl::string_view part = absl::string_view(text).substr(begin, end - begin);
    std::vector<int32_t> ids;
    RETURN_IF_ERROR(tokenizer.Append(part, {.special_tokens = false, .continues = begin > 0}, ids))
        << "in " << file << ", in the part that begins at byte " << begin;
    counted.tokens += ids.size();
    if (keep_ids) counted.ids.insert(counted.ids.end(), ids.begin(), ids.end());
    progress.Add(end - begin);
    begin = end;
  }
  return counted;
}

OrderedJson ToJson(const Tokenizer& tokenizer, const FileTokens& counted, bool show) {
  OrderedJson json = {{"file", counted.file},
                      {"bytes", counted.bytes},
                      {"tokens", counted.tokens},
                      {"bytes_per_token", BytesPerToken(counted)}};
  if (!show) return json;
  json["ids"] = counted.ids;
  json["pieces"] = OrderedJson::array();
  for (const int32_t id : counted.ids) json["pieces"].push_back(tokenizer.TokenOf(id));
  return json;
}

void PrintTokens(const Tokenizer& tokenizer, const FileTokens& counted, bool show) {
  Print(absl::StrFormat("%s: %s of %s, %.2f bytes per token\n", counted.file, Plural(counted.tokens, "token"),
                        Plural(counted.bytes, "byte"), BytesPerToken(counted)));
  if (!show) return;
  for (const int32_t id : counted.ids) Print(absl::StrFormat("%8d  %s\n", id, tokenizer.TokenOf(id)));
}

absl::Status Tokenize(const TokenizeOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, OpenTokenizer(options.tokenizer));
  OrderedJson files = OrderedJson::array();
  FileTokens total{.file = "all files", .bytes = 0, .tokens = 0, .ids = {}};
  for (const std::string& file : options.files) {
    ASSIGN_OR_RETURN(const FileTokens counted, Count(*tokenizer, file, options.show));
    total.bytes += counted.bytes;
    total.tokens += counted.tokens;
    if (options.json) {
      files.push_back(ToJson(*tokenizer, counted, options.show));
    } else {
      PrintTokens(*tokenizer, counted, options.show);
    }
  }
  if (options.json) {
    const OrderedJson json = {{"tokenizer",
                               {{"path", options.tokenizer},
                                {"kind", std::string(tokenizer->kind())},
                                {"vocabulary", tokenizer->vocabulary()},
                                {"hash", tokenizer->hash()}}},
                              {"files", files},
                              {"bytes", total.bytes},
                              {"tokens", total.tokens},
                              {"bytes_per_token", BytesPerToken(total)}};
    PrintJson(json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
  } else if (options.files.size() > 1) {
    PrintTokens(*tokenizer, total, false);
  }
  return OutputStatus();
}

}  // namespace

void AddTokenize(CLI::App& app, const Globals&, Chosen* chosen) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* verb = app.add_subcommand("tokenize", "Count the tokens of text files, or show how a text is split");
  verb->add_option("files", options->files, "Text files, in UTF-8 unless the tokenizer is that of bytes")->required();
  verb->add_option("--tokenizer", options->tokenizer,
                   "tokenizer.json or tokenizer.model, or a folder with one; bytes: one token per byte")
      ->capture_default_str();
  verb->add_flag("--show", options->show, "Show every token: its id, and its text as the tokenizer's file has it");
  AddJson(*verb, &options->json, "One JSON object");
  verb->footer(
      "Examples:\n"
      "  trainctl tokenize --tokenizer gpt2/ corpus.txt\n"
      "  echo 'Hello, world' > hello.txt && trainctl tokenize --tokenizer gpt2/tokenizer.json --show hello.txt");
  verb->callback(
      [options, chosen] { *chosen = [options] { return ReportStatus(Tokenize(*options), options->json); }; });
}

}  // namespace trainyard::client
