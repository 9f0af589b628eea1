#include "worker/data/batches.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "tests/unit/temporary_folder.h"
#include "worker/data/byte_samples.h"
#include "worker/data/corpus.h"

namespace trainyard {
namespace {

// A text in which byte i is i % 251, so that the values of a window show its position.
class BatchesTest : public testing::Test {
 protected:
  BatchesTest() {
    std::ofstream file(folder_ + "/text", std::ios::binary);
    for (int i = 0; i < 1000; ++i) file.put(static_cast<char>(i % 251));
  }

  std::unique_ptr<Corpus> Open(double validation, int64_t context) {
    return *Corpus::Open({.paths = {folder_}, .validation = validation, .context = context});
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(BatchesTest, TargetsAreTheInputsShiftedByOneByte) {
  auto corpus = Open(0, 16);
  ByteSamples samples(*corpus, 16);
  Batch batch = TrainingData(samples, 1).At(0, 4);

  ASSERT_EQ(batch.inputs.sizes(), (at::IntArrayRef{4, 16}));
  ASSERT_EQ(batch.inputs.scalar_type(), at::kLong);
  const int64_t* inputs = batch.inputs.const_data_ptr<int64_t>();
  const int64_t* targets = batch.targets.const_data_ptr<int64_t>();
  for (int i = 0; i < 64; ++i) EXPECT_EQ(targets[i], (inputs[i] + 1) % 251);
}

TEST_F(BatchesTest, TheSamplesOfAStepAreThoseOfItsMicroBatches) {
  auto corpus = Open(0, 16);
  ByteSamples samples(*corpus, 16);
  TrainingData data(samples, 1);
  Batch whole = data.At(60, 6);  // across the end of an epoch
  for (int i = 0; i < 3; ++i) {
    Batch part = data.At(60 + 2 * i, 2);
    EXPECT_TRUE(part.inputs.equal(whole.inputs.narrow(0, 2 * i, 2)));
    EXPECT_TRUE(part.targets.equal(whole.targets.narrow(0, 2 * i, 2)));
  }
}

TEST_F(BatchesTest, AnEpochPredictsEveryByteExceptTheFirstOnce) {
  auto corpus = Open(0, 9);  // 999 / 9 = 111 samples, nothing left over
  ByteSamples samples(*corpus, 9);
  TrainingData data(samples, 1);
  ASSERT_EQ(data.num_samples(), 111u);
  std::multiset<int64_t> predicted, expected;
  Batch batch = data.At(0, 111);
  for (int i = 0; i < 999; ++i) predicted.insert(batch.targets.const_data_ptr<int64_t>()[i]);
  for (int i = 1; i < 1000; ++i) expected.insert(i % 251);
  EXPECT_EQ(predicted, expected);
}

TEST_F(BatchesTest, TrainingNeverReadsTheValidationPart) {
  auto corpus = Open(0.8, 10);  // 200 bytes to train on: values 0 to 199
  ByteSamples samples(*corpus, 10);
  TrainingData data(samples, 1);
  Batch batch = data.At(0, static_cast<int64_t>(data.num_samples()));
  EXPECT_LT(batch.targets.max().item<int64_t>(), 200);
}

TEST_F(BatchesTest, EvaluationIsSpreadOverTheValidationPart) {
  auto corpus = Open(0.5, 10);  // 500 bytes: 49 samples
  ByteSamples samples(*corpus, 10);
  EvaluationData data(samples, /*num_batches=*/3, /*sequences_per_batch=*/4);
  ASSERT_EQ(data.num_batches(), 3);
  EXPECT_EQ(data.num_loss_tokens(), 120);
  EXPECT_EQ(data.At(0).inputs[0][0].item<int64_t>(), 500 % 251);
  EXPECT_EQ(data.At(2).inputs[3][0].item<int64_t>(), (500 + 11 * 49 / 12 * 10) % 251) << "the last of 12 samples";
}

TEST_F(BatchesTest, EvaluationUsesTheSamplesThatExist) {
  auto corpus = Open(0.06, 10);  // 60 bytes: 5 samples
  ByteSamples samples(*corpus, 10);
  EvaluationData data(samples, 3, 4);
  ASSERT_EQ(data.num_batches(), 2);
  EXPECT_EQ(data.At(1).inputs.size(0), 1);
  EXPECT_EQ(data.num_loss_tokens(), 50);
}

}  // namespace
}  // namespace trainyard
