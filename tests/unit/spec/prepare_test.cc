// Preparation of a submitted spec for the ranks.
#include "spec/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/bad_request.h"
#include "common/defaults.h"
#include "common/files.h"
#include "common/strict_yaml.h"
#include "google/rpc/error_details.pb.h"
#include "spec/digest.h"
#include "spec/validate.h"
#include "tests/unit/spec/sample_job.h"

namespace trainyard {
namespace {

PreparedJob Prepared(const std::string& text, const std::vector<std::string>& overrides = {}) {
  auto job = PrepareJob(Read(text, overrides).spec, {.job_id = "abcdefgh", .default_run_root = "/runs"});
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : PreparedJob();
}

absl::Status PrepareStatus(const v1::JobSpec& spec) {
  return PrepareJob(spec, {.job_id = "abcdefgh", .default_run_root = "/runs"}).status();
}

std::map<std::string, std::string> Decisions(const PreparedJob& job) {
  std::map<std::string, std::string> decisions;
  for (const v1::ResolvedKey& decision : job.decisions) decisions[decision.key()] = decision.value();
  return decisions;
}

// Regression: only the coordinator knew this limit, so trainctl validate called such a job valid.
TEST(Prepare, JobWhoseRecordIsTooLarge_IsRefused) {
  v1::JobSpec spec = Read(kGoodJob).spec;
  for (int i = 0; i < 2'000; ++i) {
    spec.mutable_train()->mutable_data()->add_text(absl::StrCat("/", i, "/", std::string(300, 'x')));
  }

  const absl::Status refused = PrepareStatus(spec);

  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              testing::AllOf(testing::StartsWith("the spec has 6"),
                             testing::HasSubstr("at most 655360 are accepted; shorten its lists and texts")));
  spec.mutable_train()->mutable_data()->mutable_text()->DeleteSubrange(800, 1'200);
  EXPECT_TRUE(PrepareStatus(spec).ok()) << PrepareStatus(spec);
}

TEST(Prepare, SetsEveryDefaultOfTheSchema) {
  const v1::JobSpec spec = Prepared(kGoodJob).spec;

  EXPECT_EQ(spec.train().optimizer().lr(), 3e-4);
  EXPECT_EQ(spec.train().optimizer().betas_size(), 2);
  EXPECT_EQ(spec.train().optimizer().eps(), 1e-8);
  EXPECT_EQ(spec.train().seed(), 1337u);
  EXPECT_EQ(spec.train().precision().param(), v1::PRECISION_FP32);
  EXPECT_EQ(spec.train().precision().state(), v1::PRECISION_FP32);
  EXPECT_EQ(spec.parallel().bucket_elements(), uint64_t{defaults::kBucketElements});
  EXPECT_EQ(spec.parallel().gather_bucket_elements(), uint64_t{defaults::kBucketElements});
  EXPECT_EQ(spec.parallel().max_live_elements(), uint64_t{defaults::kMaxLiveElements});
  EXPECT_EQ(spec.parallel().optimizer_tile_elements(), uint64_t{defaults::kOptimizerTileElements});
  EXPECT_TRUE(spec.parallel().overlap());
  EXPECT_EQ(spec.checkpoint().keep(), 3u);
  EXPECT_EQ(spec.recovery().max_restarts(), 10u);
  EXPECT_EQ(spec.recovery().on_hang(), v1::ON_HANG_RESTART);
  EXPECT_EQ(spec.recovery().abandon_after_s(), 600);
}

TEST(Prepare, DecidesAndListsEveryAutoThatDependsOnNoHost) {
  PreparedJob job = Prepared(absl::StrReplaceAll(kGoodJob, {{"micro: 2", "micro: auto"}}));

  EXPECT_EQ(Decisions(job), (std::map<std::string, std::string>{
                                {"checkpoint.dir", "/runs/tiny-abcdefgh"},
                                {"network.interface", "auto"},
                                {"network.shared_memory", "auto"},
                                {"resources.device", "auto"},
                                {"resources.product_kernels", "auto"},
                                {"resources.threads_per_rank", "auto"},
                                {"train.batch.micro", "4"},
                                {"train.model.vocabulary", "256"},
                            }));
  EXPECT_EQ(job.spec.train().batch().micro(), 4u);
  EXPECT_EQ(job.spec.train().model().vocabulary(), 256u);
  EXPECT_EQ(job.spec.checkpoint().dir(), "/runs/tiny-abcdefgh");
  EXPECT_EQ(job.decisions[0].reason(),
            "the largest that gives each of 2 ranks the same number of sequences: global 8 = 4 x 2");
}

TEST(Prepare, GivenValues_AreNoDecisions) {
  PreparedJob job = Prepared(absl::StrReplaceAll(
      kGoodJob, {{"context: 8", "context: 8\n    vocabulary: 300"},
                 {"  ranks: 2",
                  "  ranks: 2\n  device: cpu\n  threads_per_rank: 1\n  product_kernels: mkl\n"
                  "checkpoint: {dir: /data/run}\nnetwork: {interface: eth0, shared_memory: off}"}}));

  EXPECT_TRUE(job.decisions.empty());
  EXPECT_EQ(job.spec.resources().product_kernels(), v1::PRODUCT_KERNELS_MKL);
}

TEST(Prepare, FormerNameOfAKey_IsReplaced) {
  for (const auto& [value, kernels] :
       {std::pair{"on", v1::PRODUCT_KERNELS_MKL_INTEL}, {"off", v1::PRODUCT_KERNELS_MKL}}) {
    PreparedJob job =
        Prepared(absl::StrReplaceAll(kGoodJob, {{"  ranks: 2", absl::StrCat("  ranks: 2\n  mkl_avx512: ", value)}}));

    EXPECT_EQ(job.spec.resources().product_kernels(), kernels);
    EXPECT_FALSE(job.spec.resources().has_mkl_avx512());
    // Hosts of earlier versions know only the former name.
    v1::JobSpec received;
    ASSERT_TRUE(received.ParseFromString(job.bytes));
    EXPECT_EQ(received.resources().product_kernels(), kernels);
    EXPECT_EQ(received.resources().mkl_avx512(), *value == 'o' && value[1] == 'n' ? v1::SWITCH_ON : v1::SWITCH_OFF);
    EXPECT_EQ(Decisions(job).count("resources.product_kernels"), 0u);
  }
}

TEST(Prepare, FormerNameOfAKey_IsCheckedInTheApiToo) {
  v1::JobSpec spec = Read(kGoodJob).spec;
  spec.mutable_resources()->set_mkl_avx512(v1::SWITCH_ON);
  EXPECT_THAT(PrepareJob(spec, {.job_id = "abcdefgh", .default_run_root = "/runs"})->warnings,
              testing::ElementsAre("resources.mkl_avx512: is deprecated: the key is resources.product_kernels now; "
                                   "write resources.product_kernels: mkl_intel"));

  spec.mutable_resources()->set_product_kernels(v1::PRODUCT_KERNELS_MKL);
  EXPECT_EQ(PrepareStatus(spec).message(),
            "resources.mkl_avx512: is on, which means resources.product_kernels: mkl_intel, but "
            "resources.product_kernels is mkl; remove resources.mkl_avx512, which is its former name");
}

TEST(Prepare, JobWithSettingsForCpusOnly_RunsOnTheCpu) {
  const std::pair<const char*, const char*> cases[] = {
      {"train.precision={param: bf16, master: bf16}",
       "train.precision has types of master weights or moments that only the optimizer on CPUs supports"},
      {"parallel.offload.optimizer=true", ""},
      {"parallel.recompute.mode=blocks", ""},
      {"parallel.data=fsdp", ""},
  };
  for (const auto& [keys, reason] : cases) {
    PreparedJob job = Prepared(kGoodJob, {keys});
    EXPECT_EQ(job.spec.resources().has_device(), *reason != '\0') << keys;
    for (const v1::ResolvedKey& decision : job.decisions) {
      if (decision.key() != "resources.device") continue;
      EXPECT_EQ(decision.value(), *reason != '\0' ? "cpu" : "auto");
      if (*reason != '\0') {
        EXPECT_EQ(decision.reason(), reason);
      }
    }
  }
}

TEST(Prepare, SpecFromTheApiIsCheckedLikeAFile) {
  v1::JobSpec spec = Read(kGoodJob).spec;
  spec.set_name("");
  spec.mutable_train()->mutable_model()->set_heads(0);
  spec.mutable_train()->mutable_precision()->set_type(static_cast<v1::Precision>(9));
  spec.mutable_train()->mutable_optimizer()->add_betas(0.5);
  spec.clear_resources();

  absl::Status status = PrepareJob(spec, {.job_id = "abcdefgh", .default_run_root = ""}).status();

  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "train.model.heads: must be from 1 to 1024, found 0\n"
            "train.optimizer.betas: expected a list of 2 in which each element is a number from 0 to 0.9999999, found "
            "a list of 1\n"
            "train.precision.type: expected one of fp32, fp64, bf16, fp16 or auto, found the unknown value 9\n"
            "name: must consist of 1 to 63 characters a-z, 0-9 and '-', starting with a letter; found ''\n"
            "checkpoint.dir: is required; expected a folder that all hosts of the job share");
}

// Each of these specs once crashed the coordinator or blocked it for a minute.
TEST(Prepare, NumbersOutOfRange_AreRefusedBeforeTheOtherRules) {
  const v1::JobSpec good = Read(kGoodJob).spec;
  v1::JobSpec spec = good;
  spec.mutable_parallel()->set_data(static_cast<v1::DataParallel>(99));
  EXPECT_EQ(PrepareStatus(spec).message(),
            "parallel.data: expected one of ddp, zero1, zero2, zero3, fsdp, hsdp, found the unknown value 99");
  for (v1::DataParallel strategy : {v1::DATA_PARALLEL_ZERO2, v1::DATA_PARALLEL_FSDP, v1::DATA_PARALLEL_HSDP}) {
    spec = good;
    spec.mutable_parallel()->set_data(strategy);
    spec.mutable_parallel()->set_replicate(1);
    spec.mutable_resources()->set_ranks(0);
    EXPECT_EQ(PrepareStatus(spec).message(), "resources.ranks: must be from 1 to 65536, found 0");
  }
  spec = good;
  spec.mutable_train()->mutable_batch()->set_global_size(4294967295);
  spec.mutable_train()->mutable_batch()->clear_micro();
  EXPECT_EQ(PrepareStatus(spec).message(), "train.batch.global: must be from 1 to 16777216, found 4294967295");
}

TEST(Prepare, RelativePathsAndControlCharacters_AreRefused) {
  const v1::JobSpec good = Read(kGoodJob).spec;
  v1::JobSpec spec = good;
  spec.mutable_checkpoint()->set_dir("runs/a");
  spec.mutable_train()->mutable_data()->set_text(0, "corpus");
  spec.mutable_train()->mutable_model()->set_init_from("~/weights.safetensors");
  EXPECT_EQ(PrepareStatus(spec).message(),
            "train.model.init_from: must be an absolute path, found '~/weights.safetensors'\n"
            "train.data.text: must be an absolute path, found 'corpus'\n"
            "checkpoint.dir: must be an absolute path, found 'runs/a'");
  spec = good;
  spec.mutable_checkpoint()->set_dir(std::string("/runs/a\0b", 9));
  EXPECT_EQ(PrepareStatus(spec).message(),
            "checkpoint.dir: holds the control character 0; a string must be one line of UTF-8 without control "
            "characters");
}

TEST(Prepare, SpecAboveTheSizeLimit_IsRefusedUnread) {
  v1::JobSpec spec = Read(kGoodJob).spec;
  for (int i = 0; i < 4000; ++i)
    spec.mutable_train()->mutable_data()->add_text(absl::StrCat("/", std::string(300, 'x')));

  EXPECT_NE(std::string(PrepareStatus(spec).message()).find("bytes; at most 1048576 are accepted"), std::string::npos);
}

TEST(Prepare, Refusal_NamesTheFieldsOfTheApi) {
  v1::JobSpec spec = Read(kGoodJob).spec;
  spec.mutable_train()->mutable_batch()->set_global_size(0);
  spec.mutable_resources()->add_hosts("a b");

  absl::Status status = PrepareStatus(spec);

  google::rpc::BadRequest details;
  ASSERT_TRUE(details.ParseFromString(std::string(*status.GetPayload(kBadRequestUrl))));
  ASSERT_EQ(details.field_violations_size(), 2);
  EXPECT_EQ(details.field_violations(0).field(), "spec.train.batch.global_size");
  EXPECT_EQ(details.field_violations(0).description(), "must be from 1 to 16777216, found 0");
  EXPECT_EQ(details.field_violations(1).field(), "spec.resources.hosts");
}

TEST(Prepare, ViolationsStaySmall_AndTheLastCountsTheRest) {
  v1::JobSpec spec = Read(kGoodJob).spec;
  for (int i = 0; i < 90; ++i) spec.mutable_resources()->add_hosts(absl::StrCat("a b", i));

  absl::Status status = PrepareStatus(spec);

  google::rpc::BadRequest details;
  const std::string bytes(*status.GetPayload(kBadRequestUrl));
  ASSERT_TRUE(details.ParseFromString(bytes));
  EXPECT_LT(bytes.size(), 2'000u);
  const auto& last = *details.field_violations().rbegin();
  EXPECT_EQ(last.field(), "spec");
  EXPECT_EQ(last.description(), absl::StrCat("and ", 91 - details.field_violations_size(), " more problems"));
}

TEST(Prepare, Warnings_HaveNoFilePosition) {
  PreparedJob job = Prepared(absl::StrReplaceAll(kGoodJob, {{"  steps: 10", "  steps: 10\n  optimizer: {lr: 0}"}}));

  EXPECT_EQ(job.warnings, std::vector<std::string>({"train.optimizer.lr: is 0: the model learns nothing"}));
}

TEST(Prepare, PreparingAPreparedSpecChangesNothing) {
  PreparedJob first = Prepared(kGoodJob);

  auto second = PrepareJob(first.spec, {.job_id = "zzzzzzzz", .default_run_root = "/elsewhere"});

  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->digest, first.digest);
}

TEST(Digest, IsOfTheBytesAndStable) {
  PreparedJob job = Prepared(kGoodJob);

  EXPECT_EQ(job.digest, SpecDigest(job.bytes));
  // The keys of the queue are not for the ranks, and the priority may change while they run.
  v1::JobSpec of_ranks = job.spec;
  of_ranks.clear_namespace_();
  of_ranks.clear_priority();
  EXPECT_EQ(job.bytes, SpecBytes(of_ranks));
  v1::JobSpec parsed;
  ASSERT_TRUE(parsed.ParseFromString(job.bytes));
  EXPECT_EQ(SpecBytes(parsed), job.bytes);
  // If this value changes, coordinators and trainers of different builds refuse each other.
  EXPECT_EQ(job.digest, "67d7d93eccb3ffdeffe16af06802c673");
}

TEST(Digest, DiffersWhereSpecsDiffer) {
  EXPECT_NE(Prepared(kGoodJob).digest, Prepared(absl::StrReplaceAll(kGoodJob, {{"steps: 10", "steps: 11"}})).digest);
}

TEST(Parameters, AreCountedAsForGpt2) {
  v1::Model model;
  model.set_layers(12);
  model.set_heads(12);
  model.set_width(768);
  model.set_context(1024);
  model.set_vocabulary(50257);

  EXPECT_EQ(CountParameters(model), 124439808u);  // as Hugging Face counts "gpt2"
}

TEST(JobNames, AreLettersDigitsAndDashes) {
  for (const char* good : {"a", "stdlib-gpt", "lab-10m", "a-"}) EXPECT_TRUE(IsJobName(good)) << good;
  for (const char* bad : {"", "-a", "1a", "A", "a_b", "a b", "a/b", "ä"}) EXPECT_FALSE(IsJobName(bad)) << bad;
  EXPECT_TRUE(IsJobName(std::string(63, 'a')));
  EXPECT_FALSE(IsJobName(std::string(64, 'a')));
}

TEST(WriteYaml, ResolvedSpecReadsBackEqual) {
  PreparedJob job = Prepared(kGoodJob);

  ReadJob again = Read(WriteYaml(job.spec));

  EXPECT_EQ(again.Errors(), "");
  auto prepared = PrepareJob(again.spec, {.job_id = "abcdefgh", .default_run_root = "/runs"});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->bytes, job.bytes);
}

