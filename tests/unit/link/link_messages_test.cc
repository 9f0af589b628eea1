// Conversion between the wire's messages and the trainer's plain values.
#include "worker/link/link_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "common/strict_yaml.h"
#include "tests/unit/trainer/small_spec.h"
#include "worker/link/same_computation.h"
#include "worker/link/spec_config.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST(SpecConfigTest, EveryKey_IsConverted) {
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
  spec.mutable_resources()->set_product_kernels(v1::PRODUCT_KERNELS_MKL);
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
  EXPECT_EQ(config->lr_schedule.kind, TrainConfig::LrScheduleKind::kLinear);
  EXPECT_EQ(config->lr_schedule.min_ratio, 0);
  EXPECT_EQ(config->evaluate_every, 10u);
  EXPECT_EQ(config->evaluate_batches, 8);
  EXPECT_FALSE(config->parallel.overlap);
  EXPECT_EQ(config->product_kernels, TrainConfig::ProductKernels::kMkl);
  EXPECT_EQ(config->checkpoint_keep, 0u);
  EXPECT_EQ(config->data.text, std::vector<std::string>{"/data"});
}

// During an upgrade, the coordinator may know more values than the trainer, which would train with the default.
TEST(SpecConfigTest, UnknownValueOfAnEnum_IsRefused) {
  v1::JobSpec schedule = SmallSpec();
  schedule.mutable_train()->mutable_schedule()->set_kind(static_cast<v1::ScheduleKind>(99));
  v1::JobSpec device = SmallSpec();
  device.mutable_resources()->set_device(static_cast<v1::Device>(98));

  const absl::Status unknown_schedule = ConfigFromSpec(schedule.SerializeAsString()).status();
  const absl::Status unknown_device = ConfigFromSpec(device.SerializeAsString()).status();

  EXPECT_TRUE(absl::IsInvalidArgument(unknown_schedule)) << unknown_schedule;
  EXPECT_THAT(std::string(unknown_schedule.message()), HasSubstr("train.schedule.kind has the value 99"));
  EXPECT_THAT(std::string(unknown_device.message()), HasSubstr("resources.device has the value 98"));
}

TEST(SpecConfigTest, Probe_NeedsNoKeysOfTraining) {
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
  EXPECT_EQ(config->product_kernels, TrainConfig::ProductKernels::kMklIntel);
  EXPECT_FALSE(ConfigFromSpec(SmallSpec().SerializeAsString())->probe.has_value());
}

// A spec as the coordinator resolves it.
std::string Resolved(const std::function<void(v1::JobSpec&)>& change = [](v1::JobSpec&) {}) {
  v1::JobSpec spec = SmallSpec();
  ApplyDefaults(&spec);
  change(spec);
  return spec.SerializeAsString();
}

std::string RefusalOf(const std::string& before, const std::string& now, bool allow_data_change = false) {
  return std::string(
      CompareComputation({.before = before, .now = now, .allow_data_change = allow_data_change}).status().message());
}

TEST(SameComputationTest, ChangeOfTheModelOrOfFrozenParameters_IsRefusedByKey) {
  const std::string before = Resolved();
  const std::string heads = Resolved([](v1::JobSpec& spec) {
    spec.mutable_train()->mutable_model()->set_heads(8);
    spec.mutable_train()->add_freeze("wpe.weight");
  });

  for (bool allow : {false, true}) {
    EXPECT_THAT(RefusalOf(before, heads, allow),
                AllOf(HasSubstr("train.model.heads was 4, is 8"), HasSubstr("train.freeze was none, is [wpe.weight]"),
                      HasSubstr("train.model.init_from")));
  }
}

TEST(SameComputationTest, ChangeOfTheData_IsRefusedUnlessAllowed) {
  const std::string before = Resolved();
  const std::string data = Resolved([](v1::JobSpec& spec) {
    spec.mutable_train()->mutable_data()->set_validation(0.25);
    spec.mutable_train()->mutable_data()->add_weights(0.5);
    spec.mutable_train()->mutable_data()->set_separate_documents(true);
    spec.mutable_train()->set_seed(7);
  });

  EXPECT_THAT(RefusalOf(before, data), AllOf(HasSubstr("train.data.validation was 0.05, is 0.25"),
                                             HasSubstr("train.data.weights was none, is [0.5]"),
                                             HasSubstr("train.data.separate_documents was false, is true"),
                                             HasSubstr("train.seed was 1337, is 7"), HasSubstr("--allow-data-change")));
  auto allowed = CompareComputation({.before = before, .now = data, .allow_data_change = true});
  ASSERT_TRUE(allowed.ok()) << allowed.status();
  EXPECT_THAT(*allowed,
              ElementsAre(KeyChange{"train.data.validation", "0.05", "0.25"},
                          KeyChange{"train.data.separate_documents", "false", "true"},
                          KeyChange{"train.data.weights", "none", "[0.5]"}, KeyChange{"train.seed", "1337", "7"}));
}

