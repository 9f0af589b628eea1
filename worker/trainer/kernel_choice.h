// Decides which of MKL's kernels are faster for a job whose resources.product_kernels is auto: those that MKL chooses
// itself, or those that it uses if the lever (numerics/mkl_lever.h) makes it treat the CPU as one of Intel's. The
// products of the model are timed, in the forms of forward and of both gradients. The speeds are measured once for each
// user, CPU, version and set of shapes, and stored, so that all ranks and all later runs of a model on a host decide
// identically and compute the same numbers.
//
//   <user's state folder>/trainyard/kernels/<CPU and version>-<shapes>    "473.1 186.4 64": GFLOP/s with the lever, and
//                                                                         without; the measurement took 64 ms
//
// A process can use only one kind of kernels, so each kind is timed in a process of its own (kernel_timer.h), both at
// once. Ranks that start at the same time wait for the one that measures. If the result cannot be stored, it is not
// used, because each start could decide differently.
//
// Two hosts with equal CPUs may measure different speeds, so the ranks of a job on several hosts agree (AgreeOnLever).
// Ranks on different CPU models may decide differently. Their results are then rounded differently, but all ranks still
// have the same parameters, because sums and updates are the same on every CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/key_value_store.h"
#include "models/model_sizes.h"
#include "worker/numerics/product_shape.h"

namespace trainyard {

// GFLOP/s of fp32 matrix products.
struct KernelSpeeds {
  double with_lever = 0, without = 0;
  double measured_ms = 0;  // how long the measurement took; 0: unknown
};

// The shapes of the weights of a model, each multiplied with `rows` tokens at a time. Each size is limited, and only
// the kMaxShapes shapes that need the most time are returned, so that a measurement takes about 100 ms at most. Pure.
inline constexpr size_t kMaxShapes = 6;
std::vector<ProductShape> ShapesToTime(const ModelSizes& sizes, int64_t rows);
// What is timed if there is no model.
std::vector<ProductShape> DefaultShapes();

// "256x384x512x6,..."; ParseShapes reads it. Possible errors: InvalidArgument.
std::string ShapesText(const std::vector<ProductShape>& shapes);
absl::StatusOr<std::vector<ProductShape>> ParseShapes(absl::string_view text);

// Pure. `expected`: the result if the two speeds differ by less than 5 %, which is within the error of a timing.
bool LeverIsFaster(const KernelSpeeds& speeds, bool expected);

// Returns what is stored at `path`. Possible errors: NotFound: no file is there; Internal: it is damaged.
absl::StatusOr<KernelSpeeds> ReadKernelSpeeds(const std::string& path);

// Returns what is stored at `path`; else calls `measure` and stores its result there. Possible errors: those of the
// file, of its lock and of `measure`.
absl::StatusOr<KernelSpeeds> LoadOrMeasure(const std::string& path,
                                           const std::function<absl::StatusOr<KernelSpeeds>()>& measure);

// Identifies this CPU and version: the vendor, family, model, stepping and vector instructions of /proc/cpuinfo.
std::string CpuKey();

// Returns the folder with the stored speeds, which is in the user's state folder. Possible errors: those of
// UserStateFolder.
absl::StatusOr<std::string> KernelSpeedsFolder();
// The file in that folder with the speeds of this CPU for some shapes.
std::string KernelSpeedsName(absl::string_view cpu_key, const std::vector<ProductShape>& shapes);

// All speeds that are stored in `folder` for one CPU.
std::vector<KernelSpeeds> ReadAllKernelSpeeds(const std::string& folder, absl::string_view cpu_key);

// Returns the choice of the lowest rank with the same CPU key. If a job on several hosts leaves the choice to the
// hosts, every rank calls this once; a rank that has nothing to choose passes an empty key. Possible errors: those of
// KeyValueStore.
absl::StatusOr<bool> AgreeOnLever(KeyValueStore& values, int rank, absl::string_view cpu_key, bool own_choice,
                                  absl::Duration limit);

}  // namespace trainyard
