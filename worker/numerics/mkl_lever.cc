#include "worker/numerics/mkl_lever.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/numerics/cpu.h"

namespace trainyard {
namespace {

std::atomic<bool> g_reports_intel{false};

// Large enough for the kernels' speeds to differ; takes about a millisecond.
constexpr int64_t kMatrixSize = 384;
constexpr int kNumTries = 4;

}  // namespace

bool MklLeverHasEffect() {
  return !__builtin_cpu_is("intel") && BestVectorCode() >= VectorCode::kAvx2 && !CpuIsRestricted();
}

double TimeProducts(int64_t size, int tries) {
  c10::NoGradGuard no_grad;
  at::Tensor a = at::ones({size, size});
  double best_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < tries; ++i) {
    auto start = std::chrono::steady_clock::now();
    at::Tensor product = at::mm(a, a);
    best_s = std::min(best_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  const auto n = static_cast<double>(size);
  return 2e-9 * n * n * n / best_s;
}

std::string SetMklLever(MklLever choice) {
  const bool avx512 = BestVectorCode() == VectorCode::kAvx512, avx2 = BestVectorCode() >= VectorCode::kAvx2;
  std::string kernels;
  if (__builtin_cpu_is("intel")) {
    kernels = "MKL's own choice (the CPU is Intel's and needs no lever)";
  } else if (choice == MklLever::kOff) {
    kernels = "MKL's own choice (the lever is off)";
  } else if (avx512 || (choice == MklLever::kOn && avx2)) {
    g_reports_intel = true;
    kernels = absl::StrCat("MKL's ", avx512 ? "AVX-512" : "AVX2", " kernels, enabled by the lever");
  } else {
    kernels =
        absl::StrCat("MKL's own choice (the CPU has no AVX-512", choice == MklLever::kOn ? " and no AVX2" : "", ")");
  }
  return absl::StrFormat("matrix products: %s; %.0f GFLOP/s in fp32", kernels, TimeProducts(kMatrixSize, kNumTries));
}

bool MklLeverIsOn() { return g_reports_intel; }

// Must return true on an Intel CPU too: there the flag is never set, and MKL must still get the correct answer.
extern "C" __attribute__((visibility("default"))) int mkl_serv_intel_cpu_true() {
  return g_reports_intel || __builtin_cpu_is("intel");
}

}  // namespace trainyard
