// The sizes of the data axes, how micro-batches are dealt to ranks, keys of `parallel` without effect, frozen
// parameters, and precisions.
#include "spec/parallel_rules.h"

#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <map>
#include <ostream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/strict_yaml.h"
#include "spec/choices.h"
#include "spec/precision_rules.h"
#include "spec/prepare.h"
#include "tests/unit/spec/sample_job.h"

namespace trainyard {
namespace {

ReadJob ReadParallel(int ranks, const std::string& parallel) {
  return Read(absl::StrCat(absl::StrReplaceAll(kGoodJob, {{"ranks: 2", absl::StrCat("ranks: ", ranks)}}), "parallel: {",
                           parallel, "}\n"));
}

struct Row {
  const char* name;
  int ranks;
  const char* parallel;
  const char* text;
};
std::ostream& operator<<(std::ostream& out, const Row& row) { return out << row.name; }
std::string RowName(const testing::TestParamInfo<Row>& info) { return info.param.name; }

class RefusedSizes : public testing::TestWithParam<Row> {};

TEST_P(RefusedSizes, AreRefusedWithAdvice) {
  const Row& row = GetParam();

  EXPECT_EQ(ReadParallel(row.ranks, row.parallel).Errors(), row.text);
}

const Row kRefused[] = {
    {"product_is_not_the_ranks", 4, "data: hsdp, shard: 2, replicate: 3",
     "job.yaml:16:31: parallel.shard: shard 2 x replicate 3 = 6, but the job has 4 ranks; choose sizes whose product "
     "is the number of ranks, or resources.ranks 6"},
    {"shard_larger_than_the_world", 4, "data: fsdp, shard: 8",
     "job.yaml:16:31: parallel.shard: is 8, but the job has 4 ranks; choose shard 1, 2, 4 or ranks 8"},
    {"shard_that_does_not_divide", 4, "data: zero3, shard: 3",
     "job.yaml:16:32: parallel.shard: is 3, which does not divide the job's 4 ranks: 3 x 1 = 3, 3 x 2 = 6; choose 1, "
     "2, 4 or ranks 3 or 6"},
    {"replicate_that_does_not_divide", 4, "data: hsdp, replicate: 3",
     "job.yaml:16:35: parallel.replicate: is 3, which does not divide the job's 4 ranks: 3 x 1 = 3, 3 x 2 = 6; choose "
     "1, 2, 4 or ranks 3 or 6"},
    {"hsdp_without_sizes", 4, "data: hsdp",
     "job.yaml:16:18: parallel.data: is hsdp, which shards each copy of the state over `shard` ranks and has "
     "`replicate` copies; give one of the two sizes: parallel.shard 1, 2, 4 for 4 ranks"},
    {"unknown_strategy", 4, "data: fsdq",
     "job.yaml:16:18: parallel.data: expected one of ddp, zero1, zero2, zero3, fsdp, hsdp, found 'fsdq'; did you mean "
     "'fsdp'?"},
    {"no_ranks_in_a_shard", 4, "data: fsdp, shard: 0",
     "job.yaml:16:31: parallel.shard: must be from 1 to 65536, found 0"},
    {"reshard_to_one", 4, "data: fsdp, reshard_after_forward: 1",
     "job.yaml:16:47: parallel.reshard_after_forward: must be from 2 to 65536, found 1"},
    {"reshard_to_yes", 4, "data: fsdp, reshard_after_forward: yes",
     "job.yaml:16:47: parallel.reshard_after_forward: expected a whole number from 2 to 65536, true or false, found "
     "'yes'"},
};
INSTANTIATE_TEST_SUITE_P(, RefusedSizes, testing::ValuesIn(kRefused), RowName);

class KeysWithoutEffect : public testing::TestWithParam<Row> {};

TEST_P(KeysWithoutEffect, AreReportedAsWarnings) {
  const Row& row = GetParam();

  ReadJob read = ReadParallel(row.ranks, row.parallel);

  EXPECT_EQ(read.Errors(), "");
  EXPECT_EQ(read.Warnings(), row.text);
}

const Row kKeysWithoutEffect[] = {
    {"sizes_of_a_strategy_that_shards", 4, "data: zero2, shard: 2, replicate: 2", ""},
    {"resharding_of_blocks", 4, "data: fsdp, reshard_after_forward: false", ""},
    {"sizes_of_ddp", 2, "data: ddp, shard: 2",
     "job.yaml:16:30: warning: parallel.shard: has no effect: ddp shards nothing: every rank holds the whole "
     "state"},
    {"resharding_of_whole_parameters", 2, "data: zero1, reshard_after_forward: false",
     "job.yaml:16:48: warning: parallel.reshard_after_forward: has no effect: zero1 holds the parameters whole on "
     "every rank"},
    {"buckets_of_blocks", 2, "data: fsdp, bucket_elements: 100",
     "job.yaml:16:41: warning: parallel.bucket_elements: has no effect: fsdp communicates block by block"},
    {"recompute_of_every_second_block", 2, "recompute: {mode: blocks, every: 2}", ""},
    {"offload_of_whole_parameters", 2, "data: zero2, offload: {parameters: true}",
     "job.yaml:16:47: warning: parallel.offload.parameters: has no effect: zero2 needs the parameters whole on "
     "every rank all the time"},
    {"offload_of_shards", 2, "data: fsdp, optimizer_tile_elements: 1e5, offload: {optimizer: true, parameters: true}",
     ""},
    {"recompute_as_a_name", 2, "recompute: selective", ""},
    {"recompute_of_no_block", 2, "recompute: {mode: blocks, every: 3}",
     "job.yaml:16:45: warning: parallel.recompute.every: is 3, but the model has 2 blocks, so none is recomputed; "
     "choose 1 to 2"},
    {"every_without_recompute", 2, "recompute: {every: 2}",
     "job.yaml:16:31: warning: parallel.recompute.every: has no effect: parallel.recompute.mode is none, so nothing is "
     "recomputed"},
    {"broadcasts_of_blocks", 4, "data: fsdp, all_gather: false",
     "job.yaml:16:36: warning: parallel.all_gather: has no effect: fsdp communicates block by block"},
    {"broadcasts_of_parameters_that_stay_gathered", 4, "data: zero3, all_gather: false", ""},
    {"gathers_that_are_waited_for", 2, "data: zero1, overlap: false, gather_bucket_elements: 5",
     "job.yaml:16:65: warning: parallel.gather_bucket_elements: has no effect: overlap is false: each all-gather "
     "ends before the next one begins"},
    {"resharding_to_two", 4, "data: fsdp, reshard_after_forward: 2, persist_elements: 100", ""},
    {"reduction_of_each_of_two_micro_batches", 2, "data: zero2, reduce_every_micro_batch: true", ""},
    {"reduction_of_each_of_one_micro_batch", 4, "data: fsdp, reduce_every_micro_batch: true",
     "job.yaml:16:50: warning: parallel.reduce_every_micro_batch: has no effect: a step is one micro-batch on each "
     "rank"},
    {"prefetch_on_one_rank", 1, "data: fsdp, prefetch_elements: 5",
     "job.yaml:16:43: warning: parallel.prefetch_elements: has no effect: a job of one rank gathers nothing"},
    {"prefetch_on_one_rank_from_host_memory", 1, "data: fsdp, prefetch_elements: 5, offload: {parameters: true}", ""},
    {"one_rank", 1, "data: fsdp, overlap: false",
     "job.yaml:16:33: warning: parallel.overlap: has no effect: a job of one rank reduces nothing"},
};
INSTANTIATE_TEST_SUITE_P(, KeysWithoutEffect, testing::ValuesIn(kKeysWithoutEffect), RowName);

TEST(DataSizes, OfEachStrategyMultiplyToTheNumberOfRanks) {
  const std::tuple<const char*, int, uint64_t, uint64_t> rows[] = {
      {"data: ddp", 4, 1, 4},
      {"data: zero1", 4, 4, 1},
      {"data: fsdp", 3, 3, 1},
      {"data: hsdp, shard: 2", 4, 2, 2},
      {"data: hsdp, replicate: 4", 4, 1, 4},
      {"data: zero3, shard: 2, replicate: 3", 6, 2, 3},
  };
  for (const auto& [text, ranks, shard, replicate] : rows) {
    ReadJob read = ReadParallel(ranks, text);
    EXPECT_EQ(read.Errors(), "") << text;

    const DataSizes sizes = DataSizesOf(read.spec.parallel(), static_cast<uint64_t>(ranks));

    EXPECT_EQ(sizes.shard, shard) << text;
    EXPECT_EQ(sizes.replicate, replicate) << text;
  }
}

TEST(PersistElements, OfZero3_DefaultToTenTimesTheWidth) {
  auto persist = [](const char* parallel) {
    auto job = PrepareJob(ReadParallel(2, parallel).spec, {.job_id = "abcdefgh", .default_run_root = "/r"});
    return job.ok() ? job->spec.parallel().persist_elements() : 999;
  };
  EXPECT_EQ(persist("data: zero3"), 160u);
  EXPECT_EQ(persist("data: zero3, persist_elements: 7"), 7u);
  EXPECT_EQ(persist("data: fsdp"), 0u);
}

TEST(Freeze, GlobsMustMatch_AndLeaveAParameterToTrain) {
  auto errors = [](const char* freeze) { return Read(kGoodJob, {absl::StrCat("train.freeze=", freeze)}).Errors(); };

  EXPECT_EQ(errors("[wte.weight, 'h.0.*', 'h.*.ln_?.bias']"), "");
  EXPECT_EQ(errors("['h.2.*', wpe.weight]"),
            "--set train.freeze=['h.2.*', wpe.weight]: train.freeze: 'h.2.*' matches none of the 28 parameters; their "
            "names are like wte.weight, ln_f.bias, h.0.ln_1.weight, h.1.mlp.c_proj.bias; a * matches any text");
  EXPECT_EQ(errors("['*']"),
            "--set train.freeze=['*']: train.freeze: matches all 28 parameters, so nothing would be trained");
}

TEST(DataSizes, AreInTheResolvedSpecAndTheDecisions) {
  auto job = PrepareJob(ReadParallel(4, "data: hsdp, shard: 2").spec, {.job_id = "abcdefgh", .default_run_root = "/r"});
  ASSERT_TRUE(job.ok()) << job.status();

  EXPECT_EQ(job->spec.parallel().shard(), 2u);
  EXPECT_EQ(job->spec.parallel().replicate(), 2u);
  std::map<std::string, std::string> reasons;
  for (const v1::ResolvedKey& decision : job->decisions) reasons[decision.key()] = decision.reason();
  EXPECT_EQ(reasons["parallel.replicate"], "shard 2 x replicate 2 = 4 ranks");
  EXPECT_EQ(reasons.count("parallel.shard"), 0u) << "the job gives this key, so it is no decision";
  auto prepared_again = PrepareJob(job->spec, {.job_id = "zzzzzzzz", .default_run_root = "/elsewhere"});
  ASSERT_TRUE(prepared_again.ok()) << prepared_again.status();
  EXPECT_EQ(prepared_again->digest, job->digest);
}

TEST(ReshardAfterForward, IsANameOrANumber) {
  EXPECT_EQ(ReadParallel(4, "data: fsdp, reshard_after_forward: true").spec.parallel().reshard_after_forward(), 0u);
  ReadJob kept = ReadParallel(4, "data: fsdp, reshard_after_forward: false");

  EXPECT_EQ(kept.spec.parallel().reshard_after_forward(), 1u);
  EXPECT_NE(WriteYaml(kept.spec).find("reshard_after_forward: false\n"), std::string::npos);
}

TEST(Precision, IsANameOrAMap) {
  const std::string name = absl::StrReplaceAll(kGoodJob, {{"  steps: 10", "  steps: 10\n  precision: fp64"}});
  const std::string map = absl::StrReplaceAll(kGoodJob, {{"  steps: 10", "  steps: 10\n  precision: {type: fp64}"}});
  const std::string wrong = absl::StrReplaceAll(kGoodJob, {{"  steps: 10", "  steps: 10\n  precision: fp63"}});

  EXPECT_EQ(Read(name).Errors(), "");
  EXPECT_EQ(Read(name).spec.train().precision().type(), v1::PRECISION_FP64);
  EXPECT_EQ(Read(map).spec.train().precision().type(), v1::PRECISION_FP64);
  EXPECT_EQ(Read(kGoodJob, {"train.precision=fp64"}).spec.train().precision().type(), v1::PRECISION_FP64);
  EXPECT_EQ(Read(wrong).Errors(),
            "job.yaml:14:14: train.precision: expected one of fp32, fp64, bf16, fp16 or auto, found 'fp63'; did you "
            "mean 'fp64'?; or a map with the keys type, param, reduce, output, master, state");
}

std::string Types(const std::string& precision) {
  const v1::PrecisionPolicy policy =
      ResolvedPrecision(Read(kGoodJob, {absl::StrCat("train.precision=", precision)}).spec.train().precision());
  std::string types;
  for (const char* key : {"param", "reduce", "output", "master", "state"}) {
    absl::StrAppend(&types, FieldYaml(policy, *v1::PrecisionPolicy::descriptor()->FindFieldByName(key)), " ");
  }
  return types;
}

TEST(Precision, OfAName_IsTheUsualSetOfTypes_AndTheTypesOfAMapFollowParam) {
  EXPECT_EQ(Types("fp32"), "fp32 fp32 fp32 fp32 fp32 ");
  EXPECT_EQ(Types("fp64"), "fp64 fp64 fp64 fp64 fp64 ");
  EXPECT_EQ(Types("bf16"), "bf16 fp32 fp32 fp32 fp32 ");
  EXPECT_EQ(Types("{param: bf16}"), "bf16 bf16 bf16 fp32 fp32 ");
  EXPECT_EQ(Types("{param: bf16, reduce: fp32, master: bf16}"), "bf16 fp32 bf16 bf16 fp32 ");
  EXPECT_EQ(Types("{type: fp16, reduce: fp16}"), "fp16 fp16 fp32 fp32 fp32 ");
}

TEST(Precision, Contradiction_IsRefused) {
  auto errors = [](const char* precision) {
    return Read(kGoodJob, {absl::StrCat("train.precision=", precision)}).Errors();
  };

  EXPECT_EQ(errors("bf16"), "");
  EXPECT_EQ(errors("{param: bf16, master: bf16}"), "");
  EXPECT_EQ(errors("{param: fp64, reduce: fp32}"),
            "--set train.precision={param: fp64, reduce: fp32}: train.precision: fp64 must be the type of all of "
            "param, reduce, output, master and state, or of none");
  EXPECT_EQ(errors("{master: fp16}"),
            "--set train.precision={master: fp16}: train.precision: master fp16 loses most updates; choose fp32 or "
            "bf16");
  EXPECT_EQ(
      errors("{param: fp16, reduce: bf16}"),
      "--set train.precision={param: fp16, reduce: bf16}: train.precision: reduce bf16 cannot be combined with param "
      "fp16; choose fp16 or fp32");
}

TEST(Precision, Fp16_IsSlowOnlyOnACpu) {
  EXPECT_EQ(Read(kGoodJob, {"train.precision=fp16", "resources.device=cuda"}).Warnings(), "");
}

TEST(Precision, SlowTypesAndScalersWithoutEffect_AreWarnings) {
  EXPECT_EQ(Read(kGoodJob, {"train.precision=fp16", "train.loss_scale={initial: 1024}"}).Warnings(),
            "--set train.precision=fp16: warning: train.precision: fp16 is slow on a CPU; "
            "bf16 is not");
  EXPECT_EQ(Read(kGoodJob, {"train.loss_scale={initial: 1024}"}).Warnings(),
            "--set train.loss_scale={initial: 1024}: warning: train.loss_scale: has no effect: only fp16 needs its "
            "losses scaled");
}

TEST(LossScale, MinAboveTheInitialScale_IsRefused) {
  const auto errors = [](const char* scale) {
    return Read(kGoodJob, {"train.precision=fp16", absl::StrCat("train.loss_scale=", scale)}).Errors();
  };

  EXPECT_EQ(errors("{initial: 1024, min: 2048}"),
            "--set train.loss_scale={initial: 1024, min: 2048}: train.loss_scale.min: is 2048, above "
            "train.loss_scale.initial, 1024, so that the first overflow would raise the scale; give a smaller min or a "
            "larger initial");
  EXPECT_EQ(errors("{initial: 1024, min: 1024}") + errors("{initial: 1}") + errors("{window: 10}"), "");
  EXPECT_EQ(errors("{initial: 0.5, static: true}"), "") << "a static scale has no minimum";
}

TEST(LossScale, OfAStaticScale_WarnsOfTheKeysThatWouldChangeIt) {
  const auto warnings = [](const char* scale) {
    return Read(kGoodJob, {"train.precision=fp16", "resources.device=cuda", absl::StrCat("train.loss_scale=", scale)})
        .Warnings();
  };

  EXPECT_EQ(warnings("{static: true, initial: 128, window: 1000}"), "");
  EXPECT_EQ(warnings("{static: true, window: 500}"),
            "--set train.loss_scale={static: true, window: 500}: warning: train.loss_scale.window: has no effect: "
            "train.loss_scale.static is true, so the scale never changes");
}

TEST(Optimizer, EpsThatIsZeroInFp32_IsRefused) {
  EXPECT_EQ(Read(kGoodJob, {"train.optimizer.eps=1e-50"}).Errors(),
            "--set train.optimizer.eps=1e-50: train.optimizer.eps: is 1e-50, which is 0 in fp32, so that the update of "
            "an element that has had no gradient would be 0 / 0; choose at least 1e-37");
  EXPECT_EQ(Read(kGoodJob, {"train.optimizer.eps=1e-30"}).Errors(), "");
  EXPECT_EQ(Read(kGoodJob, {"train.optimizer.eps=1e-50", "train.precision=fp64"}).Errors(), "");
}

TEST(Clipping, IsByNormOrByValue) {
  EXPECT_EQ(Read(kGoodJob, {"train.optimizer={clip_norm: 1, clip_value: 0.5}"}).Errors(),
            "--set train.optimizer={clip_norm: 1, clip_value: 0.5}: train.optimizer.clip_value: cannot be "
            "combined with train.optimizer.clip_norm (1); give one of them");
  auto job = PrepareJob(Read(kGoodJob, {"train.optimizer.clip_value=0.5"}).spec,
                        {.job_id = "abcdefgh", .default_run_root = "/r"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.train().optimizer().clip_norm(), 0);
}

TEST(Deal, CountsRoundsAndIdleRanks) {
  const DealShape even = DealShapeOf(24, 3, 4), uneven = DealShapeOf(24, 3, 3);

  EXPECT_EQ(even.rounds, 2u);
  EXPECT_EQ(even.idle, 0u);
  EXPECT_EQ(uneven.micro_batches, 8u);
  EXPECT_EQ(uneven.rounds, 3u);
  EXPECT_EQ(uneven.idle, 1u);
}

TEST(AutoMicro, IsTheLargestWithTheSmallestIdleShare) {
  EXPECT_EQ(AutoMicro(8, 2), 4u);   // 2 micro-batches of 4
  EXPECT_EQ(AutoMicro(8, 1), 8u);   // 1 micro-batch of 8
  EXPECT_EQ(AutoMicro(8, 3), 1u);   // 1 of 9 places (ranks x rounds) is idle; with micro 2, 2 of 6 would be
  EXPECT_EQ(AutoMicro(24, 5), 1u);  // 1 of 25 places is idle; with micro 2, 3 of 15 would be
  EXPECT_EQ(AutoMicro(2, 3), 1u);
}

TEST(Divisors, AreComplete) {
  for (uint64_t n = 0; n <= 300; ++n) {
    std::vector<uint64_t> all;
    for (uint64_t d = 1; d <= n; ++d) {
      if (n % d == 0) all.push_back(d);
    }
    EXPECT_EQ(DivisorsOf(n), all) << n;
  }
}

// The bounds below are about a thousand times the usual time. A loop over the numbers themselves would take minutes.
double CpuSeconds(const std::function<void()>& work) {
  const clock_t begin = clock();
  work();
  return static_cast<double>(clock() - begin) / CLOCKS_PER_SEC;
}

TEST(Costs, DoNotGrowWithTheNumbersOfTheUser) {
  for (uint64_t n : {uint64_t{16777216}, uint64_t{16777213}, uint64_t{UINT32_MAX}, uint64_t{UINT64_MAX}}) {
    EXPECT_LT(CpuSeconds([n] { AutoMicro(n, 65536); }), 1) << n;
    EXPECT_LT(CpuSeconds([n] { DivisorsNear(n, n / 2); }), 1) << n;
  }
}

TEST(Costs, TheLongestAcceptedLists_AreCheckedQuickly) {
  v1::JobSpec spec = Read(kGoodJob).spec;
  spec.mutable_train()->mutable_model()->set_layers(1024);
  spec.mutable_train()->mutable_batch()->set_global_size(16777213);
  spec.mutable_train()->mutable_batch()->clear_micro();
  spec.mutable_resources()->set_ranks(65521);
  spec.mutable_parallel()->set_data(v1::DATA_PARALLEL_FSDP);
  for (int i = 0; i < 4096; ++i) {
    spec.mutable_resources()->add_hosts(absl::StrCat("a-host-of-a-cluster-", i));
    spec.mutable_resources()->add_exclude_hosts(absl::StrCat("another-host-of-a-cluster-", i));
    spec.mutable_train()->add_freeze(absl::StrCat("*?*?*?*?*?", i));
  }

  EXPECT_LT(CpuSeconds([&] {
              absl::Status status = PrepareJob(spec, {.job_id = "abcdefgh", .default_run_root = "/r"}).status();
              EXPECT_TRUE(status.ok()) << status;
            }),
            1);
}

}  // namespace
}  // namespace trainyard
