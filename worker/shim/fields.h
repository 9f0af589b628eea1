// Reads and writes the zero-terminated fields of a record (records.h) in memory that the caller owns. Single-threaded.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace trainyard::shim {

// Collects fields in a fixed buffer; a field that does not fit is left out entirely.
class FieldWriter {
 public:
  FieldWriter(char* buffer, size_t capacity) : buffer_(buffer), capacity_(capacity) {}

  void Text(const char* name, const char* value, size_t value_size);
  void Text(const char* name, const char* value);
  void Number(const char* name, uint64_t value);

  const char* data() const { return buffer_; }
  size_t size() const { return size_; }

 private:
  char* buffer_;
  size_t capacity_;
  size_t size_ = 0;
};

// Iterates over the fields of `data`, which must end with a zero byte.
class FieldReader {
 public:
  FieldReader(char* data, size_t size) : next_(data), end_(data + size) {}

  // Returns false at the end. `name` and `value` point into the data, in which the first `=` of the field becomes a
  // zero byte.
  bool Next(const char** name, char** value);

 private:
  char* next_;
  char* end_;
};

}  // namespace trainyard::shim
