#include "worker/numerics/cpu.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace trainyard {
namespace {

void F512() {}
void F2() {}
void FAny() {}

TEST(Cpu, IsTheOneInTrainyardCpu) {
  const char* asked = std::getenv("TRAINYARD_CPU");
  const std::string word = asked == nullptr ? "" : asked;

  EXPECT_LE(BestVectorCode(), word == "none"   ? VectorCode::kAny
                              : word == "avx2" ? VectorCode::kAvx2
                                               : VectorCode::kAvx512);
  EXPECT_FALSE(CpuMultipliesBfloat16() && BestVectorCode() != VectorCode::kAvx512);
}

TEST(Cpu, ChoosesTheVersionThatIsAllowed) {
  EXPECT_EQ(ForCpu(F512, F2, FAny, VectorCode::kAny), FAny);
  EXPECT_EQ(ForCpu(F512, F2, FAny), BestVectorCode() == VectorCode::kAvx512 ? F512
                                    : BestVectorCode() == VectorCode::kAvx2 ? F2
                                                                            : FAny);
}

TEST(Cpu, UnknownValue_IsRefused) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const int status = std::system(
      ("TRAINYARD_CPU=fast '" + self + "' --gtest_filter=Cpu.IsTheOneInTrainyardCpu >/dev/null 2>/dev/null").c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

}  // namespace
}  // namespace trainyard