TEST(SameComputationTest, TokenizerFile_MayMove_ButAJobWithByteTokensMayNotGetOne) {
  const auto with = [](const char* path) {
    return Resolved([path](v1::JobSpec& spec) { spec.mutable_train()->mutable_data()->set_tokenizer_path(path); });
  };

  EXPECT_THAT(RefusalOf(Resolved(), with("/a"), /*allow_data_change=*/true),
              HasSubstr("train.data.tokenizer_path was auto, is /a"));
  EXPECT_TRUE(CompareComputation({.before = with("/a"), .now = with("/b")}).ok());
}

TEST(SameComputationTest, OtherAdapters_AreRefused_ButTheirFolderMayMove) {
  const auto with = [](const std::function<void(v1::Lora&)>& change) {
    return Resolved([&](v1::JobSpec& spec) {
      v1::Lora& lora = *spec.mutable_train()->mutable_lora();
      lora.set_rank(4);
      lora.set_alpha(8);
      lora.add_targets("c_attn");
      change(lora);
    });
  };
  const std::string before = with([](v1::Lora&) {});

  EXPECT_THAT(RefusalOf(Resolved(), before), HasSubstr("train.lora.rank was 0, is 4"));
  EXPECT_THAT(RefusalOf(before, with([](v1::Lora& lora) { lora.set_alpha(9); })),
              HasSubstr("train.lora.alpha was 8, is 9"));
  EXPECT_THAT(RefusalOf(before, with([](v1::Lora& lora) { lora.add_targets("c_fc"); })),
              HasSubstr("train.lora.targets was [c_attn], is [c_attn, c_fc]"));
  const std::string moved = with([](v1::Lora& lora) { lora.set_path("/adapter"); });
  EXPECT_TRUE(CompareComputation({.before = before, .now = moved}).ok());
}

TEST(SameComputationTest, EveryOtherChangeOfTheComputation_IsReported) {
  const std::string before = Resolved();
  const std::string now = Resolved([](v1::JobSpec& spec) {
    spec.mutable_train()->set_steps(200);
    spec.mutable_train()->mutable_batch()->set_global_size(16);
    spec.mutable_train()->mutable_data()->set_text(0, "/moved");
    spec.mutable_parallel()->set_data(v1::DATA_PARALLEL_FSDP);
    spec.mutable_parallel()->set_tensor(2);
    spec.mutable_parallel()->mutable_pipeline()->set_stages(2);
    spec.mutable_parallel()->mutable_pipeline()->set_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED);
    spec.mutable_parallel()->mutable_pipeline()->set_chunks_per_rank(2);
    spec.mutable_parallel()->mutable_pipeline()->add_split(1);
    spec.mutable_resources()->set_ranks(2);
    spec.mutable_checkpoint()->set_keep(9);  // not reported, because it does not change the computation
  });

  auto changes = CompareComputation({.before = before, .now = now});

  ASSERT_TRUE(changes.ok()) << changes.status();
  EXPECT_THAT(*changes,
              UnorderedElementsAre(
                  KeyChange{"train.steps", "100", "200"}, KeyChange{"train.batch.global", "8", "16"},
                  KeyChange{"train.data.text", "[/data]", "[/moved]"}, KeyChange{"parallel.data", "ddp", "fsdp"},
                  KeyChange{"parallel.tensor", "1", "2"}, KeyChange{"parallel.pipeline.stages", "1", "2"},
                  KeyChange{"parallel.pipeline.schedule", "1f1b", "interleaved"},
                  KeyChange{"parallel.pipeline.chunks_per_rank", "auto", "2"},
                  KeyChange{"parallel.pipeline.split", "none", "[1]"}, KeyChange{"resources.ranks", "1", "2"}));
}

TEST(SameComputationTest, OlderOrImportedSpec_IsComparedByTheKeysItHas) {
  v1::JobSpec older = SmallSpec();  // without keys that have a default
  v1::JobSpec imported;
  *imported.mutable_train()->mutable_model() = SmallSpec().train().model();
  imported.mutable_train()->mutable_model()->set_dropout(0.1);

  EXPECT_THAT(*CompareComputation({.before = older.SerializeAsString(), .now = Resolved()}), ElementsAre());
  EXPECT_THAT(*CompareComputation({.before = imported.SerializeAsString(), .now = Resolved()}),
              ElementsAre(KeyChange{"train.model.dropout", "0.1", "0"}));
  EXPECT_THAT(*CompareComputation({.before = "no spec", .now = Resolved()}), ElementsAre());
  imported.mutable_train()->mutable_model()->set_heads(2);
  EXPECT_THAT(RefusalOf(imported.SerializeAsString(), Resolved()), HasSubstr("train.model.heads was 2, is 4"));
}

