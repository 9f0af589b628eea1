#include "worker/data/token_samples.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "worker/data/byte_samples.h"

namespace trainyard {
namespace {

absl::Status TooShort(absl::string_view part, absl::string_view found, int64_t length, absl::string_view advice) {
  return absl::InvalidArgumentError(absl::StrCat("train.data: ", part, " has ", found,
                                                 ", not enough for one sample of ", length, " tokens; ", advice));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenSamples>> TokenSamples::Open(const TokenCacheFolder& folder, size_t num_chunks,
                                                                 const TokenSamplesOptions& options) {
  std::unique_ptr<TokenSamples> samples(new TokenSamples(options));
  samples->mappings_.reserve(num_chunks);
  for (size_t chunk = 0; chunk < num_chunks; ++chunk) {
    RETURN_IF_ERROR(samples->Map(folder.ChunkPath(chunk)));
  }
  RETURN_IF_ERROR(samples->Divide());
  return samples;
}

TokenSamples::~TokenSamples() {
  for (const Mapping& mapping : mappings_) munmap(const_cast<void*>(mapping.data), mapping.num_bytes);
}

absl::Status TokenSamples::Map(const std::string& path) {
  ASSIGN_OR_RETURN(const int fd, OpenRegularFile(path, O_RDONLY));
  struct stat info = {};
  void* data = MAP_FAILED;
  if (fstat(fd, &info) == 0 && info.st_size > 0) {
    data = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  }
  const int error = errno;
  close(fd);
  const auto damaged = [&](absl::string_view why) {
    return absl::DataLossError(absl::StrCat(path, ": ", why, "; remove the folder, so that it is made again"));
  };
  if (info.st_size == 0) return damaged("the chunk is empty");
  if (data == MAP_FAILED) return ErrnoStatus(error, absl::StrCat("cannot map ", path));
  mappings_.push_back({.data = data, .num_bytes = static_cast<size_t>(info.st_size)});
  Mapping& mapping = mappings_.back();
  absl::StatusOr<TokenChunk> chunk = TokenChunk::Parse({static_cast<const char*>(data), mapping.num_bytes});
  if (!chunk.ok()) return damaged(chunk.status().message());
  mapping.chunk = *chunk;
  const TokenChunkHeader& header = chunk->header();
  has_documents_ = mappings_.size() == 1 ? chunk->has_documents() : has_documents_;
  if (chunk->has_documents() != has_documents_ || header.vocabulary > static_cast<uint64_t>(options_.vocabulary)) {
    return damaged("the chunk belongs to another cache");
  }
  mapping.first_token = summary_.num_tokens;
  mapping.first_document = summary_.num_documents;
  summary_.num_tokens += chunk->num_tokens();
  summary_.num_documents += static_cast<int64_t>(header.num_documents);
  summary_.num_records += static_cast<int64_t>(header.num_records);
  summary_.num_empty_records += static_cast<int64_t>(header.num_empty_records);
  return absl::OkStatus();
}

absl::Status TokenSamples::Divide() {
  const int64_t total = has_documents_ ? summary_.num_documents : summary_.num_tokens;
  const int64_t validation = std::llround(options_.validation * static_cast<double>(total)), train = total - validation;
  if (has_documents_) {
    packed_[0] = Pack(0, train);
    packed_[1] = Pack(train, total);
  } else {
    num_train_tokens_ = train;
  }
  const auto text = [&](int64_t count) {
    return has_documents_ ? absl::StrCat(Plural(static_cast<uint64_t>(count), "document"), " with a target, ",
                                         summary_.num_without_loss, " of all documents lost theirs by truncation")
                          : Plural(static_cast<uint64_t>(count), "token");
  };
  if (num_samples(DataPart::kTraining) == 0) {
    return TooShort("the part for training", text(train), options_.length,
                    "provide more data, a smaller train.data.validation or a smaller train.batch.length");
  }
  if (options_.evaluates && num_samples(DataPart::kEvaluation) == 0) {
    return TooShort("the part for evaluation", text(validation), options_.length,
                    "provide more data, a larger train.data.validation, or do not evaluate");
  }
  return absl::OkStatus();
}

std::vector<int64_t> TokenSamples::Pack(int64_t first, int64_t end) {
  std::vector<int64_t> starts;
  int64_t space = 0;
  for (int64_t document = first; document < end; ++document) {
    const Piece piece = PieceOf(document);
    summary_.num_truncated += piece.is_truncated ? 1 : 0;
    if (piece.loss_tokens == 0) {
      ++summary_.num_without_loss;
      continue;
    }
    if (piece.num_inputs > space) {
      starts.push_back(document);
      space = options_.length;
    }
    space -= piece.num_inputs;
  }
  starts.push_back(end);
  return starts;
}

TokenSamples::Piece TokenSamples::PieceOf(int64_t document) const {
  // The mapping that contains it: the last one that does not begin after it.
  const auto after =
      std::upper_bound(mappings_.begin(), mappings_.end(), document,
                       [](int64_t number, const Mapping& mapping) { return number < mapping.first_document; });
  const Mapping& mapping = *(after - 1);
  const size_t i = static_cast<size_t>(document - mapping.first_document);
  const absl::Span<const TokenDocument> documents = mapping.chunk.documents();
  const int64_t begin = i == 0 ? 0 : static_cast<int64_t>(documents[i - 1].end);
  const int64_t num_inputs = static_cast<int64_t>(documents[i].end) - begin - 1;
  Piece piece{.chunk = &mapping.chunk,
              .begin = begin,
              .num_inputs = num_inputs,
              .loss_tokens = static_cast<int64_t>(documents[i].loss_tokens)};
  if (num_inputs > options_.length) {
    piece.is_truncated = true;
    piece.num_inputs = options_.length;
    piece.loss_tokens = mapping.chunk.CountLoss(begin + 1, begin + 1 + options_.length);
  }
  return piece;
}

std::vector<TokenSamples::Piece> TokenSamples::PiecesOf(DataPart part, int64_t sample) const {
  const std::vector<int64_t>& starts = packed_[part == DataPart::kTraining ? 0 : 1];
  std::vector<Piece> pieces;
  for (int64_t document = starts[static_cast<size_t>(sample)]; document < starts[static_cast<size_t>(sample) + 1];
       ++document) {
    const Piece piece = PieceOf(document);
    if (piece.loss_tokens > 0) pieces.push_back(piece);
  }
  return pieces;
}

int64_t TokenSamples::num_samples(DataPart part) const {
  if (has_documents_) return static_cast<int64_t>(packed_[part == DataPart::kTraining ? 0 : 1].size()) - 1;
  return SamplesInStream(part == DataPart::kTraining ? num_train_tokens_ : summary_.num_tokens - num_train_tokens_,
                         options_.length);
}

int64_t TokenSamples::LossTokens(DataPart part, int64_t sample) const {
  if (!has_documents_) return options_.length;
  int64_t count = 0;
  for (const Piece& piece : PiecesOf(part, sample)) count += piece.loss_tokens;
  return count;
}

void TokenSamples::ReadStream(int64_t first, absl::Span<int64_t> out) const {
  auto it = std::upper_bound(mappings_.begin(), mappings_.end(), first,
                             [](int64_t position, const Mapping& mapping) { return position < mapping.first_token; }) -
            1;
  while (!out.empty()) {
    const int64_t offset = first - it->first_token;
    const size_t count = std::min<size_t>(out.size(), static_cast<size_t>(it->chunk.num_tokens() - offset));
    it->chunk.Read(offset, out.first(count));
    out.remove_prefix(count);
    first += static_cast<int64_t>(count);
    ++it;
  }
}

void TokenSamples::Read(DataPart part, int64_t sample, absl::Span<int64_t> inputs, absl::Span<int64_t> targets) const {
  std::vector<int64_t> tokens(static_cast<size_t>(options_.length) + 1);
  if (!has_documents_) {
    ReadStream((part == DataPart::kTraining ? 0 : num_train_tokens_) + sample * options_.length,
               absl::MakeSpan(tokens));
    std::copy(tokens.begin(), tokens.end() - 1, inputs.begin());
    std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
    return;
  }
  // Padding at the end is never seen by the tokens before it; its value does not matter.
  std::fill(inputs.begin(), inputs.end(), 0);
  std::fill(targets.begin(), targets.end(), kNoTarget);
  size_t at = 0;
  for (const Piece& piece : PiecesOf(part, sample)) {
    const size_t count = static_cast<size_t>(piece.num_inputs);
    piece.chunk->Read(piece.begin, absl::MakeSpan(tokens.data(), count + 1));
    std::copy_n(tokens.begin(), count, inputs.begin() + at);
    for (size_t i = 0; i < count; ++i) {
      if (piece.chunk->HasLoss(piece.begin + static_cast<int64_t>(i) + 1)) targets[at + i] = tokens[i + 1];
    }
    at += count;
  }
}

}  // namespace trainyard
