// Samples from the token cache: a stream cut into samples, and documents packed whole.
#include "worker/data/token_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/unit/temporary_folder.h"
#include "worker/data/sampler.h"
#include "worker/parallel/deal.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Sample {
  std::vector<int64_t> inputs;
  std::vector<int64_t> targets;
};

class TokenSamplesTest : public testing::Test {
 protected:
  // Adds a chunk with documents of these lengths. The tokens of the nth document of the cache are 10 n, 10 n + 1, ...;
  // every token but the first is a target.
  void AddDocuments(const std::vector<int64_t>& lengths) {
    TokenChunkWriter writer(1000, ChunkKind::kDocuments);
    for (const int64_t length : lengths) {
      std::vector<int64_t> tokens(static_cast<size_t>(length));
      std::iota(tokens.begin(), tokens.end(), 10 * ++num_documents_);
      writer.AddDocument(tokens, std::vector<bool>(tokens.size(), true));
    }
    Publish(writer);
  }
  void Publish(const TokenChunkWriter& writer) {
    ASSERT_TRUE(cache_.PublishChunk(num_chunks_++, writer.Finish()).ok());
  }

  absl::StatusOr<std::unique_ptr<TokenSamples>> Open(int64_t length, double validation = 0, bool evaluates = false) {
    return TokenSamples::Open(cache_, {0, num_chunks_},
                              {.length = length, .validation = validation, .evaluates = evaluates, .vocabulary = 1000});
  }

  static Sample Read(const TokenSamples& samples, DataPart part, int64_t number) {
    Sample sample;
    sample.inputs.resize(static_cast<size_t>(samples.length()));
    sample.targets.resize(static_cast<size_t>(samples.length()));
    samples.Read(part, number, absl::MakeSpan(sample.inputs), absl::MakeSpan(sample.targets), {});
    EXPECT_EQ(samples.LossTokens(part, number),
              std::count_if(sample.targets.begin(), sample.targets.end(), [](int64_t t) { return t != kNoTarget; }));
    return sample;
  }

  TemporaryFolder temporary_;
  TokenCacheFolder cache_ = *TokenCacheFolder::Make(temporary_ / "cache");
  size_t num_chunks_ = 0;
  int64_t num_documents_ = 0;
};

TEST_F(TokenSamplesTest, AStream_IsCutAcrossChunks_AndNeighboursShareAToken) {
  // The chunks contain the tokens 0 to 27, except that chunk 3 is empty.
  for (int chunk = 0; chunk < 5; ++chunk) {
    TokenChunkWriter writer(1000, ChunkKind::kStream);
    for (int64_t i = 0; i < (chunk == 3 ? 0 : 7); ++i) writer.AddTokens({(chunk - (chunk > 3)) * 7 + i}, false);
    Publish(writer);
  }
  auto samples = *Open(9);  // 28 tokens

  ASSERT_EQ(samples->num_samples(DataPart::kTraining), 3);
  for (int64_t i = 0; i < 3; ++i) {
    const Sample sample = Read(*samples, DataPart::kTraining, i);
    for (int64_t k = 0; k < 9; ++k) {
      EXPECT_EQ(sample.inputs[static_cast<size_t>(k)], 9 * i + k);
      EXPECT_EQ(sample.targets[static_cast<size_t>(k)], 9 * i + k + 1);
    }
  }
}