TEST(SameComputationTest, LengthOfSequences_OfOlderJobsIsTheContext) {
  const std::string older = SmallSpec().SerializeAsString();
  const auto with_length = [](uint32_t length) {
    return Resolved([length](v1::JobSpec& spec) { spec.mutable_train()->mutable_batch()->set_length(length); });
  };
  const uint32_t context = SmallSpec().train().model().context();

  EXPECT_THAT(*CompareComputation({.before = older, .now = with_length(context)}), ElementsAre());
  EXPECT_THAT(RefusalOf(older, with_length(context / 2)),
              AllOf(HasSubstr("train.batch.length was "), HasSubstr("--allow-data-change")));
  EXPECT_EQ(ConfigFromSpec(older)->sequence_length(), context);
  v1::JobSpec short_sequences = SmallSpec();
  short_sequences.mutable_train()->mutable_batch()->set_length(3);
  EXPECT_EQ(ConfigFromSpec(short_sequences.SerializeAsString())->sequence_length(), 3);
}

TEST(SameComputationTest, FolderOfTheModelAndContextOfLlama_MayChange) {
  const auto llama = [](uint32_t context, const std::string& path) {
    return Resolved([&](v1::JobSpec& spec) {
      v1::Model& model = *spec.mutable_train()->mutable_model();
      model.set_family(v1::MODEL_FAMILY_LLAMA);
      model.set_context(context);
      model.set_path(path);
      model.set_config("{}");
      spec.mutable_train()->mutable_batch()->set_length(4);
    });
  };

  EXPECT_THAT(
      *CompareComputation({.before = llama(8, "/a"), .now = llama(16, "/b")}),
      UnorderedElementsAre(KeyChange{"train.model.context", "8", "16"}, KeyChange{"train.model.path", "/a", "/b"}));
  EXPECT_THAT(RefusalOf(Resolved(), llama(8, "/a")), HasSubstr("train.model.family was gpt2, is llama"));
}

TEST(LinkMessagesTest, OutcomeOfTheLastSave_IsConverted) {
  EXPECT_TRUE(ToMessage(SaveFailedFact{.step = 7, .message = "full", .will_retry = true}).save_failed().will_retry());
  EXPECT_EQ(ToMessage(FinishedFact{.step = 7, .unsaved = "full"}).finished().unsaved(), "full");
  EXPECT_EQ(ToMessage(FinishedFact{.step = 7, .ended_early = "flat"}).finished().ended_early(), "flat");
  const v1::Fact restored = ToMessage(RestoredFact{.step = 7, .changes = {{"train.steps", "1", "2"}}});
  ASSERT_EQ(restored.restored().changes_size(), 1);
  EXPECT_EQ(restored.restored().changes(0).key(), "train.steps");
  EXPECT_EQ(restored.restored().changes(0).value(), "1 -> 2");
}

TEST(LinkMessagesTest, ProbeMeasurements_AreConverted) {
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
  EXPECT_THAT(std::string(ConfigFromSpec("\xff\xff\xff").status().message()), HasSubstr("not a JobSpec"));
}

TEST(SpecConfigTest, TextWithAZeroByte_IsRefusedByKey) {
  v1::JobSpec spec = SmallSpec();
  spec.mutable_checkpoint()->set_dir(std::string("/run\0/x", 7));
  EXPECT_TRUE(absl::IsInvalidArgument(ConfigFromSpec(spec.SerializeAsString()).status()));
  EXPECT_THAT(std::string(ConfigFromSpec(spec.SerializeAsString()).status().message()),
              HasSubstr("checkpoint.dir '/run\\x00/x' holds a zero byte"));

  spec = SmallSpec();
  spec.mutable_train()->mutable_data()->add_text(std::string("/data\0", 6));
  EXPECT_THAT(std::string(ConfigFromSpec(spec.SerializeAsString()).status().message()), HasSubstr("train.data.text"));
}

TEST(LinkMessagesTest, ReadySave_IsConverted) {
  v1::Fact fact = ToMessage(SaveReadyFact{.step = 5, .path = "/run/step-5", .manifest_hash = "h", .size_bytes = 70});

  EXPECT_EQ(fact.save_ready().step(), 5u);
  EXPECT_EQ(fact.save_ready().path(), "/run/step-5");
  EXPECT_EQ(fact.save_ready().manifest_hash(), "h");
  EXPECT_EQ(fact.save_ready().size_bytes(), 70u);
}

TEST(LinkMessagesTest, SavedFact_ContainsHowLongTrainingWaited) {
  EXPECT_FALSE(ToMessage(SavedFact{.step = 5, .seconds = 2}).saved().has_stall_s());
  EXPECT_EQ(ToMessage(SavedFact{.step = 5, .seconds = 2, .stall_s = 0.5}).saved().stall_s(), 0.5);
  EXPECT_TRUE(ToMessage(SaveFailedFact{.step = 5, .withdrawn = true}).save_failed().withdrawn());
}

TEST(LinkMessagesTest, InvalidUtf8_IsReplaced) {
  v1::Fact fact =
      ToMessage(RefusedFact{.message = "gr\xc3\xbc\xc3\x9f \xff\xc3 \xed\xa0\x80" + std::string(10000, 'x')});

  EXPECT_THAT(fact.refused().message(), testing::StartsWith("gr\xc3\xbc\xc3\x9f ?? ???xxx"));
  EXPECT_LE(fact.refused().message().size(), 4096u);
  EXPECT_TRUE(v1::Fact().ParseFromString(fact.SerializeAsString()));
}

}  // namespace
}  // namespace trainyard
