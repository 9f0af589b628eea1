// Reads a message in protobuf's wire format, field by field, without a schema. It stops at the first field that is not
// valid. The views that it returns refer to the message.
//
//   WireReader reader(bytes);
//   while (reader.Next()) if (reader.field() == 1) name = reader.bytes();
//   if (!reader.ok()) ...
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace trainyard {

class WireReader {
 public:
  explicit WireReader(absl::string_view message) : rest_(message) {}

  // Reads the next field. Returns false at the end of the message, and after an error.
  bool Next();
  bool ok() const { return ok_; }

  uint32_t field() const { return field_; }
  // The value of a field; 0 or empty for a field of another type. bytes() includes fields of fixed width.
  uint64_t number() const { return number_; }
  absl::string_view bytes() const { return bytes_; }

 private:
  bool Varint(uint64_t& value);
  bool Take(uint64_t size, absl::string_view& bytes);
  bool Fail() { return ok_ = false; }

  absl::string_view rest_;
  bool ok_ = true;
  uint32_t field_ = 0;
  uint64_t number_ = 0;
  absl::string_view bytes_;
};

}  // namespace trainyard
