#include "tokenizers/bpe_file.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/hash.h"
#include "common/json_nesting.h"
#include "common/limits.h"
#include "common/plural.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr char kAdvice[] =
    "encode the text with the Python library and give its ids as JSON lines, {\"input_ids\": [...]}";
constexpr int kMaxNesting = 64;
constexpr size_t kMaxProblems = 20;

void ReadVocabulary(const JsonPart& model, BpeParts& parts) {
  const JsonPart vocabulary = model.At("vocab");
  if (!vocabulary.json().is_object()) return vocabulary.Problem("expected an object {token: id}");
  parts.vocabulary.reserve(vocabulary.json().size());
  for (const auto& [token, id] : vocabulary.json().items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      return vocabulary.Problem(absl::StrCat("the id of '", token, "' is not a number from 0 to ", INT32_MAX));
    }
    parts.vocabulary.emplace_back(token, id.get<int32_t>());
  }
  if (parts.vocabulary.empty()) vocabulary.Problem("the vocabulary is empty");
}

void ReadMerges(const JsonPart& model, BpeParts& parts) {
  const JsonPart merges = model.At("merges");
  if (!merges.json().is_array()) return merges.Problem("expected a list of merges");
  parts.merges.reserve(merges.json().size());
  for (const nlohmann::json& merge : merges.json()) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      parts.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    if (absl::StartsWith(text, "#version")) continue;
    const std::vector<std::string> sides = absl::StrSplit(text, ' ');
    if (!merge.is_string() || sides.size() != 2) {
      return merges.Problem(
          absl::StrCat("merge ", parts.merges.size() + 1, ", ",
                       merge.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 100),
                       ": expected \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]"));
    }
    parts.merges.emplace_back(sides[0], sides[1]);
  }
}

BpeParts ReadModel(const JsonPart& model) {
  BpeParts parts;
  const std::string type = model.String("type", model.Has("merges") ? "BPE" : "");
  if (type != "BPE") {
    model.Unsupported("model", type, "BPE; SentencePiece as tokenizer.model");
    return parts;
  }
  if (model.Has("dropout") && model.At("dropout").json() != 0) model.At("dropout").Problem("expected null");
  parts.unknown = model.String("unk_token");
  parts.subword_prefix = model.String("continuing_subword_prefix");
  parts.word_suffix = model.String("end_of_word_suffix");
  parts.fuse_unknown = model.Bool("fuse_unk", false);
  parts.byte_fallback = model.Bool("byte_fallback", false);
  parts.ignore_merges = model.Bool("ignore_merges", false);
  ReadVocabulary(model, parts);
  ReadMerges(model, parts);
  return parts;
}

std::vector<std::pair<AddedToken, JsonPart>> ReadAdded(const JsonPart& file) {
  std::vector<std::pair<AddedToken, JsonPart>> added;
  for (const JsonPart& json : file.Elements("added_tokens")) {
    AddedToken token;
    token.content = json.String("content");
    const int64_t id = json.Int("id", -1);
    if (id < 0 || id > INT32_MAX) json.Problem("id must be a number from 0 on");
    token.id = static_cast<int32_t>(id);
    token.single_word = json.Bool("single_word", false);
    token.lstrip = json.Bool("lstrip", false);
    token.rstrip = json.Bool("rstrip", false);
    token.special = json.Bool("special", false);
    token.normalized = json.Bool("normalized", !token.special);
    if (token.content.size() > limits::kAddedTokenBytes) json.Problem("the content is longer than 1 KiB");
    if (!token.content.empty()) added.emplace_back(std::move(token), json);
  }
  if (added.size() > limits::kAddedTokens) file.At("added_tokens").Problem("the list is too long");
  return added;
}

// Gives every token the id that the Python library tokenizers gives it, whatever the file says; an id in the file that
// differs is a problem.
class AddedIds {
 public:
  explicit AddedIds(const Bpe& model) : model_(model) {}