constexpr char kProbeJob[] = "name: probe\nprobe: {matmul_size: 64}\nresources: {ranks: 2, hosts: [w1, w2]}\n";

TEST(PrepareProbe, DropsTheKeysOfTraining_AndNeedsNoFolder) {
  auto job = PrepareJob(Read(kProbeJob).spec, {.job_id = "abcdefgh", .default_run_root = ""});

  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_FALSE(job->spec.has_train());
  EXPECT_FALSE(job->spec.has_checkpoint());
  EXPECT_EQ(job->spec.probe().matmul_size(), 64u);
  EXPECT_EQ(job->spec.probe().matmul_repeats(), 5u);
  EXPECT_EQ(job->spec.probe().all_reduce_bytes(), 4194304u);
  EXPECT_EQ(Decisions(*job).count("checkpoint.dir"), 0u);
  auto again = PrepareJob(job->spec, {.job_id = "zzzzzzzz", .default_run_root = "/runs"});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->digest, job->digest);
}

TEST(Prepare, LabTinyWithOneRankHasNoWarning) {
  ReadJob read = Read(*ReadFile("configs/jobs/lab-tiny.yaml"), {"resources.ranks=1"});

  EXPECT_EQ(read.Errors(), "");
  EXPECT_EQ(read.Warnings(), "") << "keys without effect on one rank cause no warning if they have their defaults";
}

