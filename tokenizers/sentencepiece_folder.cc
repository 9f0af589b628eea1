#include "tokenizers/sentencepiece_folder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/hash.h"
#include "common/limits.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "tokenizers/json_part.h"

namespace trainyard {
namespace {

using Type = SentencePieceModel::Type;
using Problems = std::vector<std::string>;

constexpr size_t kProblemsInFolder = 20;

// Adds a problem for each property of the model that makes transformers refuse to convert it or change its ids.
void CheckModel(const SentencePieceModel& model, Problems& problems) {
  const auto expect = [&problems](bool is_so, const char* what) {
    if (!is_so) problems.push_back(absl::StrCat("the LlamaTokenizer of transformers expects a model ", what));
  };
  expect(model.kind == SentencePieceModel::Kind::kBpe, "of the kind BPE");
  expect(model.byte_fallback, "with byte fallback");
  expect(!model.has_characters, "that replaces no characters (normalization: identity)");
  expect(model.adds_prefix, "that adds a space before a text");
  expect(!model.removes_spaces && model.escapes_spaces && !model.space_is_suffix, "that keeps all spaces");
  expect(std::none_of(model.pieces.begin(), model.pieces.end(),
                      [](const SentencePieceModel::Piece& piece) { return piece.type == Type::kUnused; }),
         "without unused pieces");
}

// Adds the tokens that are searched for in a text: those of the configuration, and the control, unknown and
// user-defined pieces of the model.
void AddTokens(const SentencePieceModel& model, const BpeSurroundings& around, LlamaSettings& settings,
               Problems& problems) {
  absl::flat_hash_map<absl::string_view, int32_t> known;
  for (const AddedToken& token : around.added) {
    const auto id = static_cast<size_t>(token.id);
    if (token.id < 0 || id > model.pieces.size() + limits::kAddedTokens) {
      problems.push_back(absl::StrCat("added_tokens_decoder: the id ", token.id, " of '", token.content,
                                      "' is negative or too large"));
    } else if (id < model.pieces.size() && model.pieces[id].text != token.content) {
      problems.push_back(absl::StrCat("added_tokens_decoder: '", token.content, "' has the id ", token.id,
                                      ", which is that of '", model.pieces[id].text, "' in the model"));
    } else if (known.emplace(token.content, token.id).second) {
      settings.added.push_back(token);
    }
  }
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model.pieces[id];
    const bool is_special = piece.type == Type::kControl || piece.type == Type::kUnknown;
    if ((!is_special && piece.type != Type::kUserDefined) || known.contains(piece.text)) continue;
    settings.added.push_back({.content = piece.text, .id = static_cast<int32_t>(id), .special = is_special});
  }
}

int32_t IdOfName(const std::string& name, const char* key, const SentencePieceModel& model,
                 const LlamaSettings& settings, Problems& problems) {
  if (name.empty()) return -1;
  for (const AddedToken& token : settings.added) {
    if (token.content == name) return token.id;
  }
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    if (model.pieces[id].text == name) return static_cast<int32_t>(id);
  }
  problems.push_back(absl::StrCat(key, ": '", name, "' is neither a piece of the model nor in added_tokens_decoder"));
  return -1;
}

void ReadSpecial(const SentencePieceModel& model, const BpeSurroundings& around, const JsonPart& config,
                 LlamaSettings& settings, Problems& problems) {
  // LlamaTokenizer uses these names if the file sets none.
  const auto name = [](const std::string& configured, const char* otherwise) {
    return configured.empty() ? std::string(otherwise) : configured;
  };
  const auto id_of = [&](const std::string& token, const char* key) {
    return IdOfName(token, key, model, settings, problems);
  };
  settings.special = {.begin = id_of(name(around.begin, "<s>"), "bos_token"),
                      .end = id_of(name(around.end, "</s>"), "eos_token"),
                      .padding = id_of(around.padding, "pad_token"),
                      .unknown = id_of(name(around.unknown, "<unk>"), "unk_token")};
  for (AddedToken& token : settings.added) {
    const SpecialIds& ids = settings.special;
    token.special |= token.id == ids.begin || token.id == ids.end || token.id == ids.padding || token.id == ids.unknown;
  }
  if (config.Bool("add_bos_token", false)) settings.before.push_back(settings.special.begin);
  if (config.Bool("add_eos_token", false)) settings.after.push_back(settings.special.end);
}

LlamaSettings ReadLlamaSettings(const SentencePieceModel& model, const nlohmann::json& json,
                                const BpeSurroundings& around, Problems& problems) {
  LlamaSettings settings;
  const JsonPart config(json, "", problems);
  const std::string type = config.String("tokenizer_class");
  if (type != "LlamaTokenizer" && type != "LlamaTokenizerFast") {
    // Other classes shift or rename ids.
    problems.push_back(absl::StrCat("tokenizer_class: expected LlamaTokenizer, found ",
                                    type.empty() ? "none" : absl::StrCat("'", type, "'")));
    return settings;
  }
  CheckModel(model, problems);
  AddTokens(model, around, settings, problems);
  ReadSpecial(model, around, config, settings, problems);
  if (!config.Bool("add_prefix_space", true)) {
    settings.prefix = LlamaSettings::Prefix::kNever;
  } else if (config.Bool("legacy", false)) {
    settings.prefix = LlamaSettings::Prefix::kAlways;
  }
  return settings;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> OpenSentencePieceModel(absl::string_view file,
                                                                               const std::string& name,
                                                                               const nlohmann::json& config,
                                                                               const BpeSurroundings& around) {
  ASSIGN_OR_RETURN(SentencePieceModel model, ReadSentencePieceModel(file, name));
  if (config.is_null()) {
    return SentencePieceTokenizer::Make(file, name, std::move(model), HashHex(file), std::nullopt);
  }
  Problems problems;
  LlamaSettings settings = ReadLlamaSettings(model, config, around, problems);
  if (!problems.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name,
        " with the tokenizer_config.json next to it: ", JoinFirst(problems, kProblemsInFolder, "; ", "; ", "problem"),
        "; let transformers write a tokenizer.json: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"));
  }
  // The hash covers everything in the configuration that affects the tokens of a text.
  std::string described = absl::StrCat(HashHex(file), static_cast<int>(settings.prefix));
  for (const AddedToken& token : settings.added) {
    absl::StrAppend(&described, "\n", token.id, " ", token.single_word, token.lstrip, token.rstrip, token.normalized,
                    token.special, " ", token.content);
  }
  // `before` holds at most the token `begin`, and `after` at most `end`. The ids of both are appended below, so the
  // number of tokens suffices here.
  for (const auto* ids : {&settings.before, &settings.after}) absl::StrAppend(&described, "\n", ids->size());
  absl::StrAppend(&described, "\n", settings.special.begin, " ", settings.special.end);
  return SentencePieceTokenizer::Make(file, name, std::move(model), HashHex(described), std::move(settings));
}

}  // namespace trainyard
