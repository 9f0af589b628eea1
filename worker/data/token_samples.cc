#include "worker/data/token_samples.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "worker/data/byte_samples.h"

namespace trainyard {
namespace {

absl::Status TooShort(const TokenSamplesOptions& options, absl::string_view part, absl::string_view found,
                      absl::string_view advice) {
  return absl::InvalidArgumentError(absl::StrCat(options.name, ": ", part, " has ", found,
                                                 ", not enough for one sample of ", options.length, " tokens; ",
                                                 advice));
}

}  // namespace

TokenSummary& TokenSummary::operator+=(const TokenSummary& other) {
  num_tokens += other.num_tokens;
  num_documents += other.num_documents;
  num_records += other.num_records;
  num_empty_records += other.num_empty_records;
  num_truncated += other.num_truncated;
  num_without_loss += other.num_without_loss;
  return *this;
}

absl::StatusOr<std::unique_ptr<TokenSamples>> TokenSamples::Open(const TokenCacheFolder& folder, ChunkRange chunks,
                                                                 const TokenSamplesOptions& options) {
  std::unique_ptr<TokenSamples> samples(new TokenSamples(options));
  samples->mappings_.reserve(chunks.end - chunks.first);
  for (size_t chunk = chunks.first; chunk < chunks.end; ++chunk) {
    RETURN_IF_ERROR(samples->Map(folder.ChunkPath(chunk)));
  }
  RETURN_IF_ERROR(samples->Divide());
  return samples;
}

absl::StatusOr<std::unique_ptr<TokenSamples>> TokenSamples::OfChunks(const std::vector<TokenChunk>& chunks,
                                                                     const TokenSamplesOptions& options) {
  std::unique_ptr<TokenSamples> samples(new TokenSamples(options));
  for (const TokenChunk& chunk : chunks) samples->Add({.chunk = chunk});
  RETURN_IF_ERROR(samples->Divide());
  return samples;
}

absl::Status TokenSamples::Map(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const auto damaged = [&](absl::string_view why) {
    return absl::DataLossError(absl::StrCat(path, ": ", why, "; remove its folder; the next job makes a new one"));
  };
  if (file->bytes().empty()) return damaged("the chunk is empty");
  absl::StatusOr<TokenChunk> chunk = TokenChunk::Parse(file->bytes());
  if (!chunk.ok()) return damaged(chunk.status().message());
  const std::string problem = Add({.file = std::move(file), .chunk = *chunk});
  return problem.empty() ? absl::OkStatus() : damaged(problem);
}

std::string TokenSamples::Add(Mapping mapping) {
  const TokenChunk chunk = mapping.chunk;
  const TokenChunkHeader& header = chunk.header();
  if (mappings_.empty()) has_documents_ = chunk.has_documents();
  mapping.first_token = summary_.num_tokens;
  mapping.first_document = summary_.num_documents;
  summary_.num_tokens += chunk.num_tokens();
  summary_.num_documents += static_cast<int64_t>(header.num_documents);
  summary_.num_records += static_cast<int64_t>(header.num_records);
  summary_.num_empty_records += static_cast<int64_t>(header.num_empty_records);
  mappings_.push_back(std::move(mapping));
  const bool fits =
      chunk.has_documents() == has_documents_ && header.vocabulary <= static_cast<uint64_t>(options_.vocabulary);
  return fits ? "" : "the chunk belongs to another cache";
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
  const bool is_separate_stream = options_.separate_documents && !has_documents_;
  if (is_separate_stream && total > 0 && summary_.num_documents >= total) {
    return absl::InvalidArgumentError(absl::StrCat(
        options_.name, ": every document is one token, so with separate_documents there is nothing to predict"));
  }
  const auto text = [&](int64_t count) {
    if (!has_documents_) {
      return absl::StrCat(Plural(static_cast<uint64_t>(count), "token"),
                          " (a sample also needs the token that follows it)");
    }
    return absl::StrCat(Plural(static_cast<uint64_t>(count), "document"),
                        " with a target (truncation has removed all targets of ", summary_.num_without_loss,
                        " documents)");
  };
  if (options_.trains && num_samples(DataPart::kTraining) == 0) {
    return TooShort(options_, "the part for training", text(train),
                    "provide more data, a smaller train.data.validation or a smaller train.batch.length");
  }
  if (options_.evaluates && num_samples(DataPart::kEvaluation) == 0) {
    return TooShort(options_, "the part for evaluation", text(validation),
                    options_.trains ? "provide more data, a larger train.data.validation, or do not evaluate"
                                    : "provide more data or a smaller train.batch.length");
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
  // The mapping that contains the document: the last one that does not begin after it.
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

int64_t TokenSamples::FirstToken(DataPart part, int64_t sample) const {
  return (part == DataPart::kTraining ? 0 : num_train_tokens_) + sample * options_.length;
}

int64_t TokenSamples::LossTokens(DataPart part, int64_t sample) const {
  if (!has_documents_) {
    if (!options_.separate_documents) return options_.length;
    return options_.length - static_cast<int64_t>(BeginsIn(FirstToken(part, sample)).size());
  }
  int64_t count = 0;
  for (const Piece& piece : PiecesOf(part, sample)) count += piece.loss_tokens;
  return count;
}

std::vector<TokenSamples::Mapping>::const_iterator TokenSamples::MappingOf(int64_t number) const {
  const auto after =
      std::upper_bound(mappings_.begin(), mappings_.end(), number,
                       [](int64_t position, const Mapping& mapping) { return position < mapping.first_token; });
  return after - 1;
}

std::vector<int64_t> TokenSamples::BeginsIn(int64_t first_token) const {
  std::vector<int64_t> begins;
  const int64_t end = first_token + options_.length + 1;
  for (auto it = MappingOf(first_token); it != mappings_.end() && it->first_token < end; ++it) {
    const absl::Span<const uint64_t> starts = it->chunk.starts();
    const auto from = static_cast<uint64_t>(std::max<int64_t>(first_token + 1 - it->first_token, 0));
    for (auto start = std::lower_bound(starts.begin(), starts.end(), from); start != starts.end(); ++start) {
      const int64_t token = it->first_token + static_cast<int64_t>(*start);
      if (token >= end) break;
      begins.push_back(token - first_token);
    }
  }
  return begins;
}

void TokenSamples::ReadStream(int64_t first, absl::Span<int64_t> out) const {
  auto it = MappingOf(first);
  while (!out.empty()) {
    const int64_t offset = first - it->first_token;
    const size_t count = std::min<size_t>(out.size(), static_cast<size_t>(it->chunk.num_tokens() - offset));
    it->chunk.Read(offset, out.first(count));
    out.remove_prefix(count);
    first += static_cast<int64_t>(count);
    ++it;
  }
}

void TokenSamples::Read(DataPart part, int64_t sample, absl::Span<int64_t> inputs, absl::Span<int64_t> targets,
                        absl::Span<int64_t> starts) const {
  if (has_documents_) return ReadDocuments(part, sample, inputs, targets, starts);
  std::vector<int64_t> tokens(static_cast<size_t>(options_.length) + 1);
  const int64_t first = FirstToken(part, sample);
  ReadStream(first, absl::MakeSpan(tokens));
  std::copy(tokens.begin(), tokens.end() - 1, inputs.begin());
  std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
  if (options_.separate_documents) SeparateDocuments(BeginsIn(first), targets, starts);
}

void TokenSamples::ReadDocuments(DataPart part, int64_t sample, absl::Span<int64_t> inputs, absl::Span<int64_t> targets,
                                 absl::Span<int64_t> starts) const {
  std::vector<int64_t> tokens(static_cast<size_t>(options_.length) + 1);
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
    if (!starts.empty()) std::fill_n(starts.begin() + at, count, static_cast<int64_t>(at));
    at += count;
  }
  if (!starts.empty()) std::fill(starts.begin() + at, starts.end(), static_cast<int64_t>(at));
}

}  // namespace trainyard
