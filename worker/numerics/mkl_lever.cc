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

// Large enough for the kernels' speeds to differ; takes about a millisecond.
constexpr ProductShape kSmallShape = {.rows = 384, .in = 384, .out = 384};
constexpr int kNumTries = 2;

// Seconds of x w, g w^T and x^T g.
double SecondsOfForms(const ProductShape& shape, int tries) {
  const at::Tensor x = at::ones({shape.rows, shape.in}), w = at::ones({shape.in, shape.out});
  const at::Tensor grad = at::ones({shape.rows, shape.out});
  const std::pair<at::Tensor, at::Tensor> forms[] = {{x, w}, {grad, w.t()}, {x.t(), grad}};
  double seconds = 0;
  for (const auto& [a, b] : forms) {
    double best_s = std::numeric_limits<double>::infinity();
    for (int i = 0; i < tries; ++i) {
      const double start = SecondsNow();
      const at::Tensor product = at::mm(a, b);
      best_s = std::min(best_s, SecondsNow() - start);
    }
    seconds += best_s;
  }
  return seconds;
}

}  // namespace

double SecondsNow() {
  timespec now = {};
  clock_gettime(at::get_num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

bool MklLeverHasEffect() { return !CpuIsIntel() && BestVectorCode() >= VectorCode::kAvx2 && !CpuIsRestricted(); }

double TimeProducts(const std::vector<ProductShape>& shapes, int tries) {
  c10::NoGradGuard no_grad;
  double seconds = 0, operations = 0;
  for (const ProductShape& shape : shapes) {
    const auto count = static_cast<double>(shape.count);
    seconds += count * SecondsOfForms(shape, tries);
    operations += count * 3 * 2 * static_cast<double>(shape.rows * shape.in * shape.out);
  }
  return 1e-9 * operations / seconds;
}

std::string SetMklLever(MklLever choice) {
  const bool avx512 = BestVectorCode() == VectorCode::kAvx512, avx2 = BestVectorCode() >= VectorCode::kAvx2;
  std::string kernels;
  if (CpuIsIntel()) {
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
  return absl::StrFormat("matrix products: %s; %.0f GFLOP/s in fp32", kernels, TimeProducts({kSmallShape}, kNumTries));
}

bool MklLeverIsOn() { return g_reports_intel; }

// Must return true on an Intel CPU too: there the flag is never set, and MKL must still get the correct answer.
extern "C" __attribute__((visibility("default"))) int mkl_serv_intel_cpu_true() {
  return g_reports_intel || CpuIsIntel();
}

}  // namespace trainyard
