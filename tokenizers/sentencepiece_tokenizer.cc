#include "tokenizers/sentencepiece_tokenizer.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "tokenizers/sentencepiece_loader.h"
#include "tokenizers/utf8.h"

namespace trainyard {
namespace {

using Type = SentencePieceModel::Type;

constexpr absl::string_view kSpacePiece = "\xE2\x96\x81";  // U+2581
constexpr size_t kEncodedBytes = 64 << 10;                 // per call of the plugin, if the text may be cut

bool IsGraphic(char c) { return c > ' ' && c < 0x7F; }

// Whether a piece has a space after another character. Such a piece may join the text on both sides of a cut.
bool JoinsBeforeSpace(absl::string_view piece) {
  while (absl::StartsWith(piece, kSpacePiece)) piece.remove_prefix(kSpacePiece.size());
  return absl::StrContains(piece, kSpacePiece) || absl::StrContains(piece, ' ');
}

// Whether the model has a known table of characters, in which a space between two ASCII characters stays as it is.
bool IsKnownNormalization(const SentencePieceModel& model) {
  constexpr absl::string_view kNames[] = {"nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf"};
  return std::find(std::begin(kNames), std::end(kNames), model.normalization) != std::end(kNames);
}

// What a call of the plugin has returned.
struct Result {
  std::vector<int32_t>* ids = nullptr;
  std::string text, error;
};
void TakeIds(void* to, const int32_t* ids, size_t count) {
  std::vector<int32_t>& all = *static_cast<Result*>(to)->ids;
  all.insert(all.end(), ids, ids + count);
}
void TakeText(void* to, const char* text, size_t size) { static_cast<Result*>(to)->text.assign(text, size); }
void TakeError(void* to, const char* text, size_t size) {
  static_cast<Result*>(to)->error = size == 0 ? "an unknown error" : std::string(text, size);
}

// Returns a hash of the file of libsentencepiece, because another version of that library may give a text other ids.
absl::StatusOr<std::string> HashOfLibrary(const SentencePieceApi& api) {
  Result path;
  api.library(TakeText, TakeError, &path);
  if (!path.error.empty()) return absl::InternalError(path.error);
  static absl::Mutex mu(absl::kConstInit);
  static std::string& hash = *new std::string;
  absl::MutexLock lock(&mu);
  if (hash.empty()) {
    ASSIGN_OR_RETURN(const std::string library, ReadFile(path.text));
    hash = HashHex(library);
  }
  return hash;
}

TokenDecoder LlamaDecoder(bool strips_space) {
  nlohmann::json steps = {{{"type", "Replace"}, {"pattern", {{"String", kSpacePiece}}}, {"content", " "}},
                          {{"type", "ByteFallback"}},
                          {{"type", "Fuse"}}};
  if (strips_space) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  const nlohmann::json json = {{"type", "Sequence"}, {"decoders", steps}};
  std::vector<std::string> problems;  // stays empty: `json` is valid
  return TokenDecoder::Read(JsonPart(json, "decoder", problems));
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(SentencePieceModel model, std::string hash,
                                               std::optional<LlamaSettings> settings)
    : model_(std::move(model)), hash_(std::move(hash)), settings_(std::move(settings)) {
  for (size_t id = 0; id < model_.pieces.size(); ++id) ids_[model_.pieces[id].text] = static_cast<int32_t>(id);
  if (!settings_.has_value()) {
    const auto id_of = [this](const std::string& name, Type type) {
      const int32_t id = IdOf(name);
      return id >= 0 && model_.pieces[static_cast<size_t>(id)].type == type ? id : -1;
    };
    special_ = {.begin = id_of(model_.begin, Type::kControl),
                .end = id_of(model_.end, Type::kControl),
                .padding = id_of(model_.padding, Type::kControl),
                .unknown = id_of(model_.unknown, Type::kUnknown)};
  } else {
    special_ = settings_->special;
    for (const AddedToken& token : settings_->added) {
      ids_[token.content] = token.id;
      added_[token.id] = &token;
      (token.normalized ? in_normalized_ : in_text_).Add(token.content, token);
    }
    decoder_ = LlamaDecoder(settings_->prefix != LlamaSettings::Prefix::kNever);
  }
  cuts_at_spaces_ = SpacesMayBeCut();
}

absl::StatusOr<SentencePieceTokenizer::Processor> SentencePieceTokenizer::Load(const SentencePieceApi* api,
                                                                               absl::string_view file,
                                                                               absl::string_view name) {
  Result result;
  Processor processor(api->open(file.data(), file.size(), TakeError, &result), Closer{api});
  if (processor != nullptr) return processor;
  return absl::InvalidArgumentError(
      absl::StrCat(name, " cannot be opened by libsentencepiece: ", result.error, "; copy it again from its source"));
}

absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> SentencePieceTokenizer::Make(
    absl::string_view file, absl::string_view name, SentencePieceModel model, std::string hash,
    std::optional<LlamaSettings> settings) {
  ASSIGN_OR_RETURN(const SentencePieceApi* api, OpenSentencePiece());
  ASSIGN_OR_RETURN(const std::string library, HashOfLibrary(*api));
  hash = HashHex(absl::StrCat(hash, " ", library));
  std::unique_ptr<SentencePieceTokenizer> made(
      new SentencePieceTokenizer(std::move(model), std::move(hash), std::move(settings)));
  made->api_ = api;
  ASSIGN_OR_RETURN(made->plain_, Load(api, file, name));
  if (made->model_.adds_prefix) {
    ASSIGN_OR_RETURN(made->without_prefix_, Load(api, WithoutPrefix(file), name));
  }
  return made;
}

// A text may be cut before a space if no piece joins across the cut. In unigram models the sums of scores depend,
// through rounding, on all text before a position, so for these models texts are not cut.
bool SentencePieceTokenizer::SpacesMayBeCut() const {
  if (model_.kind != SentencePieceModel::Kind::kBpe || model_.space_is_suffix || !model_.escapes_spaces) return false;
  if (model_.has_characters && !IsKnownNormalization(model_)) return false;
  // libsentencepiece would remove the space at the beginning of a part, as it does at the beginning of a text.
  if (model_.removes_spaces && !model_.adds_prefix) return false;
  // A space that is unknown would join other unknown characters.
  const auto space = ids_.find(kSpacePiece);
  if (space == ids_.end() || added_.contains(space->second)) return false;
  if (model_.pieces[static_cast<size_t>(space->second)].type != Type::kNormal) return false;
  for (const SentencePieceModel::Piece& piece : model_.pieces) {
    const bool has_space = absl::StrContains(piece.text, kSpacePiece) || absl::StrContains(piece.text, ' ');
    if (JoinsBeforeSpace(piece.text) || (piece.type == Type::kUserDefined && has_space)) return false;
  }
  return !settings_.has_value() ||
         std::none_of(settings_->added.begin(), settings_->added.end(), [](const AddedToken& token) {
           return token.lstrip || token.rstrip || absl::StrContains(token.content, ' ') ||
                  absl::StrContains(token.content, kSpacePiece);
         });
}

bool SentencePieceTokenizer::IsSafeCut(absl::string_view text, size_t at) const {
  if (at == 0 || at + 1 >= text.size()) return false;
  // The table of characters may replace several characters together.
  if (model_.has_characters) return IsGraphic(text[at - 1]) && IsGraphic(text[at + 1]);
  return text[at - 1] != ' ' && !absl::EndsWith(text.substr(0, at), kSpacePiece);
}

size_t SentencePieceTokenizer::NextSafeCut(absl::string_view text, size_t from) const {
  if (!cuts_at_spaces_) return text.size();
  for (size_t at = from + 1; at < text.size(); ++at) {
    at = text.find(' ', at);
    if (at == absl::string_view::npos) break;
    if (IsSafeCut(text, at)) return at;
  }
  return text.size();
}

absl::Status SentencePieceTokenizer::Append(absl::string_view text, const EncodeOptions& options,
                                            std::vector<int32_t>& ids) const {
  if (text.size() > limits::kTokenizerTextBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("a text has ", text.size(), " bytes: expected at most ",
                                                     limits::kTokenizerTextBytes, "; split it into documents"));
  }
  if (const size_t valid = utf8::ValidPrefix(text); valid < text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text is not valid UTF-8 at byte ", valid, "; convert it to UTF-8"));
  }
  const size_t before = ids.size();
  const bool has_template = options.special_tokens && settings_.has_value();
  if (has_template) ids.insert(ids.end(), settings_->before.begin(), settings_->before.end());
  absl::Status status;
  for (size_t begin = 0; begin < text.size() && status.ok();) {
    const size_t end = NextSafeCut(text, std::min(begin + kEncodedBytes, text.size()));
    status = AppendPart(text.substr(begin, end - begin), options.continues || begin > 0, ids);
    begin = end;
  }
  if (has_template) ids.insert(ids.end(), settings_->after.begin(), settings_->after.end());
  if (!status.ok()) ids.resize(before);
  return status;
}

absl::Status SentencePieceTokenizer::AppendPart(absl::string_view text, bool continues,
                                                std::vector<int32_t>& ids) const {
  if (text.size() > limits::kTokenizerWordBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a part of ", text.size(),
                     " bytes of a text cannot be cut, because its tokens may join anywhere: "
                     "expected at most ",
                     limits::kTokenizerWordBytes, "; split the text into documents"));
  }
  if (!settings_.has_value()) {
    if (!continues) return Run(plain_, text, ids);
    if (!model_.removes_spaces || text.front() != ' ') {
      return Run(without_prefix_ == nullptr ? plain_ : without_prefix_, text, ids);
    }
    return Run(plain_, text.substr(1), ids);  // plain_ would remove the space; its prefix replaces the space
  }
  absl::Status status;
  in_text_.Cut(text, [&](absl::string_view section, int32_t id) {
    if (id >= 0) return ids.push_back(id);
    in_normalized_.Cut(section, [&](absl::string_view words, int32_t inner) {
      if (inner >= 0) return ids.push_back(inner);
      if (status.ok()) status = AppendSection(words, !continues && words.data() == text.data(), ids);
    });
  });
  return status;
}

