#include "worker/trainer/environment_report.h"

#include <ATen/Version.h>
#include <dlfcn.h>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/version.h"
#include "worker/cuda/cuda_loader.h"
#include "worker/numerics/cpu.h"

namespace trainyard {
namespace {

constexpr char kNccl[] = "libnccl.so.2";

const char* VectorCodeName(VectorCode code) {
  return code == VectorCode::kAvx512 ? "avx512" : code == VectorCode::kAvx2 ? "avx2" : "any";
}

}  // namespace

NcclVersion FindNccl() {
  const absl::StatusOr<CudaPlugin*> plugin = OpenCudaPlugin(DefaultCudaPluginPath());
  if (!plugin.ok()) return {.version = "", .note = std::string(plugin.status().message())};
  // Finds the library that the plugin has loaded; does not load another one from the search path.
  void* library = dlopen(kNccl, RTLD_NOW | RTLD_NOLOAD);
  auto* version_of = library == nullptr ? nullptr : reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int version = 0;  // 22809 for NCCL 2.28.9
  if (version_of == nullptr || version_of(&version) != 0) {
    return {.version = "", .note = absl::StrCat("the GPU support does not use ", kNccl)};
  }
  return {.version = absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100), .note = ""};
}

std::string ConfigValue(const std::string& config, const std::string& prefix, const std::string& end) {
  const size_t at = config.find(prefix);
  if (at == std::string::npos) return "";
  const size_t begin = at + prefix.size();
  std::string rest = config.substr(begin, config.find_first_of(",(\n", begin) - begin);
  if (!end.empty()) rest = rest.substr(0, rest.find(end));
  return std::string(absl::StripAsciiWhitespace(rest));
}

std::string EnvironmentReport(const NcclVersion& nccl, const KernelDecision& kernels) {
  const std::string config = at::show_config();
  const nlohmann::ordered_json json = {{"version", kVersion},
                                       {"torch", ConfigValue(config, "TORCH_VERSION=")},
                                       {"mkl", ConfigValue(config, "Math Kernel Library Version ", " for ")},
                                       {"onednn", ConfigValue(config, "MKL-DNN ")},
                                       {"openmp", ConfigValue(config, "OpenMP ")},
                                       {"cpu_capability", ConfigValue(config, "CPU capability usage: ")},
                                       {"vector_code", VectorCodeName(BestVectorCode())},
                                       {"bf16_products", CpuMultipliesBfloat16()},
                                       {"product_kernels", kernels.product_kernels},
                                       {"kernels", kernels.sentence},
                                       {"nccl", nccl.version},
                                       {"nccl_note", nccl.note}};
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace trainyard
