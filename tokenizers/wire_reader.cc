#include "tokenizers/wire_reader.h"

namespace trainyard {

bool WireReader::Next() {
  if (!ok_ || rest_.empty()) return false;
  number_ = 0;
  bytes_ = {};
  uint64_t tag = 0;
  if (!Varint(tag) || (tag >> 3) == 0 || (tag >> 3) >= uint64_t{1} << 29) return Fail();
  field_ = static_cast<uint32_t>(tag >> 3);
  uint64_t size = 0;
  switch (tag & 7) {
    case 0:
      return Varint(number_) || Fail();
    case 1:
      return Take(8, bytes_) || Fail();
    case 2:
      return (Varint(size) && Take(size, bytes_)) || Fail();
    case 5:
      return Take(4, bytes_) || Fail();
    default:
      return Fail();  // groups, which nothing uses
  }
}

bool WireReader::Varint(uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

bool WireReader::Take(uint64_t size, absl::string_view& bytes) {
  if (size > rest_.size()) return false;
  bytes = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return true;
}

}  // namespace trainyard
