#include "worker/numerics/mkl_lever.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/numerics/cpu.h"

extern "C" int mkl_serv_intel_cpu_true();

namespace trainyard {
namespace {

// MKL looks the function up by name among all libraries; ours must be the first match.
TEST(MklLever, ExecutablesFunction_IsFoundByName) {
  void* found = dlsym(RTLD_DEFAULT, "mkl_serv_intel_cpu_true");
  Dl_info info{};
  ASSERT_NE(dladdr(found, &info), 0);
  EXPECT_THAT(info.dli_fname, testing::HasSubstr("mkl_lever_test"));
}

TEST(MklLever, DependsOnTheSettingAndTheCpu) {
  bool intel = CpuIsIntel(), avx512 = BestVectorCode() == VectorCode::kAvx512;

  std::string off = SetMklLever(MklLever::kOff);
  EXPECT_EQ(mkl_serv_intel_cpu_true() != 0, intel);
  EXPECT_THAT(off, testing::HasSubstr("GFLOP/s"));

  std::string automatic = SetMklLever(MklLever::kAuto);
  EXPECT_EQ(mkl_serv_intel_cpu_true() != 0, intel || avx512);
  EXPECT_THAT(automatic, testing::HasSubstr(avx512 && !intel ? "(mkl_intel)" : "MKL's own choice"));
}

}  // namespace
}  // namespace trainyard
