// The beginning of the CUDA source of all kernels (kernels.cc): types of elements, and reads of 16 bytes.
#pragma once

namespace trainyard {

inline constexpr char kKernelPrelude[] = R"cuda(
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;

// The types of elements. Store rounds to nearest, ties to even. Exp is the fast form where elements have 16 bits, whose
// relative error of 2e-6 for the arguments above -16 that matter is far below that of the elements.
struct Float {
  typedef float Element;
  static __device__ float Load(float value) { return value; }
  static __device__ float Store(float value) { return value; }
  static __device__ float Exp(float value) { return expf(value); }
};
struct Bfloat16 {
  typedef u16 Element;
  static __device__ float Load(u16 bits) { return __uint_as_float(static_cast<u32>(bits) << 16); }
  static __device__ u16 Store(float value) {
#if __CUDA_ARCH__ >= 900
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    if (value != value) return 0x7fc0;
    const u32 bits = __float_as_uint(value);
    return static_cast<u16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
  }
  static __device__ float Exp(float value) { return __expf(value); }
};
struct Half {
  typedef u16 Element;
  static __device__ float Load(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  static __device__ u16 Store(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
  static __device__ float Exp(float value) { return __expf(value); }
};

// Neighbouring elements that are read and written at once.
template <typename Type>
struct alignas(16) Pack {
  static constexpr int kCount = 16 / sizeof(typename Type::Element);
  typename Type::Element elements[kCount];
  __device__ float operator[](int i) const { return Type::Load(elements[i]); }
};

// Returns the sum to every lane of the warp, with the same bits.
static __device__ float SumOfLanes(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}
)cuda";

}  // namespace trainyard
