// What autograd calls during backward, in one place: C++ modules have no hooks of their own.
//
//   x ─▶ Gate ─▶ body of the unit ─▶ y
//
//   BeforeBackward(unit)   the gradient of y is there: the unit's parameters are needed now
//   OnGradient(parameter)  a parameter's gradient of this pass is complete
//   AfterBackward(unit)    the gradient of x is there, and with it those of all parameters: autograd runs ready nodes
//                          newest first and writes gradients of parameters before anything else
//
// Possible errors travel through autograd as a UnitError, which Backward and Forward of the strategy catch; nothing
// else is thrown.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>

#include "absl/status/status.h"

namespace trainyard {

// Derived from std::exception because that is what autograd's engine catches to put its own state in order.
class UnitError final : public std::exception {
 public:
  explicit UnitError(absl::Status status) : status_(std::move(status)), text_(status_.ToString()) {}
  const absl::Status& status() const { return status_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  absl::Status status_;
  std::string text_;
};

class BackwardEvents {
 public:
  virtual ~BackwardEvents() = default;
  virtual absl::Status OnGradient(int parameter) = 0;
  virtual absl::Status BeforeBackward(int unit) = 0;
  virtual absl::Status AfterBackward(int unit) = 0;
};

// `events` must outlive every graph that was made with it.

// From now on OnGradient(number) is called for `parameter`, a leaf; there is one hook a tensor. Null: no more calls.
void WatchGradient(const at::Tensor& parameter, BackwardEvents* events, int number);

// `x` as the unit is to see it. REQUIRES: grad mode; x requires grad.
at::Tensor Gate(const at::Tensor& x, BackwardEvents& events, int unit);

// REQUIRES: y requires grad.
void WatchOutput(const at::Tensor& y, BackwardEvents& events, int unit);

}  // namespace trainyard
