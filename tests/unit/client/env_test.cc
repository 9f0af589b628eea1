// trainctl env: what is read from text, what is warned of, and programs that hang or fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/bounded_program.h"
#include "client/env_view.h"
#include "client/host_facts.h"

namespace trainyard::client {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using Json = nlohmann::ordered_json;

// A host without any reason for a warning.
HostFacts GoodHost() {
  HostFacts facts;
  facts.cores_affinity = facts.cores_usable = 8;
  facts.trainer = {{"version", "0.1.0"}, {"torch", "2.11.0"}, {"product_kernels", "mkl_intel"}};
  facts.gpu = {{"devices", Json::array()}, {"gpu_note", "libnvidia-ml.so.1 not found"}, {"driver", ""}};
  facts.interfaces = {{.name = "eth0", .addresses = {"10.0.0.1"}, .is_up = true}};
  facts.data_address = "10.0.0.1";
  facts.open_files = {.soft = 65536, .hard = 65536};
  facts.shared_memory_bytes = uint64_t{8} << 30;
  return facts;
}

TEST(CpuInfo, HasTheModelAndTheVectorUnitsOfTheFirstProcessor) {
  HostFacts facts;

  ParseCpuInfo("processor : 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 fma avx512f\n\nmodel name : other\n",
               &facts);

  EXPECT_EQ(facts.cpu_model, "Some CPU");
  EXPECT_THAT(facts.vector_units, ElementsAre("fma", "avx2", "avx512f"));
}

TEST(CpuInfo, IsUnknownWithoutTheFile) {
  HostFacts facts = GoodHost();

  ParseCpuInfo("garbage\nflags", &facts);

  EXPECT_THAT(FactsText(facts, 80), HasSubstr("model            unknown"));
  EXPECT_TRUE(FactsJson(facts)["cpu"]["model"].is_null());
}

TEST(MemoryInfo, IsInBytes) {
  HostFacts facts;

  ParseMemoryInfo("MemTotal:       24620048 kB\nMemFree: x kB\nMemAvailable:  2 kB\n", &facts);

  EXPECT_EQ(facts.memory_bytes, uint64_t{24620048} * 1024);
  EXPECT_EQ(facts.memory_available_bytes, 2048u);
}

TEST(Variables, ThatMatterAreSortedAndSecretsAreNotShown) {
  const char* environment[] = {"PATH=/bin",
                               "OMP_NUM_THREADS=4",
                               "TRAINYARD_TOKEN=abc",
                               "NCCL_DEBUG=INFO",
                               "TRAINYARD_TOKEN_FILE=/t",
                               "HF_HOME=http://me:pw@host",
                               nullptr};

  EXPECT_THAT(RelevantVariables(environment),
              ElementsAre(Pair("HF_HOME", "(set, not shown)"), Pair("NCCL_DEBUG", "INFO"), Pair("OMP_NUM_THREADS", "4"),
                          Pair("TRAINYARD_TOKEN", "(set, not shown)"), Pair("TRAINYARD_TOKEN_FILE", "/t")));
}

TEST(Warnings, AGoodHostHasNone) { EXPECT_THAT(WarningsOf(GoodHost()), IsEmpty()); }

TEST(Warnings, NameLimitsThatAreTooLow) {
  HostFacts facts = GoodHost();
  facts.shared_memory_bytes = 64 << 20;
  facts.open_files.soft = 1024;
  facts.cgroup_cores = 1.5;

  EXPECT_THAT(WarningsOf(facts),
              ElementsAre(HasSubstr("/dev/shm has only 64.0 MiB"), HasSubstr("only 1024 files (nofile)"),
                          HasSubstr("a cgroup limits this process to 1.5 of its 8 cores")));
}

TEST(Warnings, CompareInterfacesOfNcclByPrefix_UnlessTheListBeginsWithAnEqualsSign) {
  HostFacts facts = GoodHost();

  facts.variables = {{"NCCL_SOCKET_IFNAME", "eth"}};
  EXPECT_THAT(WarningsOf(facts), IsEmpty());
  facts.variables = {{"NCCL_SOCKET_IFNAME", "=eth0:7000"}};
  EXPECT_THAT(WarningsOf(facts), IsEmpty());
  facts.variables = {{"NCCL_SOCKET_IFNAME", "=eth"}};
  EXPECT_THAT(WarningsOf(facts), ElementsAre(HasSubstr("names the interface 'eth'")));
}

TEST(Warnings, CompareInterfacesOfGlooByTheirWholeNames) {
  HostFacts facts = GoodHost();

  facts.variables = {{"GLOO_SOCKET_IFNAME", "eth0"}};
  EXPECT_THAT(WarningsOf(facts), IsEmpty());
  facts.variables = {{"GLOO_SOCKET_IFNAME", "eth0,eth"}};
  EXPECT_THAT(WarningsOf(facts), ElementsAre(HasSubstr("names the interface 'eth'")));
  facts.variables = {{"GLOO_SOCKET_IFNAME", "^docker"}};
  EXPECT_THAT(WarningsOf(facts), ElementsAre(HasSubstr("names the interface '^docker'")));
}

TEST(Warnings, NamePartsThatDoNotAnswerAndSettingsThatDoNotFit) {
  HostFacts facts = GoodHost();
  facts.trainer = {{"error", "it did not end"}};
  facts.gpu = {{"error", "killed"}};
  facts.data_address = "";
  facts.address_error = "the name 'head' is not resolved";
  facts.variables = {{"NCCL_SOCKET_IFNAME", "=eth0,ib9"}, {"GLOO_SOCKET_IFNAME", "eth0"}, {"TRAINYARD_CPU", "avx2"}};

  const std::vector<std::string> warnings = WarningsOf(facts);

  EXPECT_EQ(warnings.size(), 5u);
  EXPECT_THAT(warnings, Contains(HasSubstr("the trainer does not start: it did not end")));
  EXPECT_THAT(warnings, Contains(HasSubstr("GPU libraries did not answer: killed")));
  EXPECT_THAT(warnings, Contains(HasSubstr("names the interface 'ib9'")));
  EXPECT_THAT(warnings, Contains(HasSubstr("reach this host: the name 'head' is not resolved")));
  EXPECT_THAT(FactsText(facts, 0), HasSubstr("5 warnings"));
}

TEST(Warnings, NameGpusThatTrainersCannotUse) {
  HostFacts facts = GoodHost();
  facts.gpu = {{"devices", {{{"index", 0}, {"name", "H200"}, {"memory_bytes", 1 << 30}, {"compute_major", 9}}}},
               {"cuda_note", "libcuda.so.1 not found"}};

  EXPECT_THAT(WarningsOf(facts), ElementsAre(HasSubstr("although there are GPUs: libcuda.so.1 not found")));
  EXPECT_THAT(FactsText(facts, 0), HasSubstr("device auto selects cpu"));
}

TEST(OutputOfProgram, ReturnsWhatIsWritten) {
  EXPECT_EQ(*OutputOfProgram({"sh", "-c", "echo a; echo b >&2"}, absl::Seconds(30)), "a\n");
}

TEST(OutputOfProgram, AProgramThatHangs_EndsTheCallAtTheLimit) {
  const absl::Time begin = absl::Now();

  const auto output = OutputOfProgram({"sh", "-c", "sleep 1000 & sleep 1000"}, absl::Milliseconds(50));

  EXPECT_EQ(output.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
}

TEST(OutputOfProgram, AnOutputThatAnotherSessionKeepsOpen_IsNotAwaited) {
  const absl::Time begin = absl::Now();

  EXPECT_EQ(*OutputOfProgram({"sh", "-c", "setsid sleep 20 & echo done"}, absl::Seconds(60)), "done\n");
  EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
}

TEST(HostParts, ACoordinatorWhoseNameIsNotResolved_HasNoAddress) {
  const auto part = ReadHostPart("address", "nosuch.invalid:7070");

  ASSERT_TRUE(part.ok());
  EXPECT_FALSE(part->contains("data_address"));
  EXPECT_THAT((*part)["error"].get<std::string>(), HasSubstr("the name 'nosuch.invalid' is not resolved"));
  EXPECT_EQ((*ReadHostPart("address", "127.0.0.1:7070"))["data_address"], "127.0.0.1");
}

TEST(OutputOfProgram, FailuresNameTheProgramAndItsError) {
  const auto failed = OutputOfProgram({"sh", "-c", "echo broken >&2; exit 3"}, absl::Seconds(30));

  EXPECT_THAT(std::string(failed.status().message()), HasSubstr("sh failed: exit code 3: broken"));
  EXPECT_EQ(OutputOfProgram({"/no/such/program"}, absl::Seconds(30)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(OutputOfProgram({"yes"}, absl::Seconds(30)).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace trainyard::client