  int32_t Next(const std::string& content) {
    const int32_t known = model_.IdOf(content);
    const auto [at, is_new] = ids_.emplace(content, known);
    if (is_new && known < 0) {
      const auto size = static_cast<int32_t>(model_.size());
      at->second = max_ >= size ? max_ + 1 : size;
    }
    max_ = std::max(max_, at->second);
    return at->second;
  }
  bool Has(const std::string& content) const { return ids_.contains(content); }

 private:
  const Bpe& model_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  int32_t max_ = -1;
};

std::vector<AddedToken> NumberAdded(const JsonPart& file, const BpeSurroundings& around, const Bpe& model) {
  std::vector<AddedToken> added;
  AddedIds ids(model);
  for (auto& [token, json] : ReadAdded(file)) {
    if (ids.Has(token.content)) continue;
    const int32_t id = ids.Next(token.content);
    if (id != token.id) {
      json.Problem(absl::StrCat("the token '", token.content, "' has the id ", token.id,
                                " in the file, but the libraries number it ", id));
    }
    added.push_back(token);
  }
  for (const AddedToken& token : around.added) {
    if (ids.Has(token.content)) continue;
    added.push_back(token);
    added.back().id = ids.Next(token.content);
  }
  return added;
}

// The special tokens of the vocabulary that other files name and that are not among `added`.
std::vector<AddedToken> NamedInVocabulary(const BpeSurroundings& around, const Bpe& model,
                                          const std::vector<AddedToken>& added) {
  absl::flat_hash_set<std::string> known;
  for (const AddedToken& token : added) known.insert(token.content);
  std::vector<AddedToken> named;
  for (const AddedToken& token : around.named) {
    const int32_t id = model.IdOf(token.content);
    if (id < 0 || !known.insert(token.content).second) continue;
    named.push_back(token);
    named.back().id = id;
  }
  return named;
}

// Adds the tokens that a post-processor puts around one text.
void ReadTemplate(const JsonPart& json, int depth, BpeTokenizerParts& parts) {
  const std::string type = json.String("type");
  std::vector<int32_t> before, after;
  if (type == "Sequence") {
    if (depth > 4) return json.Problem("sequences are nested too deeply");
    for (const JsonPart& element : json.Elements("processors")) ReadTemplate(element, depth + 1, parts);
  } else if (type == "TemplateProcessing") {
    int texts = 0;
    for (const JsonPart& element : json.Elements("single")) {
      if (element.Has("Sequence")) {
        ++texts;
        continue;
      }
      const JsonPart special = json.At("special_tokens").At(element.At("SpecialToken").String("id").c_str());
      for (const JsonPart& id : special.Elements("ids")) {
        if (!id.json().is_number_unsigned() || id.json().get<uint64_t>() > INT32_MAX) {
          id.Problem("expected an id");
          continue;
        }
        (texts == 0 ? before : after).push_back(id.json().get<int32_t>());
      }
    }
    if (texts != 1) json.At("single").Problem("expected one Sequence");
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    const auto id_of = [&json](const char* key) {
      const nlohmann::json& pair = json.At(key).json();
      if (pair.is_array() && pair.size() == 2 && pair[1].is_number_unsigned()) {
        if (const auto id = pair[1].get<uint64_t>(); id <= INT32_MAX) return static_cast<int32_t>(id);
      }
      json.At(key).Problem("expected [TOKEN, ID]");
      return 0;
    };
    before = {id_of("cls")};
    after = {id_of("sep")};
  } else if (type != "ByteLevel") {
    json.Unsupported("post-processor", type,
                     "TemplateProcessing, ByteLevel, RobertaProcessing, BertProcessing, Sequence");
  }
  parts.before.insert(parts.before.begin(), before.begin(), before.end());
  parts.after.insert(parts.after.end(), after.begin(), after.end());
}

