#include "worker/numerics/adamw_kernel.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "worker/numerics/sixteen_bit.h"

#define TRAINYARD_INLINE inline __attribute__((always_inline))

namespace trainyard {
namespace {

constexpr int64_t kBlock = 512;               // the converted copies of a block fit the first-level cache
constexpr int64_t kGrain = int64_t{1} << 15;  // fewer elements are not worth another thread

// Makes the random bits of an element differ among the three tensors.
enum Stream : uint32_t { kMasterStream = 0, kExpAvgStream = 0x68bc21ebu, kExpAvgSqStream = 0x02e5be93u };

template <typename C>
struct ConstantsOf {
  explicit ConstantsOf(const AdamWPass::Constants& c)
      : scale(static_cast<C>(c.scale)),
        clip(static_cast<C>(c.clip_value)),
        keep(static_cast<C>(c.keep)),
        beta1(static_cast<C>(c.beta1)),
        beta2(static_cast<C>(c.beta2)),
        one_minus_beta1(static_cast<C>(1 - c.beta1)),
        one_minus_beta2(static_cast<C>(1 - c.beta2)),
        eps(static_cast<C>(c.eps)),
        step_size(static_cast<C>(c.step_size)),
        root_scale(static_cast<C>(c.root_scale)) {}
  C scale, clip, keep, beta1, beta2, one_minus_beta1, one_minus_beta2, eps, step_size, root_scale;
};

// Update uses only additions, products, a square root and a quotient, each rounded once by IEEE 754's rules, so its
// result is the same on every CPU. The file is compiled without contraction of these operations.
template <typename C, bool kClips>
TRAINYARD_INLINE void Update(C* w, C* m, C* v, const C* g, int64_t size, const ConstantsOf<C>& c) {
  for (int64_t i = 0; i < size; ++i) {
    C x = g[i] * c.scale;
    if (kClips) x = std::min(std::max(x, -c.clip), c.clip);
    const C mean = c.beta1 * m[i] + c.one_minus_beta1 * x;
    const C square = c.beta2 * v[i] + c.one_minus_beta2 * (x * x);
    m[i] = mean;
    v[i] = square;
    w[i] = c.keep * w[i] - c.step_size * mean / (std::sqrt(square) * c.root_scale + c.eps);
  }
}

TRAINYARD_INLINE void Load(at::ScalarType type, const std::byte* from, int64_t first, int64_t size, float* to) {
  if (type == at::kFloat) {
    std::copy_n(reinterpret_cast<const float*>(from) + first, size, to);
    return;
  }
  const uint16_t* bits = reinterpret_cast<const uint16_t*>(from) + first;
  if (type == at::kBFloat16) {
    for (int64_t i = 0; i < size; ++i) to[i] = Bfloat16ToFloat(bits[i]);
  } else {
    for (int64_t i = 0; i < size; ++i) to[i] = HalfToFloat(bits[i]);
  }
}

TRAINYARD_INLINE void StoreNearest(at::ScalarType type, const float* from, std::byte* to, int64_t first, int64_t size) {
  if (type == at::kFloat) {
    std::copy_n(from, size, reinterpret_cast<float*>(to) + first);
    return;
  }
  uint16_t* bits = reinterpret_cast<uint16_t*>(to) + first;
  if (type == at::kBFloat16) {
    for (int64_t i = 0; i < size; ++i) bits[i] = NearestBfloat16(from[i]);
  } else {
    for (int64_t i = 0; i < size; ++i) bits[i] = NearestHalf(from[i]);
  }
}

TRAINYARD_INLINE void StoreStochastic(const float* from, std::byte* to, int64_t first, int64_t size, uint32_t key,
                                      int64_t element) {
  uint16_t* bits = reinterpret_cast<uint16_t*>(to) + first;
  const uint32_t low = static_cast<uint32_t>(element);
  for (int64_t i = 0; i < size; ++i) {
    bits[i] = StochasticBfloat16(from[i], HashElement(key, low + static_cast<uint32_t>(i)));
  }
}

// A tensor of a block: used in place if it has the type of the computation, otherwise in a copy.
template <typename C>
struct Block {
  TRAINYARD_INLINE C* Open(at::ScalarType type, std::byte* from, int64_t first, int64_t size) {
    if constexpr (std::is_same_v<C, double>) {
      return reinterpret_cast<double*>(from) + first;
    } else {
      if (type == at::kFloat) return reinterpret_cast<float*>(from) + first;
      Load(type, from, first, size, copy);
      return copy;
    }
  }
  alignas(64) C copy[std::is_same_v<C, double> ? 1 : kBlock];
};

// The copies of a block that must be stored in bf16; null: updated in place.
struct Copies {
  const float *w = nullptr, *m = nullptr, *v = nullptr;
};

// Stores `size` elements of the pass from `start` on.
TRAINYARD_INLINE void StoreRounded(const AdamWPass& pass, int64_t start, int64_t size, const Copies& copies) {
  if (copies.w == nullptr && copies.m == nullptr && copies.v == nullptr) return;
  for (int64_t done = 0; done < size;) {
    const auto [number, count] = NumbersFrom(pass.runs, pass.first_element + start + done, size - done);
    const int64_t first = start + done;
    // Numbers from 2^32 on get a different key.
    const uint32_t key = HashElement(static_cast<uint32_t>(pass.rounding_key ^ pass.rounding_key >> 32),
                                     static_cast<uint32_t>(static_cast<uint64_t>(number) >> 32));
    if (copies.m != nullptr) {
      StoreStochastic(copies.m + done, pass.exp_avg, first, count, key ^ kExpAvgStream, number);
    }
    if (copies.v != nullptr) {
      StoreStochastic(copies.v + done, pass.exp_avg_sq, first, count, key ^ kExpAvgSqStream, number);
    }
    if (copies.w != nullptr) {
      StoreStochastic(copies.w + done, pass.master, first, count, key ^ kMasterStream, number);
    }
    done += count;
  }
}

template <typename C>
TRAINYARD_INLINE void RunOf(const AdamWPass& pass, int64_t first, int64_t last) {
  const ConstantsOf<C> constants(pass.constants);
  Block<C> w_block, m_block, v_block, g_block;
  for (int64_t start = first; start < last; start += kBlock) {
    const int64_t size = std::min(kBlock, last - start);
    C* w = w_block.Open(pass.master_type, pass.master, start, size);
    C* m = m_block.Open(pass.state_type, pass.exp_avg, start, size);
    C* v = v_block.Open(pass.state_type, pass.exp_avg_sq, start, size);
    const C* g = g_block.Open(pass.gradient_type, const_cast<std::byte*>(pass.gradient), start, size);
    if (pass.constants.clip_value > 0) {
      Update<C, true>(w, m, v, g, size, constants);
    } else {
      Update<C, false>(w, m, v, g, size, constants);
    }
    if constexpr (std::is_same_v<C, float>) {
      StoreRounded(pass, start, size,
                   {.w = w == w_block.copy ? w : nullptr,
                    .m = m == m_block.copy ? m : nullptr,
                    .v = v == v_block.copy ? v : nullptr});
      if (pass.weight != nullptr) StoreNearest(pass.weight_type, w, pass.weight, start, size);
    }
  }
}

TRAINYARD_INLINE void RunEither(const AdamWPass& pass, int64_t first, int64_t last) {
  pass.master_type == at::kDouble ? RunOf<double>(pass, first, last) : RunOf<float>(pass, first, last);
}

// The same loops for three kinds of CPU.
__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512"))) void RunAvx512(
    const AdamWPass& pass, int64_t first, int64_t last) {
  RunEither(pass, first, last);
}
__attribute__((target("avx2"))) void RunAvx2(const AdamWPass& pass, int64_t first, int64_t last) {
  RunEither(pass, first, last);
}
void RunAny(const AdamWPass& pass, int64_t first, int64_t last) { RunEither(pass, first, last); }

}  // namespace

void RunAdamW(const AdamWPass& pass, VectorCode max_code) {
  auto* run = ForCpu(RunAvx512, RunAvx2, RunAny, max_code);
  at::parallel_for(0, pass.size, kGrain, [&](int64_t first, int64_t last) { run(pass, first, last); });
}

uint64_t RoundingKey(uint64_t seed, uint64_t step, uint64_t parameter) {
  uint64_t key = 0;
  for (uint64_t part : {seed, step, parameter}) {  // SplitMix64's step for each
    key += part + 0x9e3779b97f4a7c15u;
    key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9u;
    key = (key ^ key >> 27) * 0x94d049bb133111ebu;
    key ^= key >> 31;
  }
  return key;
}

}  // namespace trainyard
