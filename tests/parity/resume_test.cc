// A resumed run equals an uninterrupted one bitwise: for every strategy and precision, in mid-epoch, with several
// micro-batches per step, packed documents, masked losses, adapters and dropout, for 50 steps after the resume. Unless
// TRAINYARD_ALL_CELLS is set, only half of the pairs of strategy and precision run, for 8 steps after the resume.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/parity/cells.h"
#include "tests/parity/rank_pool.h"
#include "tests/parity/training.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

constexpr int64_t kEpoch = 500;  // samples; a step has 36

struct NamedPrecision {
  const char* name;
  at::ScalarType type;
  const char* precision;
};
// fp64 and fp32 for everything; bf16 with fp32 masters, bf16 alone (with stochastic rounding), fp16 with a loss scale.
constexpr NamedPrecision kPrecisions[] = {{"fp64", at::kDouble, "-"},
                                          {"fp32", at::kFloat, "-"},
                                          {"bf16", at::kFloat, "bf16"},
                                          {"bf16_alone", at::kBFloat16, "bf16-master"},
                                          {"fp16", at::kFloat, "fp16"}};
// The steps at which a job resumes; StepsAfter is the number of steps that it trains after that.
std::vector<int64_t> Steps() {
  return RunsAllCells() ? std::vector<int64_t>{1, 7, 50} : std::vector<int64_t>{1, 7, 15};
}
int64_t StepsAfter() { return RunsAllCells() ? 50 : 8; }

struct Resume {
  Cell cell;
  NamedPrecision precision;
  int64_t step;
  ModelFamily family;
  bool documents;  // packed, without attention across them
  bool masked;     // some targets have no loss
};

// All combinations of strategy, precision, step and model, or a subset in which every strategy occurs with two or three
// precisions, each at another step, and with both models. Packed documents and masked losses alternate.
std::vector<Resume> Resumes() {
  const std::vector<int64_t> steps = Steps();
  std::vector<Resume> resumes;
  size_t row = 0;
  for (const Cell& cell : OneCellPerStrategy()) {
    for (size_t column = 0; column < std::size(kPrecisions); ++column) {
      if (!RunsAllCells() && (row + column) % 2 != 0) continue;
      for (size_t i = 0; i < steps.size(); ++i) {
        if (!RunsAllCells() && (row + column) % steps.size() != i) continue;
        for (ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
          const bool is_llama = family == ModelFamily::kLlama;
          if (RunsAllCells() || ((row + column) / 2 % 2 == 0) == is_llama) {
            const bool documents = (row / 2 + column + i) % 2 == 0;
            const bool masked = (row + column / 2 + i) % 2 == 0;
            resumes.push_back({cell, kPrecisions[column], steps[i], family, documents, masked});
          }
        }
      }
    }
    ++row;
  }
  return resumes;
}

RankPool& Pool() {
  static RankPool pool(4);
  return pool;
}

TrainingOutcome TrainAll(const Cell& cell, const TrainingCase& training) {
  auto results = Pool().Run({.mesh = cell.mesh(), .main = "train", .arguments = training.ToString()});
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? TrainingOutcome::Parse(results->at(0)) : TrainingOutcome();
}

class ResumeAt : public testing::TestWithParam<Resume> {};
INSTANTIATE_TEST_SUITE_P(, ResumeAt, testing::ValuesIn(Resumes()), [](const auto& info) {
  return absl::StrCat(info.param.cell.name, "_", info.param.precision.name, "_step", info.param.step, "_",
                      FamilyName(info.param.family), info.param.documents ? "_documents" : "",
                      info.param.masked ? "_masked" : "");
});

TEST_P(ResumeAt, MatchesTheUninterruptedRunToTheBit) {
  const auto& [cell, precision, step, family, documents, masked] = GetParam();
  TemporaryFolder folder;
  TrainingCase whole = cell.training();
  whole.type = precision.type;
  whole.precision = precision.precision;
  whole.family = family;
  whole.documents = documents;
  whole.masked = masked;
  whole.dropout = family == ModelFamily::kGpt2 ? 0.1 : 0;
  whole.epoch = kEpoch;
  whole.scale_window = 5;
  whole.steps = step + StepsAfter();
  whole.save_step = step;
  whole.folder = folder.path();
  TrainingCase rest = whole;
  rest.save_step = 0;
  rest.load_step = step;
  ASSERT_NE(whole.global * step % kEpoch, 0) << "the step must be in mid-epoch";
  ASSERT_GT(whole.global / whole.micro, cell.world) << "each rank needs several micro-batches";

  const TrainingOutcome uninterrupted = TrainAll(cell, whole), resumed = TrainAll(cell, rest);

  ASSERT_EQ(uninterrupted.losses.size(), static_cast<size_t>(step + StepsAfter()));
  EXPECT_EQ(resumed.losses, std::vector<double>(uninterrupted.losses.begin() + step, uninterrupted.losses.end()));
  EXPECT_EQ(resumed.parameters_hash, uninterrupted.parameters_hash);
  EXPECT_NE(uninterrupted.losses[static_cast<size_t>(step)], uninterrupted.losses.back()) << "the loss did not change";
}

// Only adapters have optimizer state. The dropout of their inputs and the frozen weights are restored, too.
class ResumeWithAdapters : public testing::TestWithParam<Cell> {};
INSTANTIATE_TEST_SUITE_P(, ResumeWithAdapters, testing::ValuesIn(SelectedStrategies()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ResumeWithAdapters, MatchesTheUninterruptedRunToTheBit) {
  for (const auto& [family, precision] :
       {std::pair{ModelFamily::kGpt2, kPrecisions[2]}, {ModelFamily::kLlama, kPrecisions[1]}}) {
    TemporaryFolder folder;
    TrainingCase whole = GetParam().training();
    whole.family = family;
    whole.type = precision.type;
    whole.precision = precision.precision;
    whole.lora = true;
    whole.documents = whole.masked = family == ModelFamily::kLlama;
    whole.dropout = 0.1;
    whole.epoch = kEpoch;
    whole.steps = 12;
    whole.save_step = 5;
    whole.folder = folder.path();
    TrainingCase rest = whole;
    rest.save_step = 0;
    rest.load_step = 5;

    const TrainingOutcome uninterrupted = TrainAll(GetParam(), whole), resumed = TrainAll(GetParam(), rest);

    ASSERT_EQ(uninterrupted.losses.size(), 12u);
    EXPECT_EQ(resumed.losses, std::vector<double>(uninterrupted.losses.begin() + 5, uninterrupted.losses.end()));
    EXPECT_EQ(resumed.parameters_hash, uninterrupted.parameters_hash);
    EXPECT_NE(uninterrupted.losses[5], uninterrupted.losses[11]);
  }
}

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  trainyard::RunAsPoolRankIfRequested(argc, argv, {{"train", trainyard::TrainMain}});
  at::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