TEST(PrepareProbe, ShippedProbe_IsValidWithoutAWarning) {
  auto text = ReadFile("configs/jobs/probe.yaml");
  ASSERT_TRUE(text.ok()) << text.status();

  ReadJob read = Read(*text);

  EXPECT_EQ(read.Errors(), "");
  EXPECT_EQ(read.Warnings(), "");
}

TEST(PrepareProbe, TrainingJob_HasNoProbe) { EXPECT_FALSE(Prepared(kGoodJob).spec.has_probe()); }

TEST(HostNames, AreValidNamesOfDaemons) {
  for (const char* good : {"w1", "W-1.rack_2", "10.0.0.1"}) EXPECT_TRUE(IsHostName(good)) << good;
  for (const char* bad : {"", "a b", "w/1", "ä"}) EXPECT_FALSE(IsHostName(bad)) << bad;
}

class ShippedJobs : public testing::TestWithParam<const char*> {};

TEST_P(ShippedJobs, AreValidWithoutAWarning) {
  auto text = ReadFile(std::string("configs/jobs/") + GetParam() + ".yaml");
  ASSERT_TRUE(text.ok()) << text.status();

  ReadJob read = Read(*text);

  EXPECT_EQ(read.Errors(), "");
  EXPECT_EQ(read.Warnings(), "");
}

