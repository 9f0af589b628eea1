// A tokenizer of the BPE kind from a tokenizer.json, with the ids of the Python library `tokenizers`. A text goes
// through: added tokens that are found in the text as it is; the normalizer; added tokens that are found in normalized
// text; the pre-tokenizer, which gives words; the model (bpe.h); and the template that puts tokens around a text.
//
// Immutable and thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "tokenizers/added_tokens.h"
#include "tokenizers/bpe.h"
#include "tokenizers/decoder.h"
#include "tokenizers/normalizer.h"
#include "tokenizers/pre_tokenizer.h"
#include "tokenizers/tokenizer.h"

namespace trainyard {

// The content of a tokenizer.json, and what the other files of its folder add.
struct BpeTokenizerParts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  TokenDecoder decoder;
  std::vector<AddedToken> added;       // with their final ids
  std::vector<int32_t> before, after;  // what the template puts around a text
  SpecialIds special;
  std::string hash;
};

class BpeTokenizer final : public Tokenizer {
 public:
  // Normalizes the added tokens that are found in normalized text. Possible errors: those of Pattern::Parts.
  static absl::StatusOr<std::unique_ptr<BpeTokenizer>> Make(BpeTokenizerParts parts, Bpe model);

  absl::Status Append(absl::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const override;
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special = false) const override;
  int64_t vocabulary() const override;
  SpecialIds special() const override { return parts_.special; }
  TokensAround around() const override { return {parts_.before, parts_.after}; }
  int32_t IdOf(absl::string_view token) const override;
  std::string TokenOf(int32_t id) const override;
  size_t NextSafeCut(absl::string_view text, size_t from) const override;
  absl::string_view kind() const override { return "BPE"; }
  const std::string& hash() const override { return parts_.hash; }

 private:
  BpeTokenizer(BpeTokenizerParts parts, Bpe model) : parts_(std::move(parts)), model_(std::move(model)) {}

  void EncodeSection(absl::string_view text, bool is_start, bool continues, Bpe::Scratch& scratch,
                     std::vector<int32_t>& ids) const;
  void EncodePiece(PreTokenizer::Piece piece, bool continues, Bpe::Scratch& scratch, std::vector<int32_t>& ids) const;
  bool LinesMayBeCut() const;

  // Scratch memory is lent to one call at a time. It caches the tokens of words for later calls.
  std::unique_ptr<Bpe::Scratch> Borrow() const;
  void Return(std::unique_ptr<Bpe::Scratch> scratch) const;

  const BpeTokenizerParts parts_;
  const Bpe model_;
  TokenFinder in_text_, in_normalized_;
  absl::flat_hash_map<int32_t, const AddedToken*> added_;
  absl::flat_hash_map<std::string, int32_t> added_ids_;
  bool cuts_at_lines_ = false;
  mutable absl::Mutex mu_;
  mutable std::vector<std::unique_ptr<Bpe::Scratch>> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
