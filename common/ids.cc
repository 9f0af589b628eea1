#include "common/ids.h"

#include <sys/random.h>

#include <cstdlib>

namespace trainyard {
namespace {

void FillRandom(void* out, size_t size) {
  // getrandom waits until the pool is ready, and then always returns up to 256 bytes completely.
  if (getrandom(out, size, 0) != static_cast<ssize_t>(size)) std::abort();
}

}  // namespace

std::string RandomId(int length) {
  constexpr char kAlphabet[] = "abcdefghijklmnopqrstuvwxyz234567";
  std::string id(static_cast<size_t>(length), '\0');
  FillRandom(id.data(), id.size());
  for (char& c : id) c = kAlphabet[static_cast<unsigned char>(c) % 32];
  return id;
}

Incarnation RandomIncarnation() {
  uint64_t value = 0;
  while (value == 0) FillRandom(&value, sizeof value);
  return Incarnation(value);
}

}  // namespace trainyard
