#include "worker/saving/sentences.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr int64_t kSentenceBytes = 1024;  // including a terminating zero

}  // namespace

std::string RankSentence(const StartOrder& order, absl::string_view what) {
  return absl::StrCat("rank ", order.rank, " on ", order.host, ": ", what);
}

absl::StatusOr<std::vector<std::string>> ShareSentences(absl::string_view own, Communicator& communicator) {
  at::Tensor sentence = at::zeros({kSentenceBytes}, at::kByte);
  at::Tensor all = at::zeros({communicator.world_size() * kSentenceBytes}, at::kByte);
  std::memcpy(sentence.mutable_data_ptr(), own.data(), std::min<size_t>(own.size(), kSentenceBytes - 1));
  RETURN_IF_ERROR(communicator.AllGather(all, sentence)->Wait());
  std::vector<std::string> sentences;
  for (int rank = 0; rank < communicator.world_size(); ++rank) {
    const char* text = static_cast<const char*>(all.const_data_ptr()) + rank * kSentenceBytes;
    if (*text != 0) sentences.emplace_back(text);
  }
  return sentences;
}

}  // namespace trainyard
