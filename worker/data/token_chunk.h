// A chunk of the token cache: the tokens of one piece of the data, as a file that is mapped and read in place.
//
//   header | documents: (end, tokens with loss), 16 bytes each | mask: a bit per token | tokens: 2 or 4 bytes each
//   | hash: 40 bytes
//
// A chunk of text that is one stream has neither documents nor mask; if attention must not cross documents, it has the
// indices of their first tokens, 8 bytes each, instead. A document of a stream may begin in one chunk and end in
// another. Numbers are little-endian; the tokens are padded to a multiple of 8 bytes. Each document ends where the next
// one starts. The first token of a document is never a target.
//
// The hash covers all bytes before it; chunks of earlier versions have none.
//
// Files of other programs (token_files.h) are chunks of streams without a header.
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

enum class TokenType { kUint8, kInt8, kUint16, kInt16, kUint32, kInt32, kInt64 };
int64_t BytesOf(TokenType type);

enum class ChunkKind : uint64_t { kStream, kDocuments, kStreamWithStarts };

struct TokenChunkHeader {
  char magic[8] = {'T', 'Y', 'T', 'O', 'K', 'E', 'N', '1'};
  uint64_t token_bytes = 4;  // 2 or 4
  ChunkKind kind = ChunkKind::kStream;
  uint64_t num_tokens = 0;
  uint64_t num_documents = 0;      // in a stream with starts: those that begin in this chunk
  uint64_t num_records = 0;        // lines or files that this chunk was made of
  uint64_t num_empty_records = 0;  // of these, those without a token to predict, which were skipped
  uint64_t vocabulary = 0;         // every token is smaller
};

struct TokenDocument {
  uint64_t end = 0;          // index of the token after the last
  uint64_t loss_tokens = 0;  // targets with loss
};

class TokenChunkWriter {
 public:
  // REQUIRES: every token that is added is < vocabulary.
  TokenChunkWriter(int64_t vocabulary, ChunkKind kind);

  // Appends to a stream. `begins`: the first token begins a document.
  void AddTokens(absl::Span<const int64_t> tokens, bool begins);
  // Appends a document whose token i is a target if has_loss[i]; a document without any target is skipped.
  // REQUIRES: a chunk of documents; `tokens` and `has_loss` have the same size.
  void AddDocument(absl::Span<const int64_t> tokens, const std::vector<bool>& has_loss);
  void CountRecord(bool is_empty);

  int64_t num_tokens() const { return static_cast<int64_t>(header_.num_tokens); }
  // The bytes of the file.
  std::string Finish() const;

 private:
  void Append(int64_t token);

  TokenChunkHeader header_;
  std::vector<TokenDocument> documents_;
  std::vector<uint64_t> starts_;
  std::vector<uint64_t> mask_;
  std::string tokens_;
};

// Whether a chunk ends with the hash of its other bytes, or was written by an earlier version and has no hash.
bool HasGoodHash(absl::string_view bytes);

// A view of the bytes of a chunk.
class TokenChunk {
 public:
  // Checks that sizes and tables fit `bytes`, which must outlive the chunk and be aligned to 8 bytes. Fails with
  // DataLoss.
  static absl::StatusOr<TokenChunk> Parse(absl::string_view bytes);
  // A stream of tokens at `tokens`, which is aligned for them. `starts`: the indices of the first tokens of
  // documents, ascending; empty: unknown. Both must outlive the chunk.
  static TokenChunk InPlace(TokenType type, const char* tokens, int64_t num_tokens, absl::Span<const uint64_t> starts);

  int64_t num_tokens() const { return static_cast<int64_t>(header_.num_tokens); }
  bool has_documents() const { return header_.kind == ChunkKind::kDocuments; }
  const TokenChunkHeader& header() const { return header_; }
  absl::Span<const TokenDocument> documents() const { return documents_; }
  // In a stream with starts: the index of the first token of each document that begins in this chunk.
  absl::Span<const uint64_t> starts() const { return starts_; }
  // Copies tokens [first, first + out.size()). REQUIRES: they exist.
  void Read(int64_t first, absl::Span<int64_t> out) const;
  // Whether token `i` is a target. REQUIRES: has_documents().
  bool HasLoss(int64_t i) const { return mask_[static_cast<size_t>(i / 64)] >> (i % 64) & 1; }
  // The number of targets among tokens [first, end). REQUIRES: has_documents().
  int64_t CountLoss(int64_t first, int64_t end) const;

 private:
  TokenChunkHeader header_;
  TokenType type_ = TokenType::kUint16;
  absl::Span<const TokenDocument> documents_ = {};
  absl::Span<const uint64_t> starts_ = {};
  const uint64_t* mask_ = nullptr;
  const char* tokens_ = nullptr;
};

}  // namespace trainyard
