// The device of a job that does not set one: the policy as a table, and the core with hosts that have GPUs.
#include "coordinator/policy/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/fake_host.h"

namespace trainyard {
namespace {

DeviceHost WithGpus(const char* name, uint32_t ranks, uint32_t gpus) {
  DeviceHost host;
  host.name = HostName(name);
  host.ranks = ranks;
  host.gpus = gpus;
  host.compute_major = 9;
  return host;
}

TEST(DecideDevice, IsCudaOnlyIfEveryHostHasAGpuForEveryRank_AndNamesHostsThatLackOne) {
  DeviceHost without = WithGpus("w2", 1, 0);
  without.gpu_note = "libnvidia-ml.so.1 not found";
  DeviceHost unusable = WithGpus("w3", 1, 1);
  unusable.cuda_note = "libcuda.so.1 not found";
  DeviceHost busy = WithGpus("w4", 1, 2);
  busy.other_jobs = "job ab12cd34";
  DeviceHost old = WithGpus("w5", 1, 1);
  old.compute_major = 7;
  DeviceHost unreported = WithGpus("w7", 1, 1);
  unreported.compute_major = 0;
  struct Case {
    std::vector<DeviceHost> hosts;
    bool needs_bfloat16;
    bool cuda;
    const char* reason;
  };
  const Case cases[] = {
      {{WithGpus("w1", 2, 2)}, true, true, "w1 has 2 GPUs for 2 ranks"},
      {{WithGpus("w1", 1, 8)}, false, true, "w1 has 8 GPUs for 1 rank"},
      {{WithGpus("w1", 2, 2), WithGpus("w6", 1, 1)},
       false,
       true,
       "w1 has 2 GPUs for 2 ranks, and 1 more host has enough too"},
      {{WithGpus("w1", 2, 1)}, false, false, "w1 has 1 GPU for 2 ranks"},
      {{WithGpus("w1", 1, 1), without}, false, false, "w2 has no GPU: libnvidia-ml.so.1 not found"},
      {{unusable}, false, false, "trainers cannot use the GPUs of w3: libcuda.so.1 not found"},
      {{busy}, false, false, "the GPUs of w4 may be in use by job ab12cd34"},
      {{old}, false, true, "w5 has 1 GPU for 1 rank"},
      {{old}, true, false, "a GPU of w5 does not compute in bf16, which the job requests"},
      {{unreported}, false, true, "w7 has 1 GPU for 1 rank"},
      {{unreported}, true, false, "the compute capability of a GPU of w7 is not known, and the job requests bf16"},
      {{}, false, false, "the job has no host"},
  };
  for (const Case& c : cases) {
    const DeviceDecision decision = DecideDevice({.needs_bfloat16 = c.needs_bfloat16, .hosts = c.hosts});
    EXPECT_EQ(decision.cuda, c.cuda) << c.reason;
    EXPECT_EQ(decision.reason, c.reason);
  }
}

class JobDevice : public testing::Test {
 protected:
  static v1::JobSpec OpenSpec(uint32_t ranks) {
    v1::JobSpec spec = MakeSpec(ranks);
    spec.mutable_resources()->clear_device();
    return spec;
  }
  // A host that lists `gpus` GPUs.
  FakeHost& Host(const char* name, uint32_t slots, uint32_t gpus) {
    FakeHost& host = *hosts_.emplace_back(std::make_unique<FakeHost>(harness_, name, slots, hosts_.size() + 1));
    for (uint32_t i = 0; i < gpus; ++i) {
      v1::Gpu& gpu = *host.inventory.add_gpus();
      gpu.set_index(i);
      gpu.set_compute_major(9);
    }
    host.Attach();
    return host;
  }
  v1::ResolvedKey Decision(const std::string& job, const std::string& key = "resources.device") {
    const v1::Job head = harness_.Get(job);
    for (const v1::ResolvedKey& decision : head.decisions()) {
      if (decision.key() == key) return decision;
    }
    return {};
  }
  v1::Device Desired(const FakeHost& host, const std::string& job) {
    for (const v1::DesiredTrainer& trainer : harness_.desired[host.session].trainers()) {
      if (trainer.key().job_id() == job) return trainer.device();
    }
    return v1::DEVICE_UNSPECIFIED;
  }