TEST_F(TokenSamplesTest, SeparateDocumentsOfAStream_BeginInAnyChunk_AndNoTargetLeadsIntoThem) {
  std::vector<int64_t> begins;
  int64_t next = 0;
  // The lengths of documents; a negative one: so many tokens continue the last document of the previous chunk.
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{{3, 4}, {-5, 1, 1}, {-2}, {-9, 6, 8}}) {
    TokenChunkWriter writer(1000, ChunkKind::kStreamWithStarts);
    for (const int64_t length : lengths) {
      std::vector<int64_t> tokens(static_cast<size_t>(std::abs(length)));
      std::iota(tokens.begin(), tokens.end(), next);
      if (length > 0) begins.push_back(next);
      next += std::abs(length);
      writer.AddTokens(tokens, /*begins=*/length > 0);
    }
    Publish(writer);
  }
  for (const int64_t length : {1, 2, 5, 7, 38}) {
    const auto samples = *TokenSamples::Open(cache_, {0, num_chunks_},
                                             {.length = length, .vocabulary = 1000, .separate_documents = true});
    const size_t count = static_cast<size_t>(length);
    std::vector<int64_t> inputs(count), targets(count), starts(count);
    for (int64_t i = 0; i < samples->num_samples(DataPart::kTraining); ++i) {
      samples->Read(DataPart::kTraining, i, absl::MakeSpan(inputs), absl::MakeSpan(targets), absl::MakeSpan(starts));
      int64_t start = 0, with_loss = 0;
      for (size_t k = 0; k < count; ++k) {
        const int64_t token = i * length + static_cast<int64_t>(k);
        const auto begins_at = [&](int64_t t) { return std::count(begins.begin(), begins.end(), t) > 0; };
        if (k > 0 && begins_at(token)) start = static_cast<int64_t>(k);
        EXPECT_EQ(inputs[k], token);
        EXPECT_EQ(starts[k], start) << "token " << token;
        EXPECT_EQ(targets[k], begins_at(token + 1) ? kNoTarget : token + 1);
        with_loss += targets[k] == kNoTarget ? 0 : 1;
      }
      EXPECT_EQ(samples->LossTokens(DataPart::kTraining, i), with_loss);
    }
  }
}

TEST_F(TokenSamplesTest, Documents_ArePackedWholeAndPadded_AndNoTargetLeadsIntoAnother) {
  AddDocuments({4, 3});
  AddDocuments({6, 2});
  auto samples = *Open(6);

  // 3 + 2 inputs fit into 6; the third document's 5 do not, so it begins the next sample.
  ASSERT_EQ(samples->num_samples(DataPart::kTraining), 2);
  const Sample first = Read(*samples, DataPart::kTraining, 0), second = Read(*samples, DataPart::kTraining, 1);
  EXPECT_THAT(first.inputs, ElementsAre(10, 11, 12, 20, 21, 0));
  EXPECT_THAT(first.targets, ElementsAre(11, 12, 13, 21, 22, kNoTarget));
  EXPECT_THAT(second.inputs, ElementsAre(30, 31, 32, 33, 34, 40));
  EXPECT_THAT(second.targets, ElementsAre(31, 32, 33, 34, 35, 41));
}

TEST_F(TokenSamplesTest, ALongDocumentIsCut_AndLeftOutIfItsTargetsWereBehindTheCut) {
  TokenChunkWriter writer(1000, ChunkKind::kDocuments);
  writer.AddDocument({1, 2, 3, 4, 5, 6, 7, 8}, {false, false, false, false, false, false, true, true});
  writer.AddDocument({11, 12, 13, 14, 15, 16}, {false, true, false, false, true, true});
  writer.AddDocument({21, 22}, {false, true});
  Publish(writer);
  auto samples = *Open(4);

  ASSERT_EQ(samples->num_samples(DataPart::kTraining), 2);
  EXPECT_THAT(Read(*samples, DataPart::kTraining, 0).targets, ElementsAre(12, kNoTarget, kNoTarget, 15));
  EXPECT_THAT(Read(*samples, DataPart::kTraining, 1).targets, ElementsAre(22, kNoTarget, kNoTarget, kNoTarget));
  EXPECT_EQ(samples->summary().num_truncated, 2);
  EXPECT_EQ(samples->summary().num_without_loss, 1);
}

TEST_F(TokenSamplesTest, TheLastDocuments_AreReservedForEvaluation) {
  AddDocuments({3, 3, 3, 3, 3, 3, 3, 3});
  auto samples = *Open(4, 0.25, true);

  ASSERT_EQ(samples->num_samples(DataPart::kTraining), 3);
  ASSERT_EQ(samples->num_samples(DataPart::kEvaluation), 1);
  EXPECT_THAT(Read(*samples, DataPart::kTraining, 2).inputs, ElementsAre(50, 51, 60, 61));
  EXPECT_THAT(Read(*samples, DataPart::kEvaluation, 0).inputs, ElementsAre(70, 71, 80, 81));
}

