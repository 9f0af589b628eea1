#include "worker/data/byte_samples.h"

#include <algorithm>
#include <vector>

namespace trainyard {

int64_t SamplesInStream(int64_t num_tokens, int64_t length) { return num_tokens < 1 ? 0 : (num_tokens - 1) / length; }

ByteSamples::ByteSamples(const Corpus& corpus, int64_t length, size_t group, bool separate_documents)
    : corpus_(corpus), group_(corpus.groups()[group]), length_(length), separate_documents_(separate_documents) {
  int64_t begin = group_.begin;
  for (size_t file = group_.first_file; separate_documents && file < group_.end_file; ++file) {
    file_begins_.push_back(begin);
    begin += corpus.files()[file].num_bytes;
  }
}

int64_t ByteSamples::num_samples(DataPart part) const {
  const int64_t train = group_.num_train_bytes;
  return SamplesInStream(part == DataPart::kTraining ? train : group_.num_bytes - train, length_);
}

int64_t ByteSamples::FirstByte(DataPart part, int64_t sample) const {
  return group_.begin + (part == DataPart::kTraining ? 0 : group_.num_train_bytes) + sample * length_;
}

absl::Span<const int64_t> ByteSamples::FilesIn(int64_t first_byte) const {
  const auto first = std::upper_bound(file_begins_.begin(), file_begins_.end(), first_byte);
  const auto end = std::upper_bound(first, file_begins_.end(), first_byte + length_);
  return absl::MakeConstSpan(file_begins_)
      .subspan(static_cast<size_t>(first - file_begins_.begin()), static_cast<size_t>(end - first));
}

void ByteSamples::Read(DataPart part, int64_t sample, absl::Span<int64_t> inputs, absl::Span<int64_t> targets,
                       absl::Span<int64_t> starts) const {
  std::vector<uint8_t> bytes(static_cast<size_t>(length_) + 1);
  const int64_t first = FirstByte(part, sample);
  corpus_.Read(first, absl::MakeSpan(bytes));
  std::copy(bytes.begin(), bytes.end() - 1, inputs.begin());
  std::copy(bytes.begin() + 1, bytes.end(), targets.begin());
  if (!separate_documents_) return;
  std::vector<int64_t> begins;
  for (const int64_t begin : FilesIn(first)) begins.push_back(begin - first);
  SeparateDocuments(begins, targets, starts);
}

int64_t ByteSamples::LossTokens(DataPart part, int64_t sample) const {
  if (!separate_documents_) return length_;
  return length_ - static_cast<int64_t>(FilesIn(FirstByte(part, sample)).size());
}

void SeparateDocuments(absl::Span<const int64_t> begins, absl::Span<int64_t> targets, absl::Span<int64_t> starts) {
  int64_t start = 0;
  size_t next = 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    if (next < begins.size() && begins[next] == static_cast<int64_t>(i)) start = begins[next++];
    starts[i] = start;
  }
  for (const int64_t begin : begins) targets[static_cast<size_t>(begin - 1)] = kNoTarget;
}

}  // namespace trainyard
