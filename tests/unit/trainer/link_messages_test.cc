// Between the wire's messages and the trainer's plain values.
#include "worker/trainer/link_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/trainer/small_spec.h"
#include "worker/trainer/spec_config.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SpecConfigTest, EveryKey_IsCarriedOver) {
  v1::JobSpec spec = SmallSpec();
  v1::Train& train = *spec.mutable_train();
  train.mutable_model()->set_dropout(0.25);
  train.mutable_precision()->set_master(v1::PRECISION_FP64);
  train.set_seed(7);
  train.mutable_optimizer()->set_lr(0.5);
  train.mutable_optimizer()->add_betas(0.8);
  train.mutable_optimizer()->add_betas(0.9);
  train.mutable_optimizer()->set_clip_norm(0);
  train.mutable_schedule()->set_kind(v1::SCHEDULE_KIND_LINEAR);
  train.mutable_schedule()->set_min_ratio(0);
  train.mutable_evaluate()->set_every_steps(10);
  spec.mutable_parallel()->set_overlap(false);
  spec.mutable_resources()->set_mkl_avx512(v1::SWITCH_OFF);
  spec.mutable_checkpoint()->set_keep(0);

  auto config = ConfigFromSpec(spec.SerializeAsString());

  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->model.dropout, 0.25);
  EXPECT_EQ(config->precision.master, "fp64");
  EXPECT_EQ(config->precision.param, "fp32");
  EXPECT_EQ(config->seed, 7u);
  EXPECT_EQ(config->optimizer.lr, 0.5);
  EXPECT_EQ(config->optimizer.beta1, 0.8);
  EXPECT_EQ(config->optimizer.clip_norm, 0);
  EXPECT_EQ(config->schedule.kind, TrainConfig::ScheduleKind::kLinear);
  EXPECT_EQ(config->schedule.min_ratio, 0);
  EXPECT_EQ(config->evaluate_every, 10u);
  EXPECT_EQ(config->evaluate_batches, 8);
  EXPECT_FALSE(config->parallel.overlap);
  EXPECT_EQ(config->mkl_avx512, TrainConfig::Switch::kOff);
  EXPECT_EQ(config->checkpoint_keep, 0u);
  EXPECT_EQ(config->data.text, std::vector<std::string>{"/data"});
}

TEST(SpecConfigTest, Probe_NeedsNothingOfTraining) {
  v1::JobSpec spec;
  spec.set_name("probe");
  spec.mutable_probe()->set_matmul_size(64);
  spec.mutable_probe()->set_matmul_repeats(3);
  spec.mutable_probe()->set_all_reduce_bytes(8192);
  spec.mutable_resources()->set_mkl_avx512(v1::SWITCH_ON);

  auto config = ConfigFromSpec(spec.SerializeAsString());

  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_TRUE(config->probe.has_value());
  EXPECT_EQ(config->probe->matmul_size, 64);
  EXPECT_EQ(config->probe->matmul_repeats, 3);
  EXPECT_EQ(config->probe->all_reduce_bytes, 8192);
  EXPECT_EQ(config->mkl_avx512, TrainConfig::Switch::kOn);
  EXPECT_FALSE(ConfigFromSpec(SmallSpec().SerializeAsString())->probe.has_value());
}

TEST(LinkMessagesTest, WhatAProbeMeasuredIsCarriedOver) {
  v1::Fact fact =
      ToMessage(ProbeFact{.matmul_gflops = 50, .all_reduce_latency_s = 2e-5, .all_reduce_bytes_per_s = 3e9});

  EXPECT_EQ(fact.probe().matmul_gflops(), 50);
  EXPECT_EQ(fact.probe().all_reduce_latency_s(), 2e-5);
  EXPECT_EQ(fact.probe().all_reduce_bytes_per_s(), 3e9);
}

TEST(SpecConfigTest, UnresolvedSpec_IsRefusedByKey) {
  v1::JobSpec spec = SmallSpec();
  spec.mutable_train()->mutable_batch()->clear_micro();

  EXPECT_THAT(std::string(ConfigFromSpec(spec.SerializeAsString()).status().message()), HasSubstr("train.batch.micro"));
  EXPECT_THAT(std::string(ConfigFromSpec("\xff\xff\xff").status().message()), HasSubstr("no JobSpec"));
}

TEST(SpecConfigTest, TextWithAZeroByte_IsRefusedByKey_BeforeAFileOfAnotherNameIsOpened) {
  v1::JobSpec spec = SmallSpec();
  spec.mutable_checkpoint()->set_dir(std::string("/run\0/x", 7));
  EXPECT_TRUE(absl::IsInvalidArgument(ConfigFromSpec(spec.SerializeAsString()).status()));
  EXPECT_THAT(std::string(ConfigFromSpec(spec.SerializeAsString()).status().message()),
              HasSubstr("checkpoint.dir '/run\\x00/x' holds a zero byte"));

  spec = SmallSpec();
  spec.mutable_train()->mutable_data()->add_text(std::string("/data\0", 6));
  EXPECT_THAT(std::string(ConfigFromSpec(spec.SerializeAsString()).status().message()), HasSubstr("train.data.text"));
}

TEST(LinkMessagesTest, ReadySave_IsCarriedOver) {
  v1::Fact fact = ToMessage(SaveReadyFact{.step = 5, .path = "/run/step-5", .manifest_hash = "h", .size_bytes = 70});

  EXPECT_EQ(fact.save_ready().step(), 5u);
  EXPECT_EQ(fact.save_ready().path(), "/run/step-5");
  EXPECT_EQ(fact.save_ready().manifest_hash(), "h");
  EXPECT_EQ(fact.save_ready().size_bytes(), 70u);
}

TEST(LinkMessagesTest, SavesTellWhatTrainingWaitedForThem) {
  EXPECT_FALSE(ToMessage(SavedFact{.step = 5, .seconds = 2}).saved().has_stall_s());
  EXPECT_EQ(ToMessage(SavedFact{.step = 5, .seconds = 2, .stall_s = 0.5}).saved().stall_s(), 0.5);
  EXPECT_TRUE(ToMessage(SaveFailedFact{.step = 5, .withdrawn = true}).save_failed().withdrawn());
}

TEST(LinkMessagesTest, TextThatIsNotUtf8_IsMadeSo) {
  v1::Fact fact =
      ToMessage(RefusedFact{.message = "gr\xc3\xbc\xc3\x9f \xff\xc3 \xed\xa0\x80" + std::string(10000, 'x')});

  EXPECT_THAT(fact.refused().message(), testing::StartsWith("gr\xc3\xbc\xc3\x9f ?? ???xxx"));
  EXPECT_LE(fact.refused().message().size(), 4096u);
  EXPECT_TRUE(v1::Fact().ParseFromString(fact.SerializeAsString()));
}

}  // namespace
}  // namespace trainyard
