// How the products of a model are timed within a limited time, and how the speeds of two kinds of kernels, with and
// without the lever (mkl_lever.h), are computed from the products that were timed. Pure.
#pragma once

#include <functional>
#include <vector>

#include "worker/numerics/product_shape.h"

namespace trainyard {

struct TimingLimits {
  double budget_s = 0.07;  // of the wall clock; nothing begins that would probably end later
  double short_s = 0.002;  // a shape that takes less is timed again
  int max_tries = 3;       // of a short shape; the best one counts
};

// Times the shapes, those with the most work first, and returns the seconds of each, 0 if it was not timed. `now`: the
// wall clock. `time`: computes the products of a shape and returns the seconds for which they ran, which on a busy CPU
// may be fewer than have passed. The shape with the most work is always timed once; ShapesToTime limits its work.
std::vector<double> TimeWithinBudget(const std::vector<ProductShape>& shapes, const TimingLimits& limits,
                                     const std::function<double()>& now,
                                     const std::function<double(const ProductShape&)>& time);

// GFLOP/s.
struct TwoSpeeds {
  double with_lever = 0, without = 0;
};

// Returns the speeds of all products together, from the seconds that TimeWithinBudget measured. A shape that was not
// timed with both kinds has the speeds of the most similar one that was. Zeros: no shape was timed with both.
TwoSpeeds SpeedsOfAll(const std::vector<ProductShape>& shapes, const std::vector<double>& with_lever_s,
                      const std::vector<double>& without_s);

}  // namespace trainyard
