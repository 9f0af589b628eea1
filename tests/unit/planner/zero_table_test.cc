#include "planner/zero_table.h"

#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "spec/memory_plan.h"
#include "tests/unit/planner/samples.h"

namespace trainyard::planner {
namespace {

using Row = std::array<double, kZeroStages>;

void ExpectGigabytes(const ZeroTable& table, const Row& parameters, const Row& gradients, const Row& optimizer,
                     const Row& total) {
  for (size_t stage = 0; stage < table.size(); ++stage) {
    EXPECT_EQ(table[stage].parameters, parameters[stage] * 1e9) << stage;
    EXPECT_EQ(table[stage].gradients, gradients[stage] * 1e9) << stage;
    EXPECT_EQ(table[stage].optimizer, optimizer[stage] * 1e9) << stage;
    EXPECT_EQ(table[stage].total(), total[stage] * 1e9) << stage;
  }
}

TEST(MakeZeroTable, OfDocuments_HasTheCellsOf7bOnFourRanks) {
  ExpectGigabytes(MakeZeroTable(Convention::kDocuments, 7e9, 4), {14, 14, 14, 3.5}, {14, 14, 3.5, 3.5},
                  {56, 14, 14, 14}, {84, 42, 31.5, 21});
}

TEST(MakeZeroTable, OfThePaper_AddsTheWeightsOfTheOptimizer) {
  ExpectGigabytes(MakeZeroTable(Convention::kPaper, 7e9, 4), {14, 14, 14, 3.5}, {14, 14, 3.5, 3.5}, {84, 21, 21, 21},
                  {112, 49, 38.5, 28});
}

TEST(ZeroSavings, OfThePaper_ApproachFourEightAndTheNumberOfRanks) {
  double last[kZeroStages] = {0, 0, 0, 0};
  for (const uint64_t ranks : {4, 8, 64, 1024, 65536}) {
    const auto savings = ZeroSavings(Convention::kPaper, ranks);
    EXPECT_EQ(savings[0], 1);
    EXPECT_DOUBLE_EQ(savings[3], static_cast<double>(ranks));
    for (size_t stage = 1; stage < savings.size(); ++stage) {
      EXPECT_GT(savings[stage], last[stage]) << ranks;
      last[stage] = savings[stage];
    }
  }
  EXPECT_NEAR(last[1], 4, 0.01);
  EXPECT_NEAR(last[2], 8, 0.01);
  const auto limit = ZeroSavings(Convention::kPaper, 0);
  EXPECT_EQ(limit[1], 4);
  EXPECT_EQ(limit[2], 8);
  EXPECT_TRUE(std::isinf(limit[3]));
}

TEST(ZeroSavings, OnFourRanks_AreSmallerThanTheirLimits) {
  const auto savings = ZeroSavings(Convention::kDocuments, 4);
  EXPECT_EQ(savings[1], 2);
  EXPECT_DOUBLE_EQ(savings[2], 84 / 31.5);
  EXPECT_EQ(savings[3], 4);
}

// The convention of this program is what PlanMemory plans, so the table cannot differ from `validate --memory`.
TEST(BytesPerParameter, OfTrainyard_AreThoseOfThePlanOfTheMemory) {
  const auto planned = [](const char* precision) {
    const v1::JobSpec spec =
        ResolvedJob(ReadGoodJob(kJobOf7b, {absl::StrCat("train.precision=", precision), "train.batch.micro=1"}));
    return PlanMemory(spec);
  };
  const auto expect = [](const StateBytes& bytes, const MemoryPlan& plan, double parameters) {
    EXPECT_DOUBLE_EQ(bytes.parameters, static_cast<double>(plan.parameters) / parameters);
    EXPECT_DOUBLE_EQ(bytes.gradients, static_cast<double>(plan.gradients) / parameters);
    EXPECT_DOUBLE_EQ(bytes.optimizer, static_cast<double>(plan.optimizer) / parameters);
  };
  const MemoryPlan half = planned("bf16"), full = planned("fp32");
  const double parameters = static_cast<double>(half.parameters) / 2;
  expect(BytesPerParameter(Convention::kTrainyard), half, parameters);
  expect(BytesPerParameterInFp32(), full, parameters);
  EXPECT_EQ(full.activations, 2 * half.activations) << "16 bits halve the activations";
  EXPECT_GT(half.parameters + half.gradients + half.optimizer, full.parameters + full.gradients + full.optimizer)
      << "16 bits do not halve the state";
}

TEST(ConventionOf, AnUnknownName_ListsTheNames) {
  EXPECT_EQ(ConventionOf("paper").value(), Convention::kPaper);
  EXPECT_EQ(ConventionOf("papers").status().message(),
            "unknown convention 'papers'; expected one of documents, paper, trainyard");
}

}  // namespace
}  // namespace trainyard::planner
