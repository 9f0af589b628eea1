// The answer to `trainyard-trainer --environment`, which `trainctl env` prints: the versions of the libraries that this
// process has loaded, and the kernels that a rank on this host would use.
#pragma once

#include <string>

namespace trainyard {

struct NcclVersion {
  std::string version;  // "2.28.9"; empty: not available
  std::string note;     // why it is not available
};

// Loads the GPU support, and NCCL with it. Call before the first tensor operation of the process.
NcclVersion FindNccl();

// The decision for resources.product_kernels: auto (kernel_choice.h).
struct KernelDecision {
  std::string product_kernels;  // "mkl", "mkl_intel", "not decided", "differs by model"
  std::string sentence;         // the reason
};

// One JSON object.
std::string EnvironmentReport(const NcclVersion& nccl, const KernelDecision& kernels);

// Returns what follows `prefix` in `config`, the text of at::show_config(), up to the end of the line, a comma, an
// opening bracket or `end`, whichever comes first. Empty: the text does not contain `prefix`. Pure.
std::string ConfigValue(const std::string& config, const std::string& prefix, const std::string& end = "");

}  // namespace trainyard
