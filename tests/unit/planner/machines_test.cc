#include "planner/machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace trainyard::planner {
namespace {

using testing::HasSubstr;

struct ReadResult {
  v1::Machines machines;
  std::string errors;  // one per line
};

ReadResult ReadText(const std::string& text) {
  ReadResult read;
  Problems problems;
  read.machines = ReadMachines({.text = text, .file_name = "machines.yaml", .working_directory = ""}, &problems);
  for (const Problem& problem : problems.Errors()) absl::StrAppend(&read.errors, problem.ToString(), "\n");
  return read;
}

constexpr char kPod[] = R"(groups:
- name: pod
  hosts: 4
  ranks_per_host: 8
  device: gpu
  model: h100
  between: {bytes_per_s: 50e9, latency_s: 1e-5}
)";

TEST(ReadMachines, OfANamedGpu_HasItsFigures) {
  const ReadResult read = ReadText(kPod);
  ASSERT_EQ(read.errors, "");
  const std::vector<Pool> pools = PoolsOf(read.machines);
  ASSERT_EQ(pools.size(), 1u);
  const Pool& pool = pools[0];
  EXPECT_EQ(pool.ranks(), 32u);
  EXPECT_EQ(pool.device, v1::DEVICE_CUDA);
  EXPECT_EQ(pool.memory_bytes, 80'000'000'000u);
  EXPECT_EQ(pool.usable_bytes(), 75'000'000'000u) << "95 %, without 1 GB of libraries";
  EXPECT_EQ(pool.flops.bf16, 989e12);
  EXPECT_EQ(pool.inside.bytes_per_s, 450e9) << "fast by default";
  EXPECT_EQ(pool.between.bytes_per_s, 50e9);
  EXPECT_TRUE(IsFast(pool.inside));
  EXPECT_FALSE(IsFast(pool.between));
}

TEST(ReadMachines, OfKeysNextToTheModel_TakesTheKeys) {
  const ReadResult read = ReadText(absl::StrCat(kPod, "  memory_bytes: 96e9\n  flops: {bf16: 700e12}\n"));
  ASSERT_EQ(read.errors, "");
  EXPECT_EQ(read.machines.groups(0).memory_bytes(), 96'000'000'000u);
  EXPECT_EQ(read.machines.groups(0).flops().bf16(), 700e12);
  EXPECT_EQ(read.machines.groups(0).flops().fp32(), 67e12);
}

TEST(ReadMachines, OfCpus_SharesTheMemoryOfTheHost) {
  const ReadResult read =
      ReadText("groups:\n- {name: box, ranks_per_host: 2, device: cpu, host_memory_bytes: 16e9, inside: slow}\n");
  ASSERT_EQ(read.errors, "");
  const Pool pool = PoolsOf(read.machines)[0];
  EXPECT_EQ(pool.device, v1::DEVICE_CPU);
  EXPECT_EQ(pool.memory_bytes, 8'000'000'000u);
  EXPECT_EQ(pool.inside.bytes_per_s, 10e9);
  EXPECT_EQ(pool.flops.bf16, pool.flops.fp32);
}

TEST(ReadMachines, OfABadFile_ListsAllProblemsWithTheirPlaces) {
  const ReadResult read = ReadText(R"(groups:
- name: tpus
  ranks_per_host: 4
  device: tpu
- name: own
  ranks_per_host: 0
  device: gpu
  efficency: 0.5
- name: cpus
  ranks_per_host: 2
  device: cpu
  model: h100
)");
  EXPECT_THAT(read.errors, HasSubstr("groups[0].device: is tpu, on which this program does not train"));
  EXPECT_THAT(read.errors, HasSubstr("machines.yaml:4:"));
  EXPECT_THAT(read.errors, HasSubstr("groups[1].ranks_per_host: must be from 1 to 1024, found 0"));
  EXPECT_THAT(read.errors, HasSubstr("unknown key 'efficency'; did you mean 'efficiency'?"));
  EXPECT_THAT(read.errors, HasSubstr("groups[1].memory_bytes: is required without `model`"));
  EXPECT_THAT(read.errors, HasSubstr("groups[1].flops.fp32: is required without `model`"));
  EXPECT_THAT(read.errors, HasSubstr("groups[2].model: names a GPU, but device is cpu"));
  EXPECT_THAT(read.errors, HasSubstr("groups[2].host_memory_bytes: is required for cpu"));
}

TEST(ReadMachines, OfAnUnknownModel_ReportsOnlyThat) {
  const auto errors_of = [](const std::string& keys) {
    return ReadText("groups:\n- {name: a, ranks_per_host: 8, device: gpu, " + keys + "}\n").errors;
  };
  const std::string other = errors_of("model: b200");
  EXPECT_THAT(other, HasSubstr("groups[0].model: expected one of a100, h100, h200 or auto, found 'b200'\n"));
  EXPECT_THAT(other, testing::Not(HasSubstr("is required")));
  EXPECT_THAT(errors_of("model: H100"), HasSubstr("found 'H100'; did you mean 'h100'?"));

  const std::string no_map = errors_of("memory_bytes: 80e9, memory_bytes_per_s: 2e12, flops: 5");
  EXPECT_THAT(no_map, HasSubstr("groups[0].flops: "));
  EXPECT_THAT(no_map, testing::Not(HasSubstr("is required")));
  EXPECT_THAT(errors_of("memory_bytes: auto, memory_bytes_per_s: 2e12, flops: {fp32: 6e13}"),
              HasSubstr("groups[0].memory_bytes: is required without `model`"));
}

TEST(ReadMachines, OfSeveralUnknownKeys_ListsTheValidKeysOnce) {
  const std::string errors =
      ReadText("groups:\n- {name: a, ranks_per_host: 8, device: gpu, model: h100, colour: 1, shape: 2}\n").errors;
  EXPECT_THAT(errors, HasSubstr("unknown key 'colour'. Valid here: name, hosts, "));
  EXPECT_THAT(errors, HasSubstr("unknown key 'shape'.\n"));
}

TEST(ReadMachines, OfAnA100With40Gigabytes_TakesItsMemory) {
  const ReadResult read =
      ReadText("groups:\n- {name: a, ranks_per_host: 8, device: gpu, model: a100, memory_bytes: 40e9}\n");
  ASSERT_EQ(read.errors, "");
  EXPECT_EQ(PoolsOf(read.machines)[0].memory_bytes, 40'000'000'000u);
}

TEST(MemoryText, OfSmallAmounts_IsInMiB) {
  EXPECT_EQ(MemoryText(uint64_t{3} << 30), "3.0 GiB");
  EXPECT_EQ(MemoryText(uint64_t{3} << 20), "3.0 MiB");
  EXPECT_EQ(NeedText(uint64_t{3} << 30, uint64_t{8} << 30), "3.0 of 8.0 GiB");
  EXPECT_EQ(NeedText(uint64_t{3} << 20, uint64_t{8} << 30), "3.0 MiB of 8.0 GiB");
}

TEST(ReadMachines, GroupsWithOneName_AreRefused) {
  const ReadResult read = ReadText(absl::StrCat(kPod, R"(- name: pod
  ranks_per_host: 8
  device: gpu
  model: a100
- {name: "", ranks_per_host: 8, device: gpu, model: a100}
)"));
  EXPECT_THAT(read.errors, HasSubstr("groups[1].name: is 'pod', as groups[0].name is; choose another name"));
  EXPECT_THAT(read.errors, HasSubstr("machines.yaml:8:"));
  EXPECT_THAT(read.errors, HasSubstr("groups[2].name: is empty"));
}

TEST(ReadMachines, OfNumbersOutOfRange_ListsThemAll) {
  const ReadResult read = ReadText(
      "groups:\n- {name: a, hosts: -1, ranks_per_host: 8, device: gpu, model: h100, efficiency: 0, memory_bytes: .nan, "
      "inside: {bytes_per_s: -5}, between: quick, flops: {bf16: .inf}}\n");
  for (const char* key : {"hosts", "efficiency", "memory_bytes", "inside.bytes_per_s", "between", "flops.bf16"}) {
    EXPECT_THAT(read.errors, HasSubstr(absl::StrCat("groups[0].", key, ": "))) << read.errors;
  }
}

TEST(ReadMachines, WithoutLinksInside_HasThoseOfTheDevice) {
  const ReadResult read = ReadText(R"(groups:
- {name: old, ranks_per_host: 8, device: gpu, model: a100}
- {name: box, ranks_per_host: 2, device: cpu, host_memory_bytes: 16e9}
)");
  ASSERT_EQ(read.errors, "");
  const std::vector<Pool> pools = PoolsOf(read.machines);
  ASSERT_EQ(pools.size(), 2u);
  EXPECT_EQ(pools[0].inside.bytes_per_s, 300e9);
  EXPECT_TRUE(IsFast(pools[0].inside));
  EXPECT_EQ(pools[1].inside.bytes_per_s, 10e9);
}

TEST(ReadMachines, WithoutGroups_IsRefused) {
  EXPECT_THAT(ReadText("{}\n").errors, HasSubstr("groups: is required"));
  const std::string broken = ReadText("groups: [\n").errors;
  EXPECT_THAT(broken, HasSubstr("machines.yaml:"));
  EXPECT_THAT(broken, testing::Not(HasSubstr("is required"))) << "the text is not YAML";
}

TEST(PoolsOf, GroupsOfOneKind_AddsThePoolOfAllWithTheSmallestFigures) {
  const ReadResult read = ReadText(absl::StrCat(kPod, R"(- name: old
  hosts: 2
  ranks_per_host: 8
  device: gpu
  model: a100
)"));
  ASSERT_EQ(read.errors, "");
  const std::vector<Pool> pools = PoolsOf(read.machines);
  ASSERT_EQ(pools.size(), 3u);
  EXPECT_EQ(pools[2].name, "pod+old");
  EXPECT_EQ(pools[2].ranks(), 48u);
  EXPECT_DOUBLE_EQ(pools[2].flops.bf16 * pools[2].efficiency, 0.45 * 312e12);
  EXPECT_EQ(pools[2].between.bytes_per_s, 10e9);
  EXPECT_EQ(pools[2].between.latency_s, 2e-5);
}

TEST(PoolsOf, GroupsOfDifferentKinds_AreUsedAlone) {
  const ReadResult read =
      ReadText(absl::StrCat(kPod, "- {name: box, ranks_per_host: 2, device: cpu, host_memory_bytes: 16e9}\n"));
  ASSERT_EQ(read.errors, "");
  EXPECT_EQ(PoolsOf(read.machines).size(), 2u);
}

TEST(GpuModelOf, ANameOfADriver_FindsTheFigures) {
  EXPECT_EQ(GpuModelOf("NVIDIA H100 80GB HBM3"), v1::GPU_MODEL_H100);
  EXPECT_EQ(GpuModelOf("NVIDIA H200"), v1::GPU_MODEL_H200);
  EXPECT_EQ(GpuModelOf("NVIDIA A100-SXM4-80GB"), v1::GPU_MODEL_A100);
  for (const char* other : {"NVIDIA GeForce RTX 4090", "NVIDIA RTX A1000", "NVIDIA GH200 480GB", "NVIDIA H100 PCIe",
                            "NVIDIA A100-PCIE-40GB", "NVIDIA H100 NVL"}) {
    EXPECT_FALSE(GpuModelOf(other).has_value()) << other;
  }
}

}  // namespace
}  // namespace trainyard::planner
