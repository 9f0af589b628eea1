// Speeds of the matrix products of the models that `./dev bench` trains, in the forms of forward and of both gradients,
// and in each type.
//
//   product_speeds [--threads N] [--rounds N] [--intel-kernels]
//
// Prints GFLOP/s as a Markdown table: the best of rounds in which the types alternate. With one thread it counts the
// seconds that the thread ran, so that other processes disturb it little. MKL_ENABLE_INSTRUCTIONS, TRAINYARD_CPU and
// the other variables of tests/CMakeLists.txt restrict the features of the CPU that are used.
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "worker/model/ops/products.h"
#include "worker/numerics/gemm.h"
#include "worker/numerics/mkl_lever.h"

namespace trainyard {
namespace {

struct Shape {
  const char* name;
  int64_t rows, in, out;
};
constexpr Shape kShapes[] = {
    {"tiny, qkv", 256, 128, 384},       {"tiny, up", 256, 128, 512},       {"tiny, down", 256, 512, 128},
    {"lab-10m, qkv", 2048, 384, 1152},  {"lab-10m, out", 2048, 384, 384},  {"lab-10m, up", 2048, 384, 1536},
    {"lab-10m, down", 2048, 1536, 384}, {"lab-10m, head", 2048, 384, 256}, {"GPT-2, up", 512, 768, 3072},
    {"GPT-2, head", 512, 768, 12800},
};

double Gflops(const std::vector<double>& seconds, const Shape& shape) {
  return 2e-9 * static_cast<double>(shape.rows * shape.in * shape.out) /
         *std::min_element(seconds.begin(), seconds.end());
}

// Seconds of one product; several are timed together if one is short.
double Time(const std::function<void()>& product, int64_t repeats) {
  const double start = SecondsNow();
  for (int64_t i = 0; i < repeats; ++i) product();
  return (SecondsNow() - start) / static_cast<double>(repeats);
}

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

struct Factors {
  Factors(const Shape& shape, at::ScalarType type)
      : x(at::randn({shape.rows, shape.in}).to(type)),
        w(at::randn({shape.in, shape.out}).to(type)),
        grad(at::randn({shape.rows, shape.out}).to(type)),
        y(at::empty_like(grad)),
        grad_x(at::empty_like(x)),
        grad_w(at::zeros({shape.in, shape.out})) {}

  void Multiply(int form) const {
    if (form == 0) WriteProduct(x, w, /*transposed=*/false, {}, {}, y);
    if (form == 1) WriteProduct(grad, w, /*transposed=*/true, {}, {}, grad_x);
    if (form == 2) WriteTransposedProduct(x, grad, grad_w, /*overwrites=*/true);
  }
  const at::Tensor x, w, grad, y, grad_x, grad_w;
};

void Measure(const Shape& shape, int rounds) {
  constexpr const char* kForms[] = {"x w", "g w^T", "x^T g"};
  const int64_t repeats = std::max<int64_t>(1, 40'000'000 / (shape.rows * shape.in * shape.out));
  std::vector<Factors> factors;
  for (const at::ScalarType type : kTypes) factors.emplace_back(shape, type);
  for (int form = 0; form < 3; ++form) {
    std::vector<std::vector<double>> seconds(factors.size());
    for (int round = -1; round < rounds; ++round) {
      for (size_t i = 0; i < factors.size(); ++i) {
        const double time = Time([&] { factors[i].Multiply(form); }, repeats);
        if (round >= 0) seconds[i].push_back(time);  // the first round warms up
      }
    }
    std::cout << "| " << shape.name << " | " << kForms[form] << " |";
    for (const auto& times : seconds) std::cout << absl::StrFormat(" %.0f |", Gflops(times, shape));
    std::cout << std::endl;
  }
}

int Run(int argc, char** argv) {
  CLI::App app("Speeds of matrix products in GFLOP/s.", "product_speeds");
  int threads = 1, rounds = 15;
  bool lever = false;
  app.add_option("--threads", threads, "Threads of a product")->check(CLI::Range(1, 1024));
  app.add_option("--rounds", rounds, "Rounds, of which the best counts")->check(CLI::Range(1, 1000));
  app.add_flag("--intel-kernels", lever, "MKL uses the kernels of Intel's CPUs");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(threads);
  SetMklLever(lever ? MklLever::kOn : MklLever::kOff);
  std::cout << "| " << threads << (threads == 1 ? " thread" : " threads")
            << ", GFLOP/s | form | fp32 | bf16 | fp16 |\n|---|---|---:|---:|---:|" << std::endl;
  for (const Shape& shape : kShapes) Measure(shape, rounds);
  return 0;
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) { return trainyard::Run(argc, argv); }