  Harness harness_;
  std::vector<std::unique_ptr<FakeHost>> hosts_;
};

TEST_F(JobDevice, DefaultDevice_IsCudaIfTheHostHasGpus_AlsoAfterACoordinatorRestart) {
  FakeHost& host = Host("w1", 2, 2);

  harness_.Submit(OpenSpec(2), "aaaaaaaa");

  EXPECT_EQ(Decision("aaaaaaaa").value(), "cuda");
  EXPECT_EQ(Decision("aaaaaaaa").reason(), "w1 has 2 GPUs for 2 ranks");
  EXPECT_EQ(Desired(host, "aaaaaaaa"), v1::DEVICE_CUDA);
  harness_.Restart();
  host.inventory.clear_gpus();
  host.Attach();
  EXPECT_EQ(Desired(host, "aaaaaaaa"), v1::DEVICE_CUDA) << "a generation does not change its device";
}

TEST_F(JobDevice, DefaultDevice_IsCpuIfOneHostHasNoGpu) {
  FakeHost& host = Host("w1", 1, 1);
  Host("w2", 1, 0);

  harness_.Submit(OpenSpec(2), "aaaaaaaa");

  EXPECT_EQ(Decision("aaaaaaaa").value(), "cpu");
  EXPECT_EQ(Decision("aaaaaaaa").reason(), "w2 has no GPU");
  EXPECT_EQ(Desired(host, "aaaaaaaa"), v1::DEVICE_CPU);
}

TEST_F(JobDevice, DefaultDevice_IsCpuIfAnotherJobUsesTheGpus) {
  FakeHost& host = Host("w1", 2, 2);

  harness_.Submit(OpenSpec(1), "aaaaaaaa");
  harness_.Submit(OpenSpec(1), "bbbbbbbb");

  EXPECT_EQ(Desired(host, "aaaaaaaa"), v1::DEVICE_CUDA);
  EXPECT_EQ(Desired(host, "bbbbbbbb"), v1::DEVICE_CPU);
  EXPECT_EQ(Decision("bbbbbbbb").reason(), "the GPUs of w1 may be in use by job aaaaaaaa");
}

TEST_F(JobDevice, DefaultDevice_IsCpuIfACommandMayUseTheGpus_ButNotIfTheCommandSetsCpu) {
  FakeHost& host = Host("w1", 4, 4);
  v1::JobSpec on_cpu = CommandSpec(1);
  on_cpu.mutable_resources()->set_device(v1::DEVICE_CPU);

  harness_.Submit(on_cpu, "aaaaaaaa");
  harness_.Submit(OpenSpec(1), "bbbbbbbb");
  harness_.Submit(CommandSpec(1), "cccccccc");
  harness_.Submit(OpenSpec(1), "dddddddd");

  EXPECT_EQ(Decision("bbbbbbbb").reason(), "w1 has 4 GPUs for 1 rank");
  EXPECT_EQ(Desired(host, "dddddddd"), v1::DEVICE_CPU);
  EXPECT_EQ(Decision("dddddddd").reason(), "the GPUs of w1 may be in use by job bbbbbbbb, job cccccccc");
}

TEST_F(JobDevice, Command_CountsAgainstTheQuotaOfGpus_OnHostsWithGpus) {
  harness_.queue.namespaces["default"].max_gpus = 2;
  harness_.Restart();
  Host("w1", 1, 0);
  harness_.Submit(CommandSpec(1), "aaaaaaaa");
  EXPECT_EQ(harness_.StateOf("aaaaaaaa"), v1::JOB_STATE_PLACED) << harness_.Get("aaaaaaaa").reason();
  EXPECT_EQ(harness_.Queue().namespaces(0).gpus(), 0u);
  Host("w2", 4, 4);

  harness_.Submit(CommandSpec(2), "bbbbbbbb");
  harness_.Submit(CommandSpec(1), "cccccccc");

  EXPECT_EQ(harness_.StateOf("bbbbbbbb"), v1::JOB_STATE_PLACED) << harness_.Get("bbbbbbbb").reason();
  EXPECT_EQ(harness_.Queue().namespaces(0).gpus(), 2u);
  EXPECT_EQ(harness_.StateOf("cccccccc"), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(harness_.Get("cccccccc").reason(), testing::HasSubstr("namespace default uses 2 of 2 GPUs"));
}

TEST_F(JobDevice, DeviceInTheSpec_IsNotADecision) {
  FakeHost& host = Host("w1", 1, 1);

  harness_.Submit(MakeSpec(1), "aaaaaaaa");

  EXPECT_EQ(Desired(host, "aaaaaaaa"), v1::DEVICE_CPU);
  EXPECT_EQ(Decision("aaaaaaaa").value(), "");
}

TEST_F(JobDevice, JobThatIsSupportedOnCpusOnly_RunsOnTheCpu_WithTheReason) {
  FakeHost& host = Host("w1", 1, 1);
  v1::JobSpec spec = OpenSpec(1);
  spec.mutable_train()->mutable_precision()->set_param(v1::PRECISION_BF16);
  spec.mutable_train()->mutable_precision()->set_master(v1::PRECISION_BF16);

  harness_.Submit(spec, "aaaaaaaa");

  EXPECT_EQ(Desired(host, "aaaaaaaa"), v1::DEVICE_CPU);
  EXPECT_EQ(Decision("aaaaaaaa").reason(),
            "train.precision has types of master weights or moments that only the optimizer on CPUs supports");
}

TEST_F(JobDevice, NextGenerationOnAHostWithoutAGpu_RunsOnTheCpu) {
  FakeHost& first = Host("w1", 1, 1);
  harness_.Submit(OpenSpec(1), "aaaaaaaa");
  EXPECT_EQ(Desired(first, "aaaaaaaa"), v1::DEVICE_CUDA);
  first.Apply();
  FakeHost& second = Host("w2", 1, 0);

  harness_.SetHostState("w1", v1::SetHostRequest::ACTION_LOST);
  harness_.Advance(absl::Seconds(30));

  EXPECT_EQ(Desired(second, "aaaaaaaa"), v1::DEVICE_CPU);
  EXPECT_EQ(Decision("aaaaaaaa").reason(), "w2 has no GPU");
}

TEST_F(JobDevice, SharedMemory_IsUsedBetweenTheRanksOfOneHost) {
  Host("w1", 2, 0);
  harness_.Submit(MakeSpec(2), "aaaaaaaa");
  EXPECT_EQ(Decision("aaaaaaaa", "network.shared_memory").value(), "on");
  EXPECT_EQ(Decision("aaaaaaaa", "network.shared_memory").reason(), "all 2 ranks are on w1");

  Host("w2", 2, 0);
  Host("w3", 2, 0);
  harness_.Submit(MakeSpec(4), "bbbbbbbb");
  EXPECT_EQ(Decision("bbbbbbbb", "network.shared_memory").value(), "auto");
  EXPECT_EQ(Decision("bbbbbbbb", "network.shared_memory").reason(),
            "used between ranks on one host; the ranks are on 2 hosts");

  Host("w4", 1, 0);
  Host("w5", 1, 0);
  harness_.Submit(MakeSpec(2), "cccccccc");
  EXPECT_EQ(Decision("cccccccc", "network.shared_memory").value(), "off");
  EXPECT_EQ(Decision("cccccccc", "network.shared_memory").reason(), "the ranks are on 2 hosts");
}

}  // namespace
}  // namespace trainyard
