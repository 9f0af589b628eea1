// Chooses the vector instructions of our kernels: the best that the CPU has, or fewer if TRAINYARD_CPU is set. All
// kernels that exist in several versions use this choice, and so do all decisions that depend on the CPU (gemm.h,
// mkl_lever.h).
//
//   static const auto run = ForCpu(RunAvx512, RunAvx2, RunAny);
//
// [Note: TRAINYARD_CPU] An environment variable for tests, which makes a machine act as if its CPU had fewer features:
//
//   avx2   like a CPU with AVX2 and FMA but without AVX-512
//   none   like a CPU with neither; our code is then what the compiler generates for every x86-64
//   amd    like a CPU that is not Intel's: MKL then chooses other kernels (mkl_lever.h), and all features are used
//
// It never enables instructions that the CPU does not have. The kernels of LibTorch, MKL and oneDNN have variables of
// their own, which tests/CMakeLists.txt sets together with this one.
//
// Thread-safe. The choice is constant in a process.
#pragma once

namespace trainyard {

enum class VectorCode { kAny, kAvx2, kAvx512 };

// kAvx512: the parts F, DQ, BW and VL of AVX-512; kAvx2: AVX2 with FMA and F16C. A value of TRAINYARD_CPU other than
// those above ends the process.
VectorCode BestVectorCode();

// Whether TRAINYARD_CPU takes features away.
bool CpuIsRestricted();

// Whether the CPU is Intel's. False if TRAINYARD_CPU is amd.
bool CpuIsIntel();

// Whether the CPU has instructions that multiply bf16 (AVX512-BF16), and TRAINYARD_CPU does not forbid them.
bool CpuMultipliesBfloat16();

// Chooses the version of a function for this CPU, limited to `max_code`.
template <typename Function>
Function* ForCpu(Function* avx512, Function* avx2, Function* any, VectorCode max_code = VectorCode::kAvx512) {
  const VectorCode best = BestVectorCode() < max_code ? BestVectorCode() : max_code;
  return best == VectorCode::kAvx512 ? avx512 : best == VectorCode::kAvx2 ? avx2 : any;
}

}  // namespace trainyard
