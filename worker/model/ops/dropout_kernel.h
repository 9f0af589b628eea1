// The loops of dropout.h, over raw memory, and its generator: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011. Philox encrypts a counter, so each number can be computed without those
// before it. It uses only integers, so all CPUs compute the same bits. Thread-safe, without state.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>

namespace trainyard {

using PhiloxKey = std::array<uint32_t, 2>;
using PhiloxCounter = std::array<uint32_t, 4>;  // the least significant word first

inline constexpr int kPhiloxRounds = 10;
inline constexpr std::array<uint32_t, 2> kPhiloxFactors = {0xd2511f53, 0xcd9e8d57};
inline constexpr std::array<uint32_t, 2> kPhiloxKeySteps = {0x9e3779b9, 0xbb67ae85};

// Element e of a sample uses word e / 16 % 4 of the output for counter 16 (e / 64) + e % 16. Thus the vectors of the
// four words of 16 counters are the random bits of 64 elements, in their order.
inline constexpr int64_t kPhiloxLanes = 16;
inline constexpr int64_t kPhiloxBlock = 4 * kPhiloxLanes;
using PhiloxBits = std::array<uint32_t, kPhiloxBlock>;

// Computes the words of `counter` and of the 15 counters after it: word w of counter i is at 16 w + i. REQUIRES:
// counter[0] <= 2^32 - 16.
void RunPhilox(const PhiloxKey& key, const PhiloxCounter& counter, PhiloxBits& bits);

// Elements that follow one another in memory and in their sample.
struct DropoutRun {
  at::ScalarType type = at::kFloat;  // fp64, fp32, bf16 or fp16
  const void* x = nullptr;
  void* y = nullptr;  // may be x
  int64_t size = 0;
  uint64_t position = 0;  // of the first element in its sample; below 2^42
  PhiloxKey key = {};
  PhiloxCounter counter = {};  // of position 0; word 0 and the low 8 bits of word 1 are 0
  uint32_t keep_below = 0;     // an element is kept if its bits are below this
  double scale = 1;            // of kept elements; others are multiplied by 0
};
void RunDropout(const DropoutRun& run);

}  // namespace trainyard
