#include "worker/data/text_encoder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "tokenizers/open_tokenizer.h"
#include "tokenizers/tokenizer.h"

namespace trainyard {
namespace {

class ByteEncoder final : public TextEncoder {
 public:
  absl::Status Append(absl::string_view text, bool begins, std::vector<int64_t>& tokens) const override {
    return AppendPlain(text, begins, tokens);
  }
  absl::Status AppendPlain(absl::string_view text, bool /*begins*/, std::vector<int64_t>& tokens) const override {
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    return absl::OkStatus();
  }
  void End(std::vector<int64_t>& tokens) const override { tokens.push_back(0); }
  bool has_end() const override { return true; }
  size_t NextCut(absl::string_view text, size_t from) const override {
    const size_t line_end = text.find('\n', from);
    return line_end == absl::string_view::npos ? text.size() : line_end + 1;
  }
  int64_t vocabulary() const override { return 256; }
  std::string identity() const override { return "bytes"; }
};

class FileEncoder final : public TextEncoder {
 public:
  explicit FileEncoder(std::unique_ptr<Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)), around_(tokenizer_->around()) {}

  absl::Status Append(absl::string_view text, bool begins, std::vector<int64_t>& tokens) const override {
    const size_t size = tokens.size();
    if (begins) tokens.insert(tokens.end(), around_.before.begin(), around_.before.end());
    absl::Status status = AppendPlain(text, begins, tokens);
    if (!status.ok()) tokens.resize(size);
    return status;
  }
  absl::Status AppendPlain(absl::string_view text, bool begins, std::vector<int64_t>& tokens) const override {
    std::vector<int32_t> ids;
    RETURN_IF_ERROR(tokenizer_->Append(text, {.continues = !begins}, ids));
    tokens.insert(tokens.end(), ids.begin(), ids.end());
    return absl::OkStatus();
  }
  void End(std::vector<int64_t>& tokens) const override {
    tokens.insert(tokens.end(), around_.after.begin(), around_.after.end());
    const int32_t end = tokenizer_->special().end;
    if (end >= 0 && (tokens.empty() || tokens.back() != end)) tokens.push_back(end);
  }
  bool has_end() const override { return tokenizer_->special().end >= 0; }
  size_t NextCut(absl::string_view text, size_t from) const override { return tokenizer_->NextSafeCut(text, from); }
  int64_t vocabulary() const override { return tokenizer_->vocabulary(); }
  std::string identity() const override {
    return absl::StrCat(tokenizer_->kind(), " ", tokenizer_->hash(), " ends with ", tokenizer_->special().end);
  }

 private:
  const std::unique_ptr<Tokenizer> tokenizer_;
  const TokensAround around_;
};

}  // namespace

std::unique_ptr<TextEncoder> NewByteEncoder() { return std::make_unique<ByteEncoder>(); }

absl::StatusOr<std::unique_ptr<TextEncoder>> OpenTextEncoder(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, OpenTokenizer(path));
  return std::make_unique<FileEncoder>(std::move(tokenizer));
}

}  // namespace trainyard