absl::Status SentencePieceTokenizer::AppendSection(absl::string_view text, bool is_start,
                                                   std::vector<int32_t>& ids) const {
  const bool wants_prefix = settings_->prefix == LlamaSettings::Prefix::kAlways ||
                            (settings_->prefix == LlamaSettings::Prefix::kFirst && is_start);
  const bool has_space = text.front() == ' ' || absl::StartsWith(text, kSpacePiece);
  return Run(wants_prefix && !has_space ? plain_ : without_prefix_, text, ids);
}

absl::Status SentencePieceTokenizer::Run(const Processor& processor, absl::string_view text,
                                         std::vector<int32_t>& ids) const {
  Result result{.ids = &ids, .text = {}, .error = {}};
  api_->encode(processor.get(), text.data(), text.size(), TakeIds, TakeError, &result);
  if (result.error.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("libsentencepiece cannot encode a text: ", result.error));
}

std::string SentencePieceTokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special) const {
  if (!decoder_.has_value()) return DecodePlain(ids, skip_special);
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    const auto added = added_.find(id);
    if (added != added_.end() && skip_special && added->second->special) continue;
    std::string token = TokenOf(id);
    if (!token.empty()) tokens.push_back(std::move(token));
  }
  return decoder_->Decode(std::move(tokens));
}

std::string SentencePieceTokenizer::DecodePlain(absl::Span<const int32_t> ids, bool skip_special) const {
  std::vector<int32_t> known;
  known.reserve(ids.size());
  for (const int32_t id : ids) {
    if (id < 0 || static_cast<size_t>(id) >= model_.pieces.size()) continue;
    if (skip_special && model_.pieces[static_cast<size_t>(id)].type == Type::kControl) continue;
    known.push_back(id);
  }
  Result result;
  api_->decode(plain_.get(), known.data(), known.size(), TakeText, TakeError, &result);
  return result.text;
}

int64_t SentencePieceTokenizer::vocabulary() const {
  auto size = static_cast<int64_t>(model_.pieces.size());
  for (const auto& [id, token] : added_) size = std::max(size, int64_t{id} + 1);
  return size;
}

int32_t SentencePieceTokenizer::IdOf(absl::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

std::string SentencePieceTokenizer::TokenOf(int32_t id) const {
  const auto added = added_.find(id);
  if (added != added_.end()) return added->second->content;
  return id >= 0 && static_cast<size_t>(id) < model_.pieces.size() ? model_.pieces[static_cast<size_t>(id)].text : "";
}

}  // namespace trainyard
