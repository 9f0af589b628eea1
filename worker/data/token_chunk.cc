#include "worker/data/token_chunk.h"

#include <bit>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/hash.h"

namespace trainyard {
namespace {

static_assert(std::endian::native == std::endian::little, "chunks are read in place");
static_assert(sizeof(TokenChunkHeader) == 64 && sizeof(TokenDocument) == 16);

// The hash at the end of a chunk: "TYHASH01", then 32 hexadecimal digits.
constexpr absl::string_view kHashMagic = "TYHASH01";
constexpr size_t kHashBytes = 40;

uint64_t WordsOfMask(uint64_t num_tokens) { return (num_tokens + 63) / 64; }
uint64_t PaddedTokenBytes(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

template <typename Element>
void CopyTokens(const char* tokens, int64_t first, absl::Span<int64_t> out) {
  const auto* source = reinterpret_cast<const Element*>(tokens) + first;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int64_t>(source[i]);
}

}  // namespace

int64_t BytesOf(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kUint16:
    case TokenType::kInt16:
      return 2;
    case TokenType::kUint32:
    case TokenType::kInt32:
      return 4;
    case TokenType::kInt64:
      break;
  }
  return 8;
}

TokenChunkWriter::TokenChunkWriter(int64_t vocabulary, ChunkKind kind) {
  header_.token_bytes = vocabulary <= 65'536 ? 2 : 4;
  header_.kind = kind;
  header_.vocabulary = static_cast<uint64_t>(vocabulary);
}

void TokenChunkWriter::Append(int64_t token) {
  tokens_.append(reinterpret_cast<const char*>(&token), header_.token_bytes);
  ++header_.num_tokens;
}

void TokenChunkWriter::AddTokens(absl::Span<const int64_t> tokens, bool begins) {
  if (begins && !tokens.empty() && header_.kind == ChunkKind::kStreamWithStarts) {
    starts_.push_back(header_.num_tokens);
    ++header_.num_documents;
  }
  for (const int64_t token : tokens) Append(token);
}

void TokenChunkWriter::AddDocument(absl::Span<const int64_t> tokens, const std::vector<bool>& has_loss) {
  uint64_t loss_tokens = 0;
  for (size_t i = 1; i < tokens.size(); ++i) loss_tokens += has_loss[i] ? 1 : 0;
  if (loss_tokens == 0) return;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const uint64_t at = header_.num_tokens;
    mask_.resize(WordsOfMask(at + 1));
    if (i > 0 && has_loss[i]) mask_[at / 64] |= uint64_t{1} << (at % 64);
    Append(tokens[i]);
  }
  documents_.push_back({.end = header_.num_tokens, .loss_tokens = loss_tokens});
  ++header_.num_documents;
}

void TokenChunkWriter::CountRecord(bool is_empty) {
  ++header_.num_records;
  header_.num_empty_records += is_empty ? 1 : 0;
}

std::string TokenChunkWriter::Finish() const {
  std::string bytes(reinterpret_cast<const char*>(&header_), sizeof header_);
  bytes.append(reinterpret_cast<const char*>(documents_.data()), documents_.size() * sizeof(TokenDocument));
  bytes.append(reinterpret_cast<const char*>(starts_.data()), starts_.size() * sizeof(uint64_t));
  bytes.append(reinterpret_cast<const char*>(mask_.data()), mask_.size() * sizeof(uint64_t));
  bytes.append(tokens_);
  bytes.append(PaddedTokenBytes(tokens_.size()) - tokens_.size(), '\0');
  const std::string hash = HashHex(bytes);
  absl::StrAppend(&bytes, kHashMagic, hash);
  return bytes;
}

bool HasGoodHash(absl::string_view bytes) {
  if (bytes.size() < kHashBytes) return true;
  const absl::string_view hash = bytes.substr(bytes.size() - kHashBytes);
  bytes.remove_suffix(kHashBytes);
  return !absl::StartsWith(hash, kHashMagic) || hash.substr(kHashMagic.size()) == HashHex(bytes);
}