TEST_P(ShippedJobs, ContainEveryKeyOfTheSchema) {
  std::string text = *ReadFile(std::string("configs/jobs/") + GetParam() + ".yaml");
  PreparedJob job = Prepared(text);
  std::string resolved = WriteYaml(job.spec);

  size_t lines = 0;
  for (absl::string_view line : absl::StrSplit(resolved, '\n', absl::SkipEmpty())) {
    std::string key(absl::StripLeadingAsciiWhitespace(line.substr(0, line.find(':'))));
    EXPECT_NE(text.find(key + ":"), std::string::npos) << key;
    ++lines;
  }
  EXPECT_GT(lines, 40u);
}

// One file per strategy, with the keys that affect it.
TEST(StrategyJobs, AreValidWithoutAWarning) {
  for (const char* name : {"ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp"}) {
    auto text = ReadFile(std::string("configs/jobs/") + name + ".yaml");
    ASSERT_TRUE(text.ok()) << text.status();

    ReadJob read = Read(*text);

    EXPECT_EQ(read.Errors(), "") << name;
    EXPECT_EQ(read.Warnings(), "") << name;
    EXPECT_EQ(EnumName(*v1::DataParallel_descriptor()->FindValueByNumber(read.spec.parallel().data())), name);
  }
  for (const char* name : {"bf16", "offload", "recompute"}) {
    EXPECT_EQ(Read(*ReadFile(std::string("configs/jobs/") + name + ".yaml")).Warnings(), "") << name;
  }
  for (const char* name : {"tensor", "pipeline", "2d", "3d", "3d-zero1"}) {
    const ReadJob read = Read(*ReadFile(std::string("configs/jobs/") + name + ".yaml"));
    EXPECT_EQ(read.Errors() + read.Warnings(), "") << name;
  }
  ReadJob fp16 = Read(*ReadFile("configs/jobs/fp16.yaml"));
  EXPECT_EQ(fp16.Errors(), "");
  EXPECT_EQ(fp16.problems.Warnings().size(), 1u) << "the warning that fp16 is slow on a CPU";
}

INSTANTIATE_TEST_SUITE_P(, ShippedJobs, testing::Values("stdlib", "lab-tiny", "lab-10m"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           return absl::StrReplaceAll(info.param, {{"-", "_"}});
                         });

}  // namespace
}  // namespace trainyard
