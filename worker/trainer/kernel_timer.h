// Times the two kinds of MKL's kernels (kernel_choice.h) in processes of their own, because a process can use only one
// kind. They are forked from this process, because starting another LibTorch takes longer than the measurement.
//
// A process may be forked safely only while it has one thread, but which products are timed is known later. Therefore
// Start forks a process that waits for the shapes; the waiting process then forks once more, and each of these two
// processes times one kind.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/numerics/product_shape.h"
#include "worker/trainer/kernel_choice.h"

namespace trainyard {

class KernelTimer {
 public:
  // Returns the seconds of each shape, 0 if it was not timed (kernel_budget.h). `with_lever`: with MKL's kernels for
  // Intel's CPUs (mkl_lever.h). Called in a forked process.
  using TimeShapes = std::function<std::vector<double>(bool with_lever, const std::vector<ProductShape>& shapes)>;

  // Call before the first tensor operation. Possible errors: FailedPrecondition: this process has several threads;
  // those of ErrnoStatus: a process or pipe cannot be created.
  static absl::StatusOr<std::unique_ptr<KernelTimer>> Start(TimeShapes time_shapes);

  KernelTimer(const KernelTimer&) = delete;
  KernelTimer& operator=(const KernelTimer&) = delete;
  // Ends the waiting process.
  ~KernelTimer();

  // Call at most once. Possible errors: DeadlineExceeded: the processes have not ended within `limit`; Internal: one of
  // them failed, or no product was timed with both kinds of kernels; those of ErrnoStatus: a pipe cannot be read.
  absl::StatusOr<KernelSpeeds> Measure(const std::vector<ProductShape>& shapes, absl::Duration limit);

 private:
  KernelTimer(pid_t process, int requests, int with_lever, int without)
      : process_(process), requests_(requests), with_lever_(with_lever), without_(without) {}

  pid_t process_;
  int requests_, with_lever_, without_;  // ends of pipes
};

}  // namespace trainyard
