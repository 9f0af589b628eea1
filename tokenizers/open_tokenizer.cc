#include "tokenizers/open_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/json_nesting.h"
#include "common/limits.h"
#include "common/name_exists.h"
#include "common/status_macros.h"
#include "tokenizers/bpe_file.h"
#include "tokenizers/byte_tokenizer.h"
#include "tokenizers/sentencepiece_folder.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kMaxConfigNesting = 64;

// The text of a special token: a text, or an object with its content. Empty: it is neither.
std::string ContentOf(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_object()) return "";
  const auto content = value.find("content");
  return content != value.end() && content->is_string() ? content->get<std::string>() : "";
}

std::string SpecialName(const Json& config, const char* key) {
  const auto found = config.find(key);
  return found == config.end() ? "" : ContentOf(*found);
}

bool Flag(const Json& json, const char* key, bool otherwise) {
  const auto found = json.find(key);
  return found != json.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

// Adds the token that `value` describes: a text, or an object with its content and how it is found.
void AddToken(const Json& value, int32_t id, bool special, std::vector<AddedToken>& tokens) {
  AddedToken token = {.content = ContentOf(value),
                      .id = id,
                      .single_word = Flag(value, "single_word", false),
                      .lstrip = Flag(value, "lstrip", false),
                      .rstrip = Flag(value, "rstrip", false),
                      .normalized = Flag(value, "normalized", !special),
                      .special = special};
  const bool has_room = tokens.size() < limits::kAddedTokens && token.content.size() <= limits::kAddedTokenBytes;
  if (!token.content.empty() && has_room) tokens.push_back(std::move(token));
}

// The special tokens that a configuration names: bos_token and so on, and lists of further ones.
std::vector<AddedToken> NamedTokens(const Json& config) {
  std::vector<AddedToken> named;
  for (const auto& [key, value] : config.items()) {
    if (absl::EndsWith(key, "_token")) AddToken(value, /*id=*/0, /*special=*/true, named);
    if (key != "additional_special_tokens" && key != "extra_special_tokens") continue;
    if (!value.is_array() && !value.is_object()) continue;
    for (const Json& element : value) AddToken(element, /*id=*/0, /*special=*/true, named);
  }
  return named;
}

// Tokens that the configuration adds to those of tokenizer.json, by their ids.
std::vector<AddedToken> ConfiguredTokens(const Json& config) {
  std::vector<AddedToken> tokens;
  const auto list = config.find("added_tokens_decoder");
  if (list == config.end() || !list->is_object() || list->size() > limits::kAddedTokens) return tokens;
  for (const auto& [key, json] : list->items()) {
    int32_t id = 0;
    if (json.is_object() && absl::SimpleAtoi(key, &id)) AddToken(json, id, Flag(json, "special", false), tokens);
  }
  std::sort(tokens.begin(), tokens.end(), [](const auto& left, const auto& right) { return left.id < right.id; });
  return tokens;
}

// The JSON object in a file; null if there is no file. A file that cannot be used is an error: without its special
// tokens, a text would have other tokens.
absl::StatusOr<Json> ReadObject(const fs::path& path) {
  if (!NameExists(path)) return Json(nullptr);
  ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path, limits::kTokenizerFileBytes));
  Json config =
      JsonNestsDeeperThan(text, kMaxConfigNesting) ? Json() : Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (config.is_object()) return config;
  return absl::InvalidArgumentError(absl::StrCat(path.string(), " is not a JSON object",
                                                 text.empty() ? " but an empty file" : "",
                                                 "; copy it again from its source, or remove it"));
}

// What tokenizer_config.json and, in older folders, special_tokens_map.json say. Both are optional.
absl::StatusOr<BpeSurroundings> ReadSurroundings(const fs::path& folder) {
  BpeSurroundings around;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    ASSIGN_OR_RETURN(const Json config, ReadObject(folder / name));
    if (config.is_null()) continue;
    const auto fill = [&config](const char* key, std::string& value) {
      if (value.empty()) value = SpecialName(config, key);
    };
    fill("bos_token", around.begin);
    fill("eos_token", around.end);
    fill("pad_token", around.padding);
    fill("unk_token", around.unknown);
    if (!around.added.empty()) continue;  // as in transformers, the list of the first file is complete
    around.added = ConfiguredTokens(config);
    const std::vector<AddedToken> named = NamedTokens(config);
    around.named.insert(around.named.end(), named.begin(), named.end());
  }
  return around;
}

absl::StatusOr<std::string> FindIn(const std::string& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    // A link whose target is missing is found too, so that opening it reports the error.
    if (NameExists(fs::path(folder) / name)) return (fs::path(folder) / name).string();
  }
  std::error_code ignored;
  const bool is_old = fs::exists(fs::path(folder) / "vocab.json", ignored);
  return absl::NotFoundError(absl::StrCat(
      folder, " has neither tokenizer.json nor tokenizer.model",
      is_old ? absl::StrCat(" but a vocab.json; let transformers write tokenizer.json: AutoTokenizer.from_pretrained('",
                            folder, "').save_pretrained('", folder, "')")
             : "; give the path of a tokenizer, or of a folder with one"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& path) {
  if (path == "bytes") return std::make_unique<ByteTokenizer>();
  std::error_code error;
  std::string file = path;
  if (fs::is_directory(path, error)) {
    ASSIGN_OR_RETURN(file, FindIn(path));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(file, limits::kTokenizerFileBytes));
  const fs::path folder = fs::path(file).parent_path();
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(file, " is empty: copy it again from its source"));
  ASSIGN_OR_RETURN(const BpeSurroundings around, ReadSurroundings(folder));
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') return ReadBpeTokenizer(text, file, around);
  ASSIGN_OR_RETURN(const Json config, ReadObject(folder / "tokenizer_config.json"));
  return OpenSentencePieceModel(text, file, config, around);
}

}  // namespace trainyard
