#include "worker/numerics/cpu.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace trainyard {
namespace {

VectorCode CodeOfCpu() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return avx512 ? VectorCode::kAvx512 : avx2 ? VectorCode::kAvx2 : VectorCode::kAny;
}

VectorCode MaxAllowedCode() {
  const char* value = std::getenv("TRAINYARD_CPU");
  if (value == nullptr || *value == '\0' || std::strcmp(value, "amd") == 0) return VectorCode::kAvx512;
  if (std::strcmp(value, "avx2") == 0) return VectorCode::kAvx2;
  if (std::strcmp(value, "none") == 0) return VectorCode::kAny;
  std::fprintf(stderr, "TRAINYARD_CPU is '%s'; expected avx2, none or amd, or the variable must be unset\n", value);
  std::_Exit(2);
}

}  // namespace

VectorCode BestVectorCode() {
  static const VectorCode best = std::min(CodeOfCpu(), MaxAllowedCode());
  return best;
}

bool CpuIsRestricted() { return MaxAllowedCode() != VectorCode::kAvx512; }

bool CpuIsIntel() {
  static const bool is_intel = [] {
    const char* value = std::getenv("TRAINYARD_CPU");
    return __builtin_cpu_is("intel") && (value == nullptr || std::strcmp(value, "amd") != 0);
  }();
  return is_intel;
}

bool CpuMultipliesBfloat16() { return BestVectorCode() == VectorCode::kAvx512 && __builtin_cpu_supports("avx512bf16"); }

}  // namespace trainyard
