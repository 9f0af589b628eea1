// head_loss_memory fused|unfused ROWS WIDTH VOCABULARY: runs a head and its loss forward and backward once, and prints
// the peak of the resident memory in bytes, without the inputs, the weight and its gradient. One process per
// measurement, because the kernel records only the peak of a process. `./dev bench models` compares fused with unfused.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/string_view.h"
#include "worker/model/ops/head_loss.h"

namespace trainyard {
namespace {

// A field of /proc/self/status, in bytes.
int64_t StatusBytes(absl::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (absl::string_view(line).substr(0, field.size()) != field) continue;
    return std::strtoll(line.c_str() + field.size() + 1, nullptr, 10) * 1024;
  }
  return 0;
}

// Takes the gradient of the weight, as a strategy does.
class OneGradient final : public GradientSink {
 public:
  explicit OneGradient(at::Tensor gradient) : gradient_(std::move(gradient)) {}
  Place Claim(int) override { return {.tensor = gradient_, .overwrites = true}; }
  void Done(int) override {}

 private:
  at::Tensor gradient_;
};

int64_t PeakBytes(bool fused, int64_t rows, int64_t width, int64_t vocabulary) {
  at::Tensor x = at::randn({rows, width}).requires_grad_(true);
  at::Tensor weight = (at::randn({vocabulary, width}) * 0.02).requires_grad_(true);
  const at::Tensor targets = at::randint(vocabulary, {rows}, at::kLong);
  // Written once, so that its memory is resident before the measurement.
  OneGradient sink(at::zeros({vocabulary, width}).fill_(1));
  const int64_t before = StatusBytes("VmRSS:");
  at::Tensor loss;
  if (fused) {
    loss = HeadLoss(x, {weight, 0}, targets, std::nullopt, &sink);
  } else {
    const at::Tensor scores = Linear(x, {.weight = {weight, 0}, .transposed = true, .sink = &sink});
    loss = at::cross_entropy_loss(scores, targets, {}, at::Reduction::Sum);
  }
  loss.backward();
  return StatusBytes("VmHWM:") - before;
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: head_loss_memory fused|unfused ROWS WIDTH VOCABULARY\n");
    return 2;
  }
  std::printf("%lld\n",
              static_cast<long long>(trainyard::PeakBytes(absl::string_view(argv[1]) == "fused", std::atoll(argv[2]),
                                                          std::atoll(argv[3]), std::atoll(argv[4]))));
  return 0;
}
