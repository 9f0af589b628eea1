// Samples of tokens, from the token cache or from files that other programs made. There are two kinds:
//
//   a stream    All tokens are one sequence. Sample i is the length + 1 tokens that start at i x length, as for bytes.
//   documents   Each has a mask of the tokens with a loss. Documents are packed whole, in order: a sample holds as many
//               of the next documents as fit, and is padded at its end. A document of n tokens occupies n - 1 inputs. A
//               document is cut after length + 1 tokens if it has more. A document that has no target, or whose targets
//               were all cut off, is skipped, so every sample has a target.
//
// A target is never a token of another document, except in a stream whose documents are not separate. The last share
// of the tokens or documents is reserved for evaluation. The chunks are mapped: a rank reads only the pages of its
// samples, and the tables of documents (common/mapped_file.h says what happens if a page cannot be read).
//
// Immutable, so thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mapped_file.h"
#include "worker/data/sample_source.h"
#include "worker/data/token_cache.h"
#include "worker/data/token_chunk.h"

namespace trainyard {

struct TokenSamplesOptions {
  int64_t length = 0;               // tokens of a sample
  double validation = 0;            // share of the tokens or documents, from the end
  bool trains = true;               // the training part must hold a sample
  bool evaluates = false;           // the validation part must hold a sample
  int64_t vocabulary = 0;           // every token is smaller
  bool separate_documents = false;  // attention does not cross documents; a stream must have starts
  std::string name = "train.data";  // in errors
};

// Chunks [first, end) of a cache.
struct ChunkRange {
  size_t first = 0, end = 0;
};

struct TokenSummary {
  int64_t num_tokens = 0;
  int64_t num_documents = 0;  // 0 also for a stream whose chunks do not record where documents begin
  int64_t num_records = 0;
  int64_t num_empty_records = 0;
  int64_t num_truncated = 0;     // documents that were cut
  int64_t num_without_loss = 0;  // the cut documents that are skipped because no target is left

  TokenSummary& operator+=(const TokenSummary& other);
};

class TokenSamples final : public SampleSource {
 public:
  // Possible errors: InvalidArgument if there are not enough tokens for a sample; DataLoss, naming the file, if a chunk
  // is damaged; those of the file system.
  static absl::StatusOr<std::unique_ptr<TokenSamples>> Open(const TokenCacheFolder& folder, ChunkRange chunks,
                                                            const TokenSamplesOptions& options);
  // Makes samples of chunks in memory, which must outlive the samples.
  static absl::StatusOr<std::unique_ptr<TokenSamples>> OfChunks(const std::vector<TokenChunk>& chunks,
                                                                const TokenSamplesOptions& options);
  ~TokenSamples() override = default;
  TokenSamples(const TokenSamples&) = delete;
  TokenSamples& operator=(const TokenSamples&) = delete;

  int64_t length() const override { return options_.length; }
  int64_t num_samples(DataPart part) const override;
  bool separates_documents() const override { return options_.separate_documents; }
  void Read(DataPart part, int64_t sample, absl::Span<int64_t> inputs, absl::Span<int64_t> targets,
            absl::Span<int64_t> starts) const override;
  int64_t LossTokens(DataPart part, int64_t sample) const override;

  const TokenSummary& summary() const { return summary_; }

 private:
  struct Mapping {
    std::unique_ptr<MappedFile> file = {};  // null: the chunk's memory is not owned
    TokenChunk chunk = {};
    int64_t first_token = 0;     // index among the tokens of all chunks
    int64_t first_document = 0;  // index among the documents of all chunks
  };
  // A document, as far as a sample can hold it.
  struct Piece {
    const TokenChunk* chunk = nullptr;
    int64_t begin = 0;       // its first token in the chunk
    int64_t num_inputs = 0;  // its tokens except the last
    int64_t loss_tokens = 0;
    bool is_truncated = false;
  };

  explicit TokenSamples(const TokenSamplesOptions& options) : options_(options) {}
  absl::Status Map(const std::string& path);
  // Adds a chunk; returns why it does not fit the other chunks, or an empty text.
  std::string Add(Mapping mapping);
  absl::Status Divide();
  // Returns the first document of each sample of documents [first, end), and `end`.
  std::vector<int64_t> Pack(int64_t first, int64_t end);
  Piece PieceOf(int64_t document) const;
  void ReadStream(int64_t first, absl::Span<int64_t> out) const;
  int64_t FirstToken(DataPart part, int64_t sample) const;
  // The chunk of a stream that contains token `number`.
  std::vector<Mapping>::const_iterator MappingOf(int64_t number) const;
  // The positions where documents begin after a sample's first token and up to its last target, counted from that first
  // token.
  std::vector<int64_t> BeginsIn(int64_t first_token) const;
  void ReadDocuments(DataPart part, int64_t sample, absl::Span<int64_t> inputs, absl::Span<int64_t> targets,
                     absl::Span<int64_t> starts) const;
  // The documents of a sample, first to last.
  std::vector<Piece> PiecesOf(DataPart part, int64_t sample) const;

  const TokenSamplesOptions options_;
  std::vector<Mapping> mappings_;
  TokenSummary summary_;
  bool has_documents_ = false;
  int64_t num_train_tokens_ = 0;         // of a stream
  std::vector<int64_t> packed_[2] = {};  // of each part: the first document of each sample, and the end
};

}  // namespace trainyard