absl::StatusOr<TokenChunk> TokenChunk::Parse(absl::string_view bytes) {
  const auto damaged = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("a chunk of ", bytes.size(), " bytes is damaged: ", what));
  };
  TokenChunk chunk;
  TokenChunkHeader& header = chunk.header_;
  if (bytes.size() < sizeof header) return damaged("it is shorter than a header");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, TokenChunkHeader().magic, sizeof header.magic) != 0) return damaged("no magic number");
  if (header.token_bytes != 2 && header.token_bytes != 4) return damaged("its tokens are neither 2 nor 4 bytes long");
  if (header.kind > ChunkKind::kStreamWithStarts) return damaged("its kind is unknown");
  chunk.type_ = header.token_bytes == 2 ? TokenType::kUint16 : TokenType::kUint32;
  const bool has_mask = header.kind == ChunkKind::kDocuments;
  // This check comes before any product of the counts, so that none overflows.
  if (header.num_tokens > bytes.size() || header.num_documents > bytes.size())
    return damaged("its counts are too large");
  const uint64_t documents = header.num_documents * (has_mask ? sizeof(TokenDocument) : sizeof(uint64_t));
  const uint64_t mask = has_mask ? WordsOfMask(header.num_tokens) * sizeof(uint64_t) : 0;
  const uint64_t expected = sizeof header + documents + mask + PaddedTokenBytes(header.num_tokens * header.token_bytes);
  const bool has_hash = bytes.size() == expected + kHashBytes && absl::StartsWith(bytes.substr(expected), kHashMagic);
  if (bytes.size() != expected && !has_hash) return damaged(absl::StrCat("its header describes ", expected, " bytes"));
  const char* data = bytes.data() + sizeof header;
  const size_t count = static_cast<size_t>(header.num_documents);
  if (has_mask) chunk.documents_ = {reinterpret_cast<const TokenDocument*>(data), count};
  if (!has_mask) chunk.starts_ = {reinterpret_cast<const uint64_t*>(data), count};
  chunk.mask_ = reinterpret_cast<const uint64_t*>(data + documents);
  chunk.tokens_ = data + documents + mask;
  uint64_t end = 0;
  for (const TokenDocument& document : chunk.documents_) {
    if (document.end <= end || document.end > header.num_tokens) return damaged("its documents overlap or are empty");
    if (document.loss_tokens >= document.end - end) return damaged("a document has too many targets");
    end = document.end;
  }
  if (has_mask && end != header.num_tokens) return damaged("tokens are in no document");
  for (size_t i = 0; i < chunk.starts_.size(); ++i) {
    if (chunk.starts_[i] >= header.num_tokens || (i > 0 && chunk.starts_[i] <= chunk.starts_[i - 1])) {
      return damaged("its documents overlap or are empty");
    }
  }
  return chunk;
}

TokenChunk TokenChunk::InPlace(TokenType type, const char* tokens, int64_t num_tokens,
                               absl::Span<const uint64_t> starts) {
  TokenChunk chunk;
  chunk.type_ = type;
  chunk.tokens_ = tokens;
  chunk.starts_ = starts;
  chunk.header_.kind = starts.empty() ? ChunkKind::kStream : ChunkKind::kStreamWithStarts;
  chunk.header_.num_tokens = static_cast<uint64_t>(num_tokens);
  chunk.header_.num_documents = starts.size();
  return chunk;
}

void TokenChunk::Read(int64_t first, absl::Span<int64_t> out) const {
  switch (type_) {
    case TokenType::kUint8:
      return CopyTokens<uint8_t>(tokens_, first, out);
    case TokenType::kInt8:
      return CopyTokens<int8_t>(tokens_, first, out);
    case TokenType::kUint16:
      return CopyTokens<uint16_t>(tokens_, first, out);
    case TokenType::kInt16:
      return CopyTokens<int16_t>(tokens_, first, out);
    case TokenType::kUint32:
      return CopyTokens<uint32_t>(tokens_, first, out);
    case TokenType::kInt32:
      return CopyTokens<int32_t>(tokens_, first, out);
    case TokenType::kInt64:
      return CopyTokens<int64_t>(tokens_, first, out);
  }
}

int64_t TokenChunk::CountLoss(int64_t first, int64_t end) const {
  int64_t count = 0;
  while (first < end) {
    const int64_t bits = std::min(64 - first % 64, end - first);
    const uint64_t word = mask_[static_cast<size_t>(first / 64)] >> (first % 64);
    count += std::popcount(bits == 64 ? word : word & ((uint64_t{1} << bits) - 1));
    first += bits;
  }
  return count;
}

}  // namespace trainyard
