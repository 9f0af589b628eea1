#include "worker/shim/fields.h"

#include <string.h>

namespace trainyard::shim {

void FieldWriter::Text(const char* name, const char* value, size_t value_size) {
  size_t name_size = strlen(name);
  if (size_ + name_size + value_size + 2 > capacity_) return;
  char* at = buffer_ + size_;
  memcpy(at, name, name_size);
  at[name_size] = '=';
  memcpy(at + name_size + 1, value, value_size);
  // A zero byte inside a value would end the field too early.
  for (size_t i = 0; i < value_size; ++i) {
    if (at[name_size + 1 + i] == '\0') at[name_size + 1 + i] = ' ';
  }
  at[name_size + 1 + value_size] = '\0';
  size_ += name_size + value_size + 2;
}

void FieldWriter::Text(const char* name, const char* value) { Text(name, value, strlen(value)); }

void FieldWriter::Number(const char* name, uint64_t value) {
  char digits[24];
  size_t at = sizeof digits;
  do {
    digits[--at] = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0);
  Text(name, digits + at, sizeof digits - at);
}

bool FieldReader::Next(const char** name, char** value) {
  while (next_ < end_) {
    char* field = next_;
    next_ += strlen(field) + 1;
    char* equals = strchr(field, '=');
    if (equals == nullptr) continue;
    *equals = '\0';
    *name = field;
    *value = equals + 1;
    return true;
  }
  return false;
}

}  // namespace trainyard::shim
