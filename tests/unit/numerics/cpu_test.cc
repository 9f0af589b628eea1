#include "worker/numerics/cpu.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace trainyard {
namespace {

void Avx512Version() {}
void Avx2Version() {}
void PlainVersion() {}

TEST(Cpu, BestVectorCode_IsAtMostThatOfTrainyardCpu) {
  const char* variable = std::getenv("TRAINYARD_CPU");
  const std::string setting = variable == nullptr ? "" : variable;

  EXPECT_LE(BestVectorCode(), setting == "none"   ? VectorCode::kAny
                              : setting == "avx2" ? VectorCode::kAvx2
                                                  : VectorCode::kAvx512);
  EXPECT_FALSE(CpuMultipliesBfloat16() && BestVectorCode() != VectorCode::kAvx512);
}

TEST(Cpu, ChoosesTheVersionThatIsAllowed) {
  EXPECT_EQ(ForCpu(Avx512Version, Avx2Version, PlainVersion, VectorCode::kAny), PlainVersion);
  EXPECT_EQ(ForCpu(Avx512Version, Avx2Version, PlainVersion), BestVectorCode() == VectorCode::kAvx512 ? Avx512Version
                                                              : BestVectorCode() == VectorCode::kAvx2 ? Avx2Version
                                                                                                      : PlainVersion);
}

TEST(Cpu, UnknownValue_IsRefused) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const int status =
      std::system(("TRAINYARD_CPU=fast '" + self +
                   "' --gtest_filter=Cpu.BestVectorCode_IsAtMostThatOfTrainyardCpu >/dev/null 2>/dev/null")
                      .c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
}

}  // namespace
}  // namespace trainyard
