// Loads the built libtrainyard_cuda.so in a process that has not used tensors, with every symbol resolved, on machines
// with and without a GPU.
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "worker/cuda/cuda_loader.h"

namespace trainyard {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(CudaPlugin, OtherInterface_IsRefusedWithBothNumbers) {
  absl::Status status = OpenCudaPlugin(DefaultCudaPluginPath(), kCudaPluginAbi + 1).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(absl::StrCat("has interface ", kCudaPluginAbi)),
                                                   HasSubstr(absl::StrCat("needs ", kCudaPluginAbi + 1))));
}

TEST(CudaPlugin, IsFoundNextToTheProgram_AndLoadsLibTorchsCudaPart) {
  absl::StatusOr<CudaPlugin*> plugin = OpenCudaPlugin(DefaultCudaPluginPath());

  ASSERT_TRUE(plugin.ok()) << plugin.status();
  EXPECT_TRUE(at::globalContext().hasCUDART());
  EXPECT_EQ(*OpenCudaPlugin(DefaultCudaPluginPath()), *plugin) << "there is one plugin per process";
}

TEST(CudaPlugin, CompilesItsKernels_ForEachKindOfGpu) {
  absl::StatusOr<CudaPlugin*> plugin = OpenCudaPlugin(DefaultCudaPluginPath());
  ASSERT_TRUE(plugin.ok()) << plugin.status();

  for (const auto& [major, minor] : {std::pair{7, 5}, {9, 0}, {12, 0}}) {
    EXPECT_EQ((*plugin)->CompileKernels(major, minor), absl::OkStatus());
  }
  EXPECT_EQ((*plugin)->CompileKernels(1, 0).code(), absl::StatusCode::kInvalidArgument);
}

// The error on a machine without a GPU. On a machine with one, NumDevices must succeed.
TEST(CudaPlugin, WithoutAGpu_SaysWhatIsMissingAndWhatToDo) {
  absl::StatusOr<CudaPlugin*> plugin = OpenCudaPlugin(DefaultCudaPluginPath());
  ASSERT_TRUE(plugin.ok()) << plugin.status();

  const absl::StatusOr<int> devices = (*plugin)->NumDevices();

  if (devices.ok()) {
    EXPECT_GE(*devices, 1);
    EXPECT_TRUE((*plugin)->Use(0).ok());
    EXPECT_EQ((*plugin)->Use(*devices).status().code(), absl::StatusCode::kInvalidArgument);
    return;
  }
  for (const absl::Status& status :
       {devices.status(), (*plugin)->Use(0).status(), (*plugin)->NewNccl({.rank = 0, .world_size = 1}).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("no GPU can be used on this machine"), HasSubstr("NVIDIA driver"),
                      HasSubstr("CUDA 13.0 is needed"), HasSubstr("nvidia-smi"), HasSubstr("resources.device to cpu")));
  }
}

}  // namespace
}  // namespace trainyard