// Refuses tokens of the template that are beyond the vocabulary: no embedding has a row for them.
void CheckTemplate(const JsonPart& json, const Bpe& model, const BpeTokenizerParts& parts) {
  int32_t last = model.max_id();
  for (const AddedToken& token : parts.added) last = std::max(last, token.id);
  for (const std::vector<int32_t>* ids : {&parts.before, &parts.after}) {
    for (const int32_t id : *ids) {
      if (id <= last) continue;
      json.Problem(
          absl::StrCat("it puts a token with the id ", id, " around a text, but the last token has the id ", last));
    }
  }
}

std::string HashOf(absl::string_view file, const BpeSurroundings& around, const std::vector<AddedToken>& named) {
  Hasher hasher;
  hasher.Add(file);
  for (const std::string* name : {&around.begin, &around.end, &around.padding, &around.unknown}) {
    hasher.Add(absl::StrCat(name->size(), ":", *name));
  }
  for (const std::vector<AddedToken>* tokens : {&around.added, &named}) {
    for (const AddedToken& token : *tokens) {
      hasher.Add(absl::StrCat(token.content.size(), ":", token.content, token.special, token.single_word, token.lstrip,
                              token.rstrip, token.normalized));
    }
  }
  return hasher.Hex();
}

absl::Status Refusal(absl::string_view name, std::vector<std::string> problems) {
  const size_t count = problems.size();
  if (count > kMaxProblems) {
    problems.resize(kMaxProblems);
    problems.push_back(Plural(count - kMaxProblems, "more problem"));
  }
  return absl::InvalidArgumentError(absl::StrCat(name, ": ", absl::StrJoin(problems, "; "), "; ", kAdvice));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BpeTokenizer>> ReadBpeTokenizer(absl::string_view file, absl::string_view name,
                                                               const BpeSurroundings& around) {
  std::vector<std::string> problems;
  if (JsonNestsDeeperThan(file, kMaxNesting)) return Refusal(name, {"lists and objects are nested too deeply"});
  const auto parsed = nlohmann::json::parse(file.begin(), file.end(), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return Refusal(name, {"the file is not a JSON object"});
  const JsonPart json(parsed, "", problems);
  BpeTokenizerParts parts;
  if (json.Has("version") && json.String("version") != "1.0") json.At("version").Problem("expected \"1.0\"");
  parts.normalizer = Normalizer::Read(json.At("normalizer"));
  parts.pre_tokenizer = PreTokenizer::Read(json.At("pre_tokenizer"));
  parts.decoder = TokenDecoder::Read(json.At("decoder"));
  if (json.Has("post_processor")) ReadTemplate(json.At("post_processor"), 0, parts);
  const BpeParts model_parts = ReadModel(json.At("model"));
  absl::StatusOr<Bpe> model = Bpe::Make(problems.empty() ? model_parts : BpeParts());
  if (!model.ok()) problems.push_back(absl::StrCat("model: ", model.status().message()));
  if (!problems.empty()) return Refusal(name, std::move(problems));
  parts.added = NumberAdded(json, around, *model);
  CheckTemplate(json.At("post_processor"), *model, parts);
  if (!problems.empty()) return Refusal(name, std::move(problems));
  const std::vector<AddedToken> named = NamedInVocabulary(around, *model, parts.added);
  parts.added.insert(parts.added.end(), named.begin(), named.end());
  parts.hash = HashOf(file, around, named);
  const auto id_of = [&](const std::string& token) {
    for (const AddedToken& added : parts.added) {
      if (added.content == token) return added.id;
    }
    return token.empty() ? -1 : model->IdOf(token);
  };
  parts.special = {id_of(around.begin), id_of(around.end), id_of(around.padding),
                   id_of(around.unknown.empty() ? model_parts.unknown : around.unknown)};
  return BpeTokenizer::Make(std::move(parts), *std::move(model));
}

}  // namespace trainyard
