#include "worker/data/batches.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <set>

#include "tests/unit/temporary_folder.h"
#include "worker/data/byte_samples.h"
#include "worker/data/corpus.h"
#include "worker/parallel/deal.h"

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
    return *Corpus::Open({.paths = {folder_}, .validation = validation, .length = context});
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

TEST_F(BatchesTest, TheHashOfAnEvaluationIsThatOfItsSamples) {
  auto corpus = Open(0.5, 10);
  ByteSamples samples(*corpus, 10);
  const std::string hash = EvaluationData(samples, 3, 4).ContentHash();

  EXPECT_EQ(hash.size(), 32);
  EXPECT_EQ(EvaluationData(samples, 6, 2).ContentHash(), hash) << "the size of the batches must not change the hash";
  EXPECT_NE(EvaluationData(samples, 2, 4).ContentHash(), hash) << "fewer samples must change the hash";
  auto other = Open(0.4, 10);
  ByteSamples later(*other, 10);
  EXPECT_NE(EvaluationData(later, 3, 4).ContentHash(), hash);
}

// Three texts of 30, 50 and 7 samples. The first byte of a sample identifies the sample, and the other bytes identify
// its text.
class BlendedBatchesTest : public testing::Test {
 protected:
  static constexpr int64_t kLength = 8;
  BlendedBatchesTest() {
    CorpusOptions options{.separate = true, .length = kLength};
    for (const auto& [name, samples] : std::map<std::string, int>{{"a", 30}, {"b", 50}, {"c", 7}}) {
      std::ofstream file(folder_ / name);
      for (int i = 0; i < samples; ++i) file << static_cast<char>(name[0] + i) << std::string(kLength - 1, name[0]);
      file << '.';
      options.paths.push_back(folder_ / name);
    }
    corpus_ = *Corpus::Open(options);
    for (size_t i = 0; i < 3; ++i) sources_.push_back(std::make_unique<ByteSamples>(*corpus_, kLength, i));
  }

  TrainingData Blended(const std::vector<double>& weights) {
    std::vector<LimitedSource> sources;
    for (const auto& source : sources_) sources.push_back({.source = source.get()});
    return TrainingData(sources, weights, /*seed=*/5);
  }

  TemporaryFolder folder_;
  std::unique_ptr<Corpus> corpus_;
  std::vector<std::unique_ptr<ByteSamples>> sources_;
};

using Sample = std::vector<int64_t>;

Sample Row(const Batch& batch, int64_t row) {
  const int64_t* begin = batch.inputs.const_data_ptr<int64_t>() + row * batch.inputs.size(1);
  return {begin, begin + batch.inputs.size(1)};
}

TEST_F(BlendedBatchesTest, TheOrderIsTheSameForAnyNumberOfRanks_AndAcrossAResume) {
  constexpr int64_t kGlobal = 14, kMicro = 2;
  constexpr uint64_t kSteps = 20;  // 19 epochs of the smallest source
  // What the ranks read at each position, from step `first` on.
  const auto order_with = [&](int ranks, uint64_t first) {
    const TrainingData data = Blended({1, 2.5, 3.25});
    std::map<uint64_t, Sample> by_position;
    for (uint64_t step = first; step < kSteps; ++step) {
      for (int rank = 0; rank < ranks; ++rank) {
        for (const int64_t micro : DealStep(kGlobal, kMicro, rank, ranks).micro_batches) {
          const uint64_t position = step * kGlobal + static_cast<uint64_t>(micro * kMicro);
          const Batch batch = data.At(position, kMicro);
          for (int64_t i = 0; i < kMicro; ++i) {
            const bool is_new = by_position.emplace(position + static_cast<uint64_t>(i), Row(batch, i)).second;
            EXPECT_TRUE(is_new) << "position " << position + static_cast<uint64_t>(i) << " is read twice";
          }
        }
      }
    }
    return by_position;
  };
  const auto expected = order_with(1, 0);
  ASSERT_EQ(expected.size(), kGlobal * kSteps);
  for (const int ranks : {2, 3, 7}) EXPECT_EQ(order_with(ranks, 0), expected) << ranks << " ranks";
  for (const int ranks : {1, 2, 3, 7}) {
    const auto resumed = order_with(ranks, 11);
    ASSERT_EQ(resumed.size(), kGlobal * (kSteps - 11));
    for (const auto& [position, sample] : resumed) EXPECT_EQ(sample, expected.at(position));
  }
}

TEST_F(BlendedBatchesTest, EachSourceHasItsOwnOrderAndItsOwnEpochs) {
  const std::vector<double> weights = {1, 2, 1};
  const TrainingData data = Blended(weights);
  const Batch batch = data.At(0, 400);
  for (size_t source = 0; source < 3; ++source) {
    std::vector<int64_t> seen;  // the first bytes of this source's samples, in order
    for (int64_t i = 0; i < 400; ++i) {
      const Sample row = Row(batch, i);
      if (row[1] == static_cast<int64_t>('a' + source)) seen.push_back(row[0]);
    }
    EXPECT_EQ(seen.size(), source == 1 ? 200u : 100u);
    const size_t epoch = std::array<size_t, 3>{30, 50, 7}[source];
    EXPECT_NEAR(data.Epochs(source, 400), static_cast<double>(seen.size()) / static_cast<double>(epoch), 1e-12);
    for (size_t first = 0; first + epoch <= seen.size(); first += epoch) {
      const auto begin = seen.begin() + static_cast<ptrdiff_t>(first);
      EXPECT_EQ(std::set<int64_t>(begin, begin + static_cast<ptrdiff_t>(epoch)).size(), epoch);
    }
    EXPECT_FALSE(std::is_sorted(seen.begin(), seen.begin() + static_cast<ptrdiff_t>(epoch)));
  }
  EXPECT_EQ(data.num_samples(), 87u);
}

}  // namespace
}  // namespace trainyard
