// The fixture of tests that need a GPU; they are skipped with a reason on a machine without one.
#pragma once

#include <gtest/gtest.h>

#include "worker/cuda/cuda_loader.h"

namespace trainyard {

inline const at::Device kGpu(at::kCUDA, 0);

class GpuFixture : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<CudaPlugin*> plugin = OpenCudaPlugin(DefaultCudaPluginPath());
    ASSERT_TRUE(plugin.ok()) << plugin.status();
    cuda_ = *plugin;
    if (absl::Status status = cuda_->NumDevices().status(); !status.ok()) GTEST_SKIP() << status.message();
    ASSERT_TRUE(cuda_->Use(0).ok());
  }

  CudaPlugin* cuda_ = nullptr;
};

}  // namespace trainyard
