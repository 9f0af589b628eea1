#include "worker/model/ops/dropout_kernel.h"

#include <algorithm>

#include "worker/numerics/vector_loops.h"

namespace trainyard {
namespace {

// The loop over lanes is vectorised once the loop over rounds is unrolled.
TRAINYARD_INLINE void Encrypt(const PhiloxKey& key, const PhiloxCounter& counter, uint32_t* __restrict bits) {
  for (uint32_t lane = 0; lane < kPhiloxLanes; ++lane) {
    uint32_t a = counter[0] + lane, b = counter[1], c = counter[2], d = counter[3];
    uint32_t key_b = key[0], key_d = key[1];
#pragma GCC unroll 10
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const uint64_t product_a = uint64_t{a} * kPhiloxFactors[0], product_c = uint64_t{c} * kPhiloxFactors[1];
      a = static_cast<uint32_t>(product_c >> 32) ^ b ^ key_b;
      b = static_cast<uint32_t>(product_c);
      c = static_cast<uint32_t>(product_a >> 32) ^ d ^ key_d;
      d = static_cast<uint32_t>(product_a);
      key_b += kPhiloxKeySteps[0];
      key_d += kPhiloxKeySteps[1];
    }
    bits[lane] = a;
    bits[kPhiloxLanes + lane] = b;
    bits[2 * kPhiloxLanes + lane] = c;
    bits[3 * kPhiloxLanes + lane] = d;
  }
}

// Elements in memory and the type in which they are multiplied.
struct Fp64 {
  using Memory = double;
  using Number = double;
  static TRAINYARD_INLINE double Read(double value) { return value; }
  static TRAINYARD_INLINE double Write(double value) { return value; }
};
struct Fp32 {
  using Memory = float;
  using Number = float;
  static TRAINYARD_INLINE float Read(float value) { return value; }
  static TRAINYARD_INLINE float Write(float value) { return value; }
};
struct Bf16 {
  using Memory = uint16_t;
  using Number = float;
  static TRAINYARD_INLINE float Read(uint16_t bits) { return Bfloat16ToFloat(bits); }
  static TRAINYARD_INLINE uint16_t Write(float value) { return NearestBfloat16(value); }
};
struct Fp16 {
  using Memory = uint16_t;
  using Number = float;
  static TRAINYARD_INLINE float Read(uint16_t bits) { return HalfToFloat(bits); }
  static TRAINYARD_INLINE uint16_t Write(float value) { return NearestHalf(value); }
};

// Multiplies dropped elements by 0 instead of setting them to 0, so that a NaN stays NaN.
template <typename Type>
TRAINYARD_INLINE void DropElements(const DropoutRun& run, const uint32_t* bits, int64_t first, int64_t size) {
  using Memory = typename Type::Memory;
  using Number = typename Type::Number;
  const Memory* x = static_cast<const Memory*>(run.x) + first;
  Memory* y = static_cast<Memory*>(run.y) + first;
  const Number scale = static_cast<Number>(run.scale);
  for (int64_t i = 0; i < size; ++i) {
    y[i] = Type::Write(Type::Read(x[i]) * (bits[i] < run.keep_below ? scale : Number{0}));
  }
}

template <typename Type>
TRAINYARD_INLINE void RunOf(const DropoutRun& run) {
  alignas(64) uint32_t bits[kPhiloxBlock];
  for (int64_t i = 0; i < run.size;) {
    const uint64_t position = run.position + static_cast<uint64_t>(i), block = position / kPhiloxBlock;
    const uint64_t number = block * kPhiloxLanes;
    Encrypt(run.key,
            {static_cast<uint32_t>(number), run.counter[1] | static_cast<uint32_t>(number >> 32), run.counter[2],
             run.counter[3]},
            bits);
    const int64_t skipped = static_cast<int64_t>(position % kPhiloxBlock);
    const int64_t size = std::min(kPhiloxBlock - skipped, run.size - i);
    // A constant number of elements makes a faster loop.
    size == kPhiloxBlock ? DropElements<Type>(run, bits, i, kPhiloxBlock)
                         : DropElements<Type>(run, bits + skipped, i, size);
    i += size;
  }
}

TRAINYARD_INLINE void RunAll(const DropoutRun& run) {
  switch (run.type) {
    case at::kDouble:
      return RunOf<Fp64>(run);
    case at::kBFloat16:
      return RunOf<Bf16>(run);
    case at::kHalf:
      return RunOf<Fp16>(run);
    default:
      return RunOf<Fp32>(run);
  }
}

// The same loops, compiled for three kinds of CPU.
TRAINYARD_AVX512 void DropAvx512(const DropoutRun& run) { RunAll(run); }
TRAINYARD_AVX2 void DropAvx2(const DropoutRun& run) { RunAll(run); }
void DropAny(const DropoutRun& run) { RunAll(run); }

TRAINYARD_AVX512 void PhiloxAvx512(const PhiloxKey& key, const PhiloxCounter& counter, PhiloxBits& bits) {
  Encrypt(key, counter, bits.data());
}
TRAINYARD_AVX2 void PhiloxAvx2(const PhiloxKey& key, const PhiloxCounter& counter, PhiloxBits& bits) {
  Encrypt(key, counter, bits.data());
}
void PhiloxAny(const PhiloxKey& key, const PhiloxCounter& counter, PhiloxBits& bits) {
  Encrypt(key, counter, bits.data());
}

}  // namespace

void RunPhilox(const PhiloxKey& key, const PhiloxCounter& counter, PhiloxBits& bits) {
  static const auto run = ForCpu(PhiloxAvx512, PhiloxAvx2, PhiloxAny);
  run(key, counter, bits);
}

void RunDropout(const DropoutRun& run) {
  static const auto drop = ForCpu(DropAvx512, DropAvx2, DropAny);
  drop(run);
}

}  // namespace trainyard
