#include "worker/cuda/nvrtc.h"

#include <dlfcn.h>
#include <nvrtc.h>

#include <array>
#include <type_traits>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

// The functions of NVRTC that are used. The library is never closed.
struct Nvrtc {
  decltype(&nvrtcCreateProgram) create = nullptr;
  decltype(&nvrtcCompileProgram) compile = nullptr;
  decltype(&nvrtcDestroyProgram) destroy = nullptr;
  decltype(&nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&nvrtcGetProgramLog) log = nullptr;
  decltype(&nvrtcGetCUBINSize) code_size = nullptr;
  decltype(&nvrtcGetCUBIN) code = nullptr;
};

absl::StatusOr<Nvrtc> OpenNvrtc() {
  // libnvrtc opens libnvrtc-builtins by its name alone, for which the library search path of this plugin is not used.
  // This call uses that path, and libnvrtc then gets the library that is already loaded.
  (void)dlopen("libnvrtc-builtins.so.13.0", RTLD_NOW | RTLD_LOCAL);
  void* library = dlopen("libnvrtc.so.13", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::UnavailableError(dlerror());
  Nvrtc nvrtc;
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  find(nvrtc.create, "nvrtcCreateProgram");
  find(nvrtc.compile, "nvrtcCompileProgram");
  find(nvrtc.destroy, "nvrtcDestroyProgram");
  find(nvrtc.log_size, "nvrtcGetProgramLogSize");
  find(nvrtc.log, "nvrtcGetProgramLog");
  find(nvrtc.code_size, "nvrtcGetCUBINSize");
  find(nvrtc.code, "nvrtcGetCUBIN");
  if (missing != nullptr) return absl::UnavailableError(absl::StrCat("libnvrtc.so.13 lacks the function ", missing));
  return nvrtc;
}

std::string LogOf(const Nvrtc& nvrtc, nvrtcProgram program) {
  size_t size = 0;
  if (nvrtc.log_size(program, &size) != NVRTC_SUCCESS) return "";
  std::string log(size, '\0');
  if (nvrtc.log(program, log.data()) != NVRTC_SUCCESS) return "";
  while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
  return log;
}

}  // namespace

absl::StatusOr<std::vector<char>> CompileCuda(const std::string& source, int major, int minor) {
  ASSIGN_OR_RETURN(const Nvrtc nvrtc, OpenNvrtc());
  nvrtcProgram program = nullptr;
  if (nvrtc.create(&program, source.c_str(), "kernels.cu", 0, nullptr, nullptr) != NVRTC_SUCCESS) {
    return absl::InternalError("NVRTC cannot create a program");
  }
  const absl::Cleanup destroy = [&] { nvrtc.destroy(&program); };
  const std::string architecture = absl::StrCat("--gpu-architecture=sm_", major, minor);
  const std::array<const char*, 2> options{architecture.c_str(), "--std=c++17"};
  const nvrtcResult result = nvrtc.compile(program, options.size(), options.data());
  if (result == NVRTC_ERROR_INVALID_OPTION) {
    return absl::InvalidArgumentError(absl::StrCat("NVRTC does not support ", architecture));
  }
  if (result != NVRTC_SUCCESS) return absl::InternalError(absl::StrCat("NVRTC: ", LogOf(nvrtc, program)));
  size_t size = 0;
  if (nvrtc.code_size(program, &size) != NVRTC_SUCCESS) return absl::InternalError("NVRTC returned no machine code");
  std::vector<char> code(size);
  if (nvrtc.code(program, code.data()) != NVRTC_SUCCESS) return absl::InternalError("NVRTC returned no machine code");
  return code;
}

}  // namespace trainyard
