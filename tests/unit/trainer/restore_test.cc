// Restores of real state with hosts that see different bytes: all ranks end with the complete state of one checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <thread>

#include "checkpoint/catalog.h"
#include "tests/unit/checkpoint/testing.h"
#include "tests/unit/link/fake_link.h"
#include "tests/unit/trainer/small_job.h"
#include "worker/trainer/rank.h"
#include "worker/trainer/run.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kRanks = 3;

// Everything that a rank resumes with: its ranges by name, and the counters.
using State = std::map<std::string, std::string>;

struct Prepared {
  std::vector<absl::Status> statuses = std::vector<absl::Status>(kRanks);
  std::vector<State> states = std::vector<State>(kRanks);
  std::vector<RestoredFact> restored;
};

class RestoreTest : public SmallJobTest {
 protected:
  // Saves steps 2, 4 and 6, with a loss scale that changes between them.
  RestoreTest() {
    StartOrder order = Order();
    order.config.checkpoint_every = 2;
    order.config.checkpoint_keep = 0;
    FakeStore store;
    std::vector<std::thread> threads;
    for (int r = 0; r < kRanks; ++r) {
      threads.emplace_back([&, r] {
        StartOrder own = order;
        own.rank = r;
        FakeLink link(&store);
        std::ostringstream log;
        const TrainerExit code = RunRank(
            own, {.link = link, .file_system = FileSystem::Real(), .log = log, .must_leave = [] { return false; }});
        EXPECT_EQ(code, kExitDone) << log.str();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  StartOrder Order() {
    StartOrder order = SmallOrder("run", 6);
    order.world_size = order.local_world_size = kRanks;
    order.config.batch_global = 6;
    order.config.batch_micro = 1;
    order.config.parallel.strategy = "fsdp";
    order.config.precision.param = "fp16";
    order.config.loss_scale.initial = 256;
    order.config.loss_scale.window = 3;
    return order;
  }

  // Returns the run folder as another host sees it: the checkpoints of `own_steps` are that host's own copies.
  std::string ViewOf(const std::string& run, const std::string& name, const std::vector<uint64_t>& own_steps) {
    const std::string view = folder_ / name;
    EXPECT_TRUE(MakeFolders(view).ok());
    std::filesystem::create_symlink(JoinPath(run, ".trainyard"), JoinPath(view, ".trainyard"));
    for (uint64_t step : {2, 4, 6}) {
      const std::string from = JoinPath(run, StepFolderName(step)), to = JoinPath(view, StepFolderName(step));
      if (std::find(own_steps.begin(), own_steps.end(), step) == own_steps.end()) {
        std::filesystem::create_directory_symlink(from, to);
      } else {
        std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
      }
    }
    return view;
  }

  static State StateOf(Rank& rank) {
    State state;
    absl::Status visited =
        rank.strategy->state().VisitOwn([&](const StateEntry& entry, int64_t first, const at::Tensor& values) {
          state[absl::StrCat(entry.role, " ", entry.name, " ", first)] =
              HashHex({static_cast<const char*>(values.const_data_ptr()), values.nbytes()});
          return absl::OkStatus();
        });
    EXPECT_TRUE(visited.ok()) << visited;
    const LossScale scale = rank.strategy->state().loss_scale();
    state["numbers"] = absl::StrCat(rank.restored_step, " ", rank.restored_samples, " ", rank.restored_content_hash,
                                    " ", rank.strategy->state().num_updates());
    state["loss scale"] = absl::StrCat(scale.scale, " ", scale.good_steps, " ", scale.hysteresis_left);
    auto hashes = rank.strategy->state().HashParameters();
    EXPECT_TRUE(hashes.ok()) << hashes.status();
    for (const NamedHash& one : *hashes) state["whole " + one.name] = one.hash;
    return state;
  }

  // Prepares all ranks up to the first step; `views` has the folders of the ranks that do not see rank 0's.
  static Prepared Prepare(StartOrder order, const std::map<int, std::string>& views = {}) {
    order.resume = true;
    order.generation = 2;
    Prepared all;
    FakeStore store;
    std::vector<std::unique_ptr<FakeLink>> links;
    for (int r = 0; r < kRanks; ++r) links.push_back(std::make_unique<FakeLink>(&store));
    std::vector<std::thread> threads;
    for (int r = 0; r < kRanks; ++r) {
      threads.emplace_back([&, r] {
        StartOrder own = order;
        own.rank = r;
        if (views.contains(r)) own.config.checkpoint_dir = views.at(r);
        std::ostringstream log;
        auto rank = PrepareRank(own, *links[static_cast<size_t>(r)], FileSystem::Real(), log);
        all.statuses[static_cast<size_t>(r)] = rank.status();
        if (rank.ok()) all.states[static_cast<size_t>(r)] = StateOf(**rank);
      });
    }
    for (std::thread& thread : threads) thread.join();
    all.restored = links[0]->FactsOf<RestoredFact>();
    return all;
  }

  // Returns the states after a restore from `step` without errors and without newer checkpoints.
  std::vector<State> CleanStates(const StartOrder& order, uint64_t step) {
    StartOrder clean = order;
    clean.config.checkpoint_dir = folder_ / absl::StrCat("clean", clean.config.parallel.strategy, step);
    const std::string name = StepFolderName(step);
    EXPECT_TRUE(MakeFolders(clean.config.checkpoint_dir).ok());
    std::filesystem::copy(folder_ / ("run/" + name), JoinPath(clean.config.checkpoint_dir, name),
                          std::filesystem::copy_options::recursive);
    const Prepared prepared = Prepare(clean);
    for (const absl::Status& status : prepared.statuses) EXPECT_TRUE(status.ok()) << status;
    return prepared.states;
  }
};

std::string ShardIn(const std::string& view, uint64_t step, uint64_t rank) {
  return JoinPath(JoinPath(view, StepFolderName(step)), ShardName(rank));
}

TEST_F(RestoreTest, DamageSeenByOneHostOnly_MakesAllRanksRestoreTheOlderCheckpoint) {
  struct Case {
    const char* name;
    const char* strategy;
    int rank;  // the rank that sees the damage
    std::function<void(const std::string& view)> damage;
    std::vector<std::string> reasons;
  };
  const std::vector<Case> cases = {
      {"last_byte",
       "fsdp",
       1,
       [](const std::string& view) {
         FlipByte(ShardIn(view, 6, 1), std::filesystem::file_size(ShardIn(view, 6, 1)) - 1);
       },
       {"rank 1 on w1: ", "shard-00001.safetensors", "exp_avg_sq '"}},
      {"shard_of_another_rank",
       "ddp",
       2,
       [](const std::string& view) {
         FlipByte(ShardIn(view, 6, 0), std::filesystem::file_size(ShardIn(view, 6, 0)) - 1);
       },
       {"rank 2 on w1: ", "shard-00000.safetensors", "exp_avg_sq '"}},
      {"header",
       "fsdp",
       2,
       [](const std::string& view) { FlipByte(ShardIn(view, 6, 2), 20); },
       {"rank 2 on w1: ", "shard-00002.safetensors: expected hash "}},
      {"missing",
       "fsdp",
       1,
       [](const std::string& view) { std::filesystem::remove(ShardIn(view, 6, 2)); },
       {"rank 1 on w1: ", "shard-00002.safetensors", "it is missing"}},
      {"truncated",
       "zero1",
       1,
       [](const std::string& view) { std::filesystem::resize_file(ShardIn(view, 6, 0), 100); },
       {"rank 1 on w1: ", "shard-00000.safetensors", "found 100 bytes"}},
      {"manifest",
       "fsdp",
       2,
       [](const std::string& view) { FlipByte(JoinPath(view, "step-00000006/manifest.json"), 300); },
       {"rank 2 on w1: "}},
      {"folder",
       "fsdp",
       1,
       [](const std::string& view) { std::filesystem::remove_all(view + "/step-00000006"); },
       {"rank 1 on w1: cannot open ", "step-00000006/manifest.json"}},
  };
  std::map<std::string, std::vector<State>> clean;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    StartOrder order = Order();
    order.config.parallel.strategy = c.strategy;
    if (!clean.contains(c.strategy)) clean[c.strategy] = CleanStates(order, 4);
    const std::string view = ViewOf(order.config.checkpoint_dir, c.name, {6});
    c.damage(view);

    const Prepared prepared = Prepare(order, {{c.rank, view}});

    for (const absl::Status& status : prepared.statuses) EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(prepared.states, clean.at(c.strategy));
    ASSERT_THAT(prepared.restored, SizeIs(1));
    EXPECT_EQ(prepared.restored[0].step, 4u);
    ASSERT_THAT(prepared.restored[0].passed_over, SizeIs(1));
    for (const std::string& text : c.reasons) EXPECT_THAT(prepared.restored[0].passed_over[0], HasSubstr(text));
  }
  EXPECT_NE(CleanStates(Order(), 6), clean.at("fsdp"))
      << "the states of steps 6 and 4 must differ, or the comparisons above prove nothing";
}

TEST_F(RestoreTest, DifferentDamageOnEachRank_RestoresTheNewestThatAllCanLoad) {
  const StartOrder order = Order();
  const std::string view_of_one = ViewOf(order.config.checkpoint_dir, "one", {6});
  const std::string view_of_two = ViewOf(order.config.checkpoint_dir, "two", {4});
  FlipByte(ShardIn(view_of_one, 6, 1), 5000);
  FlipByte(ShardIn(view_of_two, 4, 2), 5000);

  const Prepared prepared = Prepare(order, {{1, view_of_one}, {2, view_of_two}});

  EXPECT_EQ(prepared.states, CleanStates(order, 2));
  ASSERT_THAT(prepared.restored, SizeIs(1));
  ASSERT_THAT(prepared.restored[0].passed_over, SizeIs(2));
  EXPECT_THAT(prepared.restored[0].passed_over[0], HasSubstr("step 6 is damaged: rank 1 on w1: "));
  EXPECT_THAT(prepared.restored[0].passed_over[1], HasSubstr("step 4 is damaged: rank 2 on w1: "));
}

TEST_F(RestoreTest, HostThatCanReadNoCheckpoint_IsNamedInTheRefusalOfTheJob) {
  const StartOrder order = Order();
  const std::string view = ViewOf(order.config.checkpoint_dir, "one", {2, 4, 6});
  for (uint64_t step : {2, 4, 6}) FlipByte(ShardIn(view, step, 1), 5000);

  const Prepared prepared = Prepare(order, {{1, view}});

  EXPECT_TRUE(absl::IsDataLoss(prepared.statuses[0])) << prepared.statuses[0];
  EXPECT_THAT(std::string(prepared.statuses[0].message()), HasSubstr("none of the 3 checkpoints"));
  EXPECT_THAT(std::string(prepared.statuses[0].message()), HasSubstr("rank 1 on w1: "));
  for (int rank : {1, 2}) EXPECT_TRUE(absl::IsUnavailable(prepared.statuses[rank])) << prepared.statuses[rank];
  EXPECT_THAT(prepared.restored, SizeIs(0));
}

TEST_F(RestoreTest, LossScale_IsThatOfTheCheckpointIfItIsDynamic_AndThatOfTheJobIfItIsStatic) {
  StartOrder order = Order();
  const std::string saved = CleanStates(order, 6)[0].at("loss scale");
  order.config.loss_scale.initial = 64;
  StartOrder static_order = order;
  static_order.config.loss_scale.is_static = true;

  const Prepared with_dynamic = Prepare(order);
  const Prepared with_static = Prepare(static_order);

  for (int rank = 0; rank < kRanks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    ASSERT_TRUE(with_dynamic.statuses[r].ok()) << with_dynamic.statuses[r];
    ASSERT_TRUE(with_static.statuses[r].ok()) << with_static.statuses[r];
    EXPECT_EQ(with_dynamic.states[r].at("loss scale"), saved) << "rank " << rank;
    EXPECT_EQ(with_static.states[r].at("loss scale"), "64 0 2") << "rank " << rank;
  }
  EXPECT_NE(saved, "64 0 2") << "the two scales must differ, or the comparisons above prove nothing";
}

TEST_F(RestoreTest, LossScale_IsThatOfTheJobIfTheCheckpointHasAStaticOne_AndFitsTheSettings) {
  StartOrder after_static = Order();
  after_static.config.loss_scale.initial = 64;
  after_static.spec_bytes = "another spec";
  StartOrder with_minimum = after_static;
  after_static.compare_spec = [](absl::string_view) {
    return std::vector<KeyChange>{{"train.loss_scale.static", "true", "false"}};
  };
  with_minimum.compare_spec = [](absl::string_view) {
    return std::vector<KeyChange>{{"train.loss_scale.min", "1", "4096"}};
  };
  with_minimum.config.loss_scale.min = 4096;
  with_minimum.config.loss_scale.hysteresis = 1;

  const Prepared from_static = Prepare(after_static);
  const Prepared from_dynamic = Prepare(with_minimum);

  for (int rank = 0; rank < kRanks; ++rank) {
    const auto r = static_cast<size_t>(rank);
    ASSERT_TRUE(from_static.statuses[r].ok()) << from_static.statuses[r];
    ASSERT_TRUE(from_dynamic.statuses[r].ok()) << from_dynamic.statuses[r];
    EXPECT_EQ(from_static.states[r].at("loss scale"), "64 0 2") << "rank " << rank;
    EXPECT_THAT(from_dynamic.states[r].at("loss scale"), testing::StartsWith("4096 ")) << "rank " << rank;
    EXPECT_THAT(from_dynamic.states[r].at("loss scale"), testing::Not(testing::EndsWith(" 2"))) << "rank " << rank;
  }
}

}  // namespace
}  // namespace trainyard
