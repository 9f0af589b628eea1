#include "worker/data/text_encoder.h"

namespace trainyard {
namespace {

class ByteEncoder final : public TextEncoder {
 public:
  absl::Status Append(absl::string_view text, bool /*begins*/, std::vector<int64_t>& tokens) const override {
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    return absl::OkStatus();
  }
  int64_t end_of_document() const override { return 0; }
  int64_t vocabulary() const override { return 256; }
  std::string identity() const override { return "bytes"; }
};

}  // namespace

std::unique_ptr<TextEncoder> NewByteEncoder() { return std::make_unique<ByteEncoder>(); }

}  // namespace trainyard
