// A chunk of the token cache: the tokens of one piece of the data, as a file that is mapped and read in place.
//
//   header | documents: (end, tokens with loss), 16 bytes each | mask: a bit per token | tokens: 2 or 4 bytes each
//
// A chunk of text that is one stream has neither documents nor mask. Numbers are little-endian; the tokens are padded
// to a multiple of 8 bytes. Documents end where the next one starts. The first token of a document is never a target.
//
// A TokenChunkWriter is used by one thread; a TokenChunk is immutable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace trainyard {

struct TokenChunkHeader {
  char magic[8] = {'T', 'Y', 'T', 'O', 'K', 'E', 'N', '1'};
  uint64_t token_bytes = 4;  // 2 or 4
  uint64_t has_documents = 0;
  uint64_t num_tokens = 0;
  uint64_t num_documents = 0;
  uint64_t num_records = 0;        // lines or files that this chunk was made of
  uint64_t num_empty_records = 0;  // of these, those without a token to predict, which were left out
  uint64_t vocabulary = 0;         // every token is smaller
};

struct TokenDocument {
  uint64_t end = 0;          // index of the token after the last
  uint64_t loss_tokens = 0;  // targets with loss
};

class TokenChunkWriter {
 public:
  // `with_documents`: the tokens are documents with a mask. REQUIRES: every token that is added is < vocabulary.
  TokenChunkWriter(int64_t vocabulary, bool with_documents);

  // Appends to a stream. REQUIRES: without documents.
  void AddTokens(absl::Span<const int64_t> tokens);
  // Appends a document whose token i is a target if has_loss[i]; one without any target is left out. REQUIRES: with
  // documents; both have the same size.
  void AddDocument(absl::Span<const int64_t> tokens, const std::vector<bool>& has_loss);
  void CountRecord(bool is_empty);

  int64_t num_tokens() const { return static_cast<int64_t>(header_.num_tokens); }
  // The bytes of the file.
  std::string Finish() const;

 private:
  void Append(int64_t token);

  TokenChunkHeader header_;
  std::vector<TokenDocument> documents_;
  std::vector<uint64_t> mask_;
  std::string tokens_;
};

// A view of the bytes of a chunk.
class TokenChunk {
 public:
  // Checks that sizes and tables fit `bytes`, which must outlive the chunk and be aligned to 8 bytes. Fails with
  // DataLoss.
  static absl::StatusOr<TokenChunk> Parse(absl::string_view bytes);

  int64_t num_tokens() const { return static_cast<int64_t>(header_.num_tokens); }
  bool has_documents() const { return header_.has_documents != 0; }
  const TokenChunkHeader& header() const { return header_; }
  absl::Span<const TokenDocument> documents() const { return documents_; }
  // Copies tokens [first, first + out.size()). REQUIRES: they exist.
  void Read(int64_t first, absl::Span<int64_t> out) const;
  // Whether token `i` is a target. REQUIRES: has_documents().
  bool HasLoss(int64_t i) const { return mask_[static_cast<size_t>(i / 64)] >> (i % 64) & 1; }
  // The number of targets among tokens [first, end). REQUIRES: has_documents().
  int64_t CountLoss(int64_t first, int64_t end) const;

 private:
  TokenChunkHeader header_;
  absl::Span<const TokenDocument> documents_ = {};
  const uint64_t* mask_ = nullptr;
  const char* tokens_ = nullptr;
};

}  // namespace trainyard
