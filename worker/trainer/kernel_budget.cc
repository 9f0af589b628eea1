#include "worker/trainer/kernel_budget.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace trainyard {
namespace {

// Floating-point operations of forward and of both gradients, for all weights of this size.
double Work(const ProductShape& shape) { return OperationsOfForms(shape) * static_cast<double>(shape.count); }

// 0 for equal shapes; 1 if the shapes differ in one size, by a factor of 2.
double Distance(const ProductShape& a, const ProductShape& b) {
  const auto between = [](int64_t x, int64_t y) {
    return std::fabs(std::log2(static_cast<double>(x) / static_cast<double>(y)));
  };
  return between(a.rows, b.rows) + between(a.in, b.in) + between(a.out, b.out);
}

}  // namespace

std::vector<double> TimeWithinBudget(const std::vector<ProductShape>& shapes, const TimingLimits& limits,
                                     const std::function<double()>& now,
                                     const std::function<double(const ProductShape&)>& time) {
  std::vector<size_t> order(shapes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return Work(shapes[a]) > Work(shapes[b]); });
  std::vector<double> seconds(shapes.size(), 0);
  const double end = now() + limits.budget_s;
  double slowest = 0;  // wall seconds per operation
  for (const size_t i : order) {
    const ProductShape& shape = shapes[i];
    for (int tries = 0; tries < limits.max_tries; ++tries) {
      const double start = now();
      if (slowest > 0 && start + slowest * OperationsOfForms(shape) > end) break;
      const double measured = time(shape);
      slowest = std::max(slowest, (now() - start) / OperationsOfForms(shape));
      seconds[i] = tries == 0 ? measured : std::min(seconds[i], measured);
      if (measured >= limits.short_s) break;
    }
  }
  return seconds;
}

TwoSpeeds SpeedsOfAll(const std::vector<ProductShape>& shapes, const std::vector<double>& with_lever_s,
                      const std::vector<double>& without_s) {
  std::vector<size_t> timed;
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (with_lever_s[i] > 0 && without_s[i] > 0) timed.push_back(i);
  }
  if (timed.empty()) return {};
  double work = 0, with_lever = 0, without = 0;
  for (const ProductShape& shape : shapes) {
    const size_t nearest = *std::min_element(timed.begin(), timed.end(), [&](size_t a, size_t b) {
      return Distance(shapes[a], shape) < Distance(shapes[b], shape);
    });
    const double share = Work(shape) / OperationsOfForms(shapes[nearest]);
    work += Work(shape);
    with_lever += share * with_lever_s[nearest];
    without += share * without_s[nearest];
  }
  return {.with_lever = 1e-9 * work / with_lever, .without = 1e-9 * work / without};
}

}  // namespace trainyard
