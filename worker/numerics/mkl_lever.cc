#include "worker/numerics/mkl_lever.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/numerics/cpu.h"

namespace trainyard {
namespace {

std::atomic<bool> g_reports_intel{false};

// Large enough for the kernels' speeds to differ; takes about two milliseconds on one thread.
constexpr ProductShape kSmallShape = {.rows = 128, .in = 256, .out = 256};
constexpr int kNumTries = 2;

}  // namespace

double SecondsNow() {
  timespec now = {};
  clock_gettime(at::get_num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

bool MklLeverHasEffect() { return !CpuIsIntel() && BestVectorCode() >= VectorCode::kAvx2 && !CpuIsRestricted(); }

double TimeProducts(const ProductShape& shape) {
  c10::NoGradGuard no_grad;
  const at::Tensor x = at::ones({shape.rows, shape.in}), w = at::ones({shape.in, shape.out});
  const at::Tensor grad = at::ones({shape.rows, shape.out});
  const std::pair<at::Tensor, at::Tensor> forms[] = {{x, w}, {grad, w.t()}, {x.t(), grad}};
  double seconds = 0;
  for (const auto& [a, b] : forms) {
    const double start = SecondsNow();
    const at::Tensor product = at::mm(a, b);
    seconds += SecondsNow() - start;
  }
  return seconds;
}

std::string UseMklLever(MklLever choice) {
  const bool avx512 = BestVectorCode() == VectorCode::kAvx512, avx2 = BestVectorCode() >= VectorCode::kAvx2;
  std::string kernels;
  if (CpuIsIntel()) {
    kernels = "MKL's own choice (the CPU is Intel's)";
  } else if (choice == MklLever::kOff) {
    kernels = "MKL's own choice (mkl)";
  } else if (avx512 || (choice == MklLever::kOn && avx2)) {
    g_reports_intel = true;
    kernels = absl::StrCat("MKL's ", avx512 ? "AVX-512" : "AVX2", " kernels for CPUs of Intel (mkl_intel)");
  } else {
    kernels =
        absl::StrCat("MKL's own choice (the CPU has no AVX-512", choice == MklLever::kOn ? " and no AVX2" : "", ")");
  }
  return absl::StrCat("matrix products: ", kernels);
}

std::string SetMklLever(MklLever choice) {
  const std::string kernels = UseMklLever(choice);
  double best_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kNumTries; ++i) best_s = std::min(best_s, TimeProducts(kSmallShape));
  return absl::StrFormat("%s; %.0f GFLOP/s in fp32", kernels, 1e-9 * OperationsOfForms(kSmallShape) / best_s);
}

bool MklLeverIsOn() { return g_reports_intel; }

// MKL calls this function to learn whether the CPU is Intel's, and chooses its kernels by the answer. It must return
// true on an Intel CPU too, where the flag is never set.
extern "C" __attribute__((visibility("default"))) int mkl_serv_intel_cpu_true() {
  return g_reports_intel || CpuIsIntel();
}

}  // namespace trainyard
