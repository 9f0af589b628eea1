// Mutated files end with a job or with problems, quickly; nothing crashes.
#include <gtest/gtest.h>

#include <random>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/unit/foreign/imported.h"

namespace trainyard::foreign {
namespace {

constexpr int kMutants = 300;
constexpr absl::Duration kLimit = absl::Seconds(5);  // for one file, on a loaded machine

constexpr const char* kSeeds[] = {
    R"({"train_batch_size": "auto", "fp16": {"enabled": true, "loss_scale": 0}, "zero_optimization": {"stage": 3,
        "reduce_bucket_size": 5e8, "offload_param": {"device": "cpu"}, "mics_shard_size": 2},
        "optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.99], "lr": "auto"}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 3, "total_num_steps": "auto"}}})",
    "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
    "  fsdp_transformer_layer_cls_to_wrap: [GPT2Block]\n  fsdp_sharding_strategy: HYBRID_SHARD\nnum_processes: 4\n"
    "num_machines: 2\nparallelism_config: {parallelism_config_tp_size: 2}\nmixed_precision: 'no'\n",
    R"({"fsdp": "full_shard offload", "fsdp_config": {"version": 1, "xla": false}, "max_steps": -1})",
};
constexpr const char* kPieces[] = {"{",     "}",  "[",    "]",    ",",    ":",        "\"",   "'",
                                   "1e999", "-1", "nan",  "null", "~",    "\"auto\"", "true", "*a",
                                   "&a ",   "\t", "\n\n", "\xff", "9e18", "0",        "- ",   "#"};

std::string Mutate(std::string text, std::mt19937& random) {
  const int changes = 1 + static_cast<int>(random() % 4);
  for (int i = 0; i < changes; ++i) {
    const size_t at = random() % (text.size() + 1);
    const std::string piece = kPieces[random() % std::size(kPieces)];
    switch (random() % 4) {
      case 0:
        text.insert(at, piece);
        break;
      case 1:
        text.replace(at, 1 + random() % 8, piece);
        break;
      case 2:
        text.erase(at, random() % 20);
        break;
      default:
        text.insert(at, text.substr(random() % (text.size() + 1), random() % 40));
    }
  }
  return text;
}

TEST(FuzzTest, MutatedFilesEndWithAJobOrProblems) {
  std::mt19937 random(17);
  for (int i = 0; i < kMutants; ++i) {
    const std::string text = Mutate(kSeeds[i % std::size(kSeeds)], random);
    SCOPED_TRACE(text);
    const absl::Time start = absl::Now();

    const Imported imported = Import(text, RequiredFlags());
    const std::string written = JobText(imported.job, "mutant");

    EXPECT_LT(absl::Now() - start, kLimit);
    EXPECT_FALSE(written.empty());
  }
}

TEST(FuzzTest, ALargeFileOfUnknownKeysIsRefusedQuickly) {
  std::string text = "{\"train_batch_size\": 8";
  for (int i = 0; i < 50'000; ++i) absl::StrAppend(&text, ", \"key", i, "\": {}");
  const absl::Time start = absl::Now();

  const Imported imported = Import(text + "}", RequiredFlags());

  EXPECT_GE(imported.problems.error_count(), 50'000);
  EXPECT_LT(absl::Now() - start, kLimit);
}

}  // namespace
}  // namespace trainyard::foreign
