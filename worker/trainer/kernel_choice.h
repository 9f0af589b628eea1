// Which of MKL's kernels are faster on this CPU, for a job that leaves resources.mkl_avx512 open: measured once for
// each user, CPU and version, and kept, so that all ranks and all later runs on a host decide alike and have the same
// numbers.
//
//   <user's state folder>/trainyard/kernels/<CPU and version>     "473.1 186.4": GFLOP/s with the lever, and without
//
// A process can use one kind of kernels only, so each is timed in a child of its own (0.2 s in all). Ranks that start
// at once wait for the one that measures. Where nothing can be kept nothing is measured: each start could decide
// otherwise.
//
// Ranks on unlike CPUs may decide differently, as they always could: what a rank computes is then rounded differently,
// but all ranks still have the same parameters, since sums and updates are the same on every CPU.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// GFLOP/s of fp32 products.
struct KernelSpeeds {
  double with_lever = 0, without = 0;
};

// Pure. `expected`: what is taken where the two differ by less than 5 %, which a timing may get wrong.
bool LeverIsFaster(const KernelSpeeds& speeds, bool expected);

// What is kept at `path`, else what `measure` finds, which is then kept there. Possible errors: those of the file, of
// its lock and of `measure`.
absl::StatusOr<KernelSpeeds> LoadOrMeasure(const std::string& path,
                                           const std::function<absl::StatusOr<KernelSpeeds>()>& measure);

// Where that is, by the environment, the password database and /proc/cpuinfo. Possible errors: NotFound: this user has
// no home folder.
absl::StatusOr<std::string> KernelSpeedsPath();

// Runs this program with `argument` and reads the number that it prints. Possible errors: DeadlineExceeded,
// Internal.
absl::StatusOr<double> NumberFromChild(const std::string& argument);

}  // namespace trainyard
