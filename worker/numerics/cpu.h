// Which vector instructions our kernels use: the best that the CPU has, or fewer where TRAINYARD_CPU asks for that.
// Every kernel that exists in several versions asks here, and so does everything that decides by the CPU (gemm.h,
// mkl_lever.h).
//
//   static const auto run = ForCpu(RunAvx512, RunAvx2, RunAny);
//
// [Note: TRAINYARD_CPU] A switch for tests, so that they run on any machine as they would on a lesser one:
//
//   avx2   as on a CPU with AVX2 and FMA but without AVX-512
//   none   as on a CPU with neither; our code is then what the compiler makes for every x86-64
//
// It never turns on what the CPU does not have. The kernels of LibTorch, MKL and oneDNN have variables of their own,
// which tests/CMakeLists.txt sets together with it.
//
// Thread-safe. Constant in a process.
#pragma once

namespace trainyard {

enum class VectorCode { kAny, kAvx2, kAvx512 };

// kAvx512: F, DQ, BW and VL; kAvx2: with FMA. A TRAINYARD_CPU that is neither of the above ends the process.
VectorCode BestVectorCode();

// Whether TRAINYARD_CPU is set.
bool CpuIsRestricted();

// Whether there are instructions that multiply bf16 (AVX512-BF16) and they may be used.
bool CpuMultipliesBfloat16();

// The version of a function for this CPU, or for fewer instructions than it has.
template <typename Function>
Function* ForCpu(Function* avx512, Function* avx2, Function* any, VectorCode max_code = VectorCode::kAvx512) {
  const VectorCode best = BestVectorCode() < max_code ? BestVectorCode() : max_code;
  return best == VectorCode::kAvx512 ? avx512 : best == VectorCode::kAvx2 ? avx2 : any;
}

}  // namespace trainyard
