// The functions that autograd calls during backward. C++ modules have no hooks of their own.
//
//   x ─▶ Gate ─▶ body of the unit ─▶ y
//
//   BeforeBackward(unit)   the gradient of y is ready: the unit's parameters are needed now
//   OnGradient(parameter)  the gradient of a parameter in this pass is complete
//   AfterBackward(unit)    the gradient of x is ready, and so are those of the unit's parameters, because autograd runs
//                          the newest ready node first and writes gradients of parameters before anything else
//
// Errors pass through autograd as a UnitError, which Forward, Backward, BackwardFrom and RunDeferred of the strategy
// catch; nothing else is thrown.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>

#include "absl/status/status.h"

namespace trainyard {

// Derived from std::exception, which autograd's engine catches to clean up its own state.
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

// In all three functions `events` must outlive every graph that was made with it.

// Makes autograd call OnGradient(number) for `parameter`, a leaf. A tensor has one hook; null removes it.
void WatchGradient(const at::Tensor& parameter, BackwardEvents* events, int number);

// Returns `x` for use by the unit; makes autograd call AfterBackward. REQUIRES: grad mode; x requires grad.
at::Tensor Gate(const at::Tensor& x, BackwardEvents& events, int unit);

// Makes autograd call BeforeBackward. REQUIRES: y requires grad.
void WatchOutput(const at::Tensor& y, BackwardEvents& events, int unit);

}  // namespace trainyard
