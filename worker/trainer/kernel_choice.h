// Decides which of MKL's kernels are faster on this CPU, for a job whose resources.mkl_avx512 is auto: those that MKL
// chooses itself, or those that the lever (numerics/mkl_lever.h) makes it use. The speeds are measured once for each
// user, CPU and version, and stored, so that all ranks and all later runs on a host decide identically and compute the
// same numbers.
//
//   <user's state folder>/trainyard/kernels/<CPU and version>     "473.1 186.4": GFLOP/s with the lever, and without
//
// A process can use only one kind of kernels, so each kind is timed in a child process of its own (0.2 s in all). Ranks
// that start at the same time wait for the one that measures. If the result cannot be stored, nothing is measured,
// because each start could decide differently.
//
// Ranks on different CPU models may decide differently: their results are then rounded differently, but all ranks still
// have the same parameters, because sums and updates are the same on every CPU.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// GFLOP/s of fp32 matrix products.
struct KernelSpeeds {
  double with_lever = 0, without = 0;
};

// Pure. `expected`: the result if the two speeds differ by less than 5 %, which is within the error of a timing.
bool LeverIsFaster(const KernelSpeeds& speeds, bool expected);

// Returns what is stored at `path`. Possible errors: NotFound: no file is there; Internal: it is damaged.
absl::StatusOr<KernelSpeeds> ReadKernelSpeeds(const std::string& path);

// Returns what is stored at `path`; else calls `measure` and stores its result there. Possible errors: those of the
// file, of its lock and of `measure`.
absl::StatusOr<KernelSpeeds> LoadOrMeasure(const std::string& path,
                                           const std::function<absl::StatusOr<KernelSpeeds>()>& measure);

// Returns the path of the file with the stored speeds, from the environment, the password database and /proc/cpuinfo.
// Possible errors: NotFound: this user has no home folder.
absl::StatusOr<std::string> KernelSpeedsPath();

// Runs this program with `argument` and reads the number that it prints. Possible errors: DeadlineExceeded,
// Internal.
absl::StatusOr<double> ReadNumberFromChild(const std::string& argument);

}  // namespace trainyard