TEST_F(TokenSamplesTest, EveryDocumentIsInExactlyOneSample_WhateverTheSizes) {
  uint64_t state = 7;
  const auto random = [&](uint64_t below) { return (state = state * 6364136223846793005u + 1) / 65536 % below; };
  std::vector<int64_t> expected;
  for (int chunk = 0; chunk < 4; ++chunk) {
    TokenChunkWriter writer(1000, ChunkKind::kDocuments);
    for (int i = 0; i < 50; ++i) {
      std::vector<int64_t> tokens(2 + random(20));
      std::vector<bool> mask(tokens.size());
      for (size_t k = 0; k < tokens.size(); ++k)
        tokens[k] = static_cast<int64_t>(random(1000)), mask[k] = random(2) == 0;
      writer.AddDocument(tokens, mask);
      for (size_t k = 1; k < tokens.size(); ++k) {
        if (mask[k]) expected.push_back(tokens[k]);
      }
    }
    Publish(writer);
  }
  auto samples = *Open(21);
  std::vector<int64_t> found;
  for (int64_t i = 0; i < samples->num_samples(DataPart::kTraining); ++i) {
    for (const int64_t target : Read(*samples, DataPart::kTraining, i).targets) {
      if (target != kNoTarget) found.push_back(target);
    }
  }
  EXPECT_EQ(found, expected);
}

// Each rank reads the micro-batches that it is dealt, so the order over all ranks does not depend on the number of
// ranks.
TEST_F(TokenSamplesTest, TheOrderOfSamples_IsTheSameForAnyNumberOfRanks_AndAcrossAResume) {
  AddDocuments(std::vector<int64_t>(60, 5));
  auto samples = *Open(8);
  const Sampler sampler(static_cast<uint64_t>(samples->num_samples(DataPart::kTraining)), 3);
  constexpr uint64_t kGlobal = 14, kSteps = 5;
  // The sample at each position of the steps from `first` on, read from the deals of all ranks.
  const auto order_with = [&](int ranks, uint64_t first) {
    std::map<uint64_t, std::vector<int64_t>> by_position;
    for (uint64_t step = first; step < kSteps; ++step) {
      for (int rank = 0; rank < ranks; ++rank) {
        for (const int64_t micro : DealStep(kGlobal, /*micro=*/2, rank, ranks).micro_batches) {
          for (uint64_t i = 0; i < 2; ++i) {
            const uint64_t position = step * kGlobal + static_cast<uint64_t>(micro) * 2 + i;
            const bool is_new =
                by_position
                    .emplace(position,
                             Read(*samples, DataPart::kTraining, static_cast<int64_t>(sampler.At(position))).inputs)
                    .second;
            EXPECT_TRUE(is_new) << "position " << position << " is read twice";
          }
        }
      }
    }
    return by_position;
  };
  const auto expected = order_with(1, 0);
  ASSERT_EQ(expected.size(), kGlobal * kSteps);
  for (const int ranks : {2, 3, 7}) EXPECT_EQ(order_with(ranks, 0), expected) << ranks << " ranks";
  for (const auto& [position, sample] : order_with(7, 3)) EXPECT_EQ(sample, expected.at(position));
}

TEST_F(TokenSamplesTest, TooLittleData_IsRefusedWithWhatToDo) {
  EXPECT_THAT(std::string(Open(8).status().message()), HasSubstr("the part for training has 0 tokens"));
  AddDocuments({3, 3});
  EXPECT_TRUE(Open(8).ok());
  EXPECT_THAT(std::string(Open(8, 0.1, true).status().message()),
              HasSubstr("the part for evaluation has 0 documents with a target"));
}

TEST_F(TokenSamplesTest, AChunkOfAnotherVocabulary_IsRefusedByName) {
  TokenChunkWriter writer(2000, ChunkKind::kDocuments);
  writer.AddDocument({1, 2}, {false, true});
  Publish(writer);

  const absl::Status status = Open(8).status();

  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("00000.chunk: the chunk belongs to another cache"));
}

}  // namespace
}  // namespace trainyard
