#include "worker/data/byte_samples.h"

#include <algorithm>
#include <vector>

namespace trainyard {

int64_t SamplesInStream(int64_t num_tokens, int64_t length) { return num_tokens < 1 ? 0 : (num_tokens - 1) / length; }

int64_t ByteSamples::num_samples(DataPart part) const {
  return SamplesInStream(part == DataPart::kTraining ? corpus_.num_train_bytes() : corpus_.num_validation_bytes(),
                         length_);
}

void ByteSamples::Read(DataPart part, int64_t sample, absl::Span<int64_t> inputs, absl::Span<int64_t> targets) const {
  std::vector<uint8_t> bytes(static_cast<size_t>(length_) + 1);
  const int64_t first = part == DataPart::kTraining ? 0 : corpus_.num_train_bytes();
  corpus_.Read(first + sample * length_, absl::MakeSpan(bytes));
  std::copy(bytes.begin(), bytes.end() - 1, inputs.begin());
  std::copy(bytes.begin() + 1, bytes.end(), targets.begin());
}

}  // namespace trainyard
