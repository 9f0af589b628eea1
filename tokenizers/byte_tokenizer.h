// The tokenizer with one token per byte: the token is the value of the byte. It works for any text in any encoding and
// needs no file. Stateless and thread-safe.
//
//   std::vector<int32_t> tokens = *ByteTokenizer().Encode("A");   // {65}
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tokenizers/tokenizer.h"

namespace trainyard {

class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int64_t kVocabulary = 256;

  // Never fails.
  absl::Status Append(absl::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids) const override;
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special = false) const override;
  int64_t vocabulary() const override { return kVocabulary; }
  SpecialIds special() const override { return {}; }
  int32_t IdOf(absl::string_view token) const override;
  std::string TokenOf(int32_t id) const override;
  size_t NextSafeCut(absl::string_view text, size_t from) const override;
  absl::string_view kind() const override { return "bytes"; }
  const std::string& hash() const override;
};

}  // namespace trainyard
