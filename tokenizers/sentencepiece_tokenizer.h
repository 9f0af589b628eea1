// A tokenizer from the tokenizer.model of SentencePiece. There are two kinds:
//   - the model alone, with the ids of the Python library `sentencepiece`;
//   - the model in a folder of transformers (sentencepiece_folder.h), with the ids of its LlamaTokenizer: special
//     tokens are found in the text, and a text that begins with a space gets no other space before it.
//
// Immutable and thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tokenizers/added_tokens.h"
#include "tokenizers/decoder.h"
#include "tokenizers/sentencepiece_model.h"
#include "tokenizers/sentencepiece_plugin.h"
#include "tokenizers/tokenizer.h"

namespace trainyard {

// What tokenizer_config.json says. Ids have been checked against the model.
struct LlamaSettings {
  // Added tokens divide a text into parts. A space is put before no part, before the first part, or before each part.
  enum class Prefix { kNever, kFirst, kAlways };
  Prefix prefix = Prefix::kFirst;
  std::vector<AddedToken> added;       // including the model's control, unknown and user-defined pieces
  std::vector<int32_t> before, after;  // what the template puts around a text
  SpecialIds special;
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // `file`: the content of tokenizer.model, of which `model` is the parsed form; `name`: for messages. `hash`
  // identifies the files; hash() also depends on the version of libsentencepiece. Possible errors: those of
  // OpenSentencePiece; InvalidArgument with libsentencepiece's reason; those of reading its library file.
  static absl::StatusOr<std::unique_ptr<SentencePieceTokenizer>> Make(absl::string_view file, absl::string_view name,
                                                                      SentencePieceModel model, std::string hash,
                                                                      std::optional<LlamaSettings> settings);

  absl::Status Append(absl::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const override;
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special = false) const override;
  int64_t vocabulary() const override;
  SpecialIds special() const override { return special_; }
  TokensAround around() const override {
    return settings_.has_value() ? TokensAround{settings_->before, settings_->after} : TokensAround{};
  }
  int32_t IdOf(absl::string_view token) const override;
  std::string TokenOf(int32_t id) const override;
  size_t NextSafeCut(absl::string_view text, size_t from) const override;
  absl::string_view kind() const override { return "SentencePiece"; }
  const std::string& hash() const override { return hash_; }

 private:
  struct Closer {
    const SentencePieceApi* api;
    void operator()(void* model) const { api->close(model); }
  };
  using Processor = std::unique_ptr<void, Closer>;

  SentencePieceTokenizer(SentencePieceModel model, std::string hash, std::optional<LlamaSettings> settings);
  static absl::StatusOr<Processor> Load(const SentencePieceApi* api, absl::string_view file, absl::string_view name);

  bool SpacesMayBeCut() const;
  bool IsSafeCut(absl::string_view text, size_t at) const;
  // Appends the tokens of a part of a text, which ends at a safe cut or at the end of the text.
  absl::Status AppendPart(absl::string_view text, bool continues, std::vector<int32_t>& ids) const;
  absl::Status AppendSection(absl::string_view text, bool is_start, std::vector<int32_t>& ids) const;
  absl::Status Run(const Processor& processor, absl::string_view text, std::vector<int32_t>& ids) const;
  std::string DecodePlain(absl::Span<const int32_t> ids, bool skip_special) const;

  const SentencePieceModel model_;
  const std::string hash_;
  const std::optional<LlamaSettings> settings_;
  SpecialIds special_;
  TokenFinder in_text_, in_normalized_;
  std::optional<TokenDecoder> decoder_;
  absl::flat_hash_map<absl::string_view, int32_t> ids_;
  absl::flat_hash_map<int32_t, const AddedToken*> added_;
  bool cuts_at_spaces_ = false;
  const SentencePieceApi* api_ = nullptr;
  Processor plain_ = Processor(nullptr, Closer{nullptr});           // the model as in the file
  Processor without_prefix_ = Processor(nullptr, Closer{nullptr});  // puts no space before a text
};

}  // namespace trainyard
