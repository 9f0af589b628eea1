#include "worker/data/csv_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CsvSamplesTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<CsvSamples>> Open(const std::string& text, CsvOptions options = {}) {
    const std::string path = absl::StrCat(folder_.path(), "/rows.csv");
    std::ofstream(path) << text;
    corpus_ = *Corpus::Open({.paths = {path}, .key = "train.data.csv", .suffix = kCsvFileSuffix});
    options.num_features = 2;
    options.num_classes = 3;
    return CsvSamples::Open(*corpus_, 0, 1, options, names_);
  }

  // The features and the class of a sample.
  static std::vector<double> RowOf(const CsvSamples& samples, DataPart part, int64_t sample) {
    std::vector<int64_t> inputs(2), targets(2);
    samples.Read(part, sample, absl::MakeSpan(inputs), absl::MakeSpan(targets), /*starts=*/{});
    EXPECT_EQ(targets[1], kNoTarget);
    return {std::bit_cast<double>(inputs[0]), std::bit_cast<double>(inputs[1]), static_cast<double>(targets[0])};
  }

  std::string ErrorOf(const std::string& text, CsvOptions options = {}) {
    return std::string(Open(text, options).status().message());
  }

  TemporaryFolder folder_;
  std::unique_ptr<Corpus> corpus_;
  std::vector<std::string> names_;  // of the columns, shared by all samples that a test opens
};

TEST_F(CsvSamplesTest, RowsWithoutNames_HaveTheClassInTheLastColumn) {
  const auto samples = *Open("1.5,-2e3,0\n\"3\", 4 ,2\r\n5,6,1");

  EXPECT_EQ(samples->num_samples(DataPart::kTraining), 3);
  EXPECT_THAT(RowOf(*samples, DataPart::kTraining, 0), ElementsAre(1.5, -2000, 0));
  EXPECT_THAT(RowOf(*samples, DataPart::kTraining, 1), ElementsAre(3, 4, 2));
  EXPECT_THAT(RowOf(*samples, DataPart::kTraining, 2), ElementsAre(5, 6, 1));
}

TEST_F(CsvSamplesTest, NamedLabel_IsTakenFromItsColumn) {
  const auto samples = *Open("kind,length,width\n2,0.5,0.25\n", {.label = "kind"});

  EXPECT_THAT(RowOf(*samples, DataPart::kTraining, 0), ElementsAre(0.5, 0.25, 2));
}

TEST_F(CsvSamplesTest, LastRows_AreReservedForEvaluation) {
  const auto samples = *Open("1,1,0\n2,2,1\n3,3,2\n4,4,0\n", {.validation = 0.25, .evaluates = true});

  EXPECT_EQ(samples->num_samples(DataPart::kTraining), 3);
  EXPECT_EQ(samples->num_samples(DataPart::kEvaluation), 1);
  EXPECT_THAT(RowOf(*samples, DataPart::kEvaluation, 0), ElementsAre(4, 4, 0));
}

TEST_F(CsvSamplesTest, AllBadRows_AreListedWithTheirLines) {
  const std::string error = ErrorOf("1,2,0\n1,2\n1,x,0\n1,inf,0\n1,2,3\n1,2,-1\n1,2,0.5\n");

  EXPECT_THAT(error, HasSubstr("rows.csv:2: has 2 columns; expected 3: 2 features"));
  EXPECT_THAT(error, HasSubstr("rows.csv:3: column 2: expected a finite number, found 'x'"));
  EXPECT_THAT(error, HasSubstr("rows.csv:4: column 2: expected a finite number, found 'inf'"));
  EXPECT_THAT(error,
              HasSubstr("rows.csv:5: column 3: expected a class from 0 to 2 (train.model.vocabulary), found '3'"));
  EXPECT_THAT(error, HasSubstr("rows.csv:6: column 3"));
  EXPECT_THAT(error, HasSubstr("rows.csv:7: column 3"));
}

TEST_F(CsvSamplesTest, FilesThatAreNotCsv_OrLackTheLabel_AreRefused) {
  EXPECT_THAT(ErrorOf("1,2,0\n1,\"2,0\n"), HasSubstr("rows.csv:2: is not CSV: "));
  EXPECT_THAT(ErrorOf("a,b,c\n1,2,0\n", {.label = "kind"}),
              HasSubstr("rows.csv:1: has no column 'kind' (train.data.fields.label); its columns: a, b, c"));
  EXPECT_THAT(ErrorOf("a,b\n1,2,0\n"), HasSubstr("rows.csv:1: has 2 columns; expected 3"));
  EXPECT_THAT(ErrorOf("1,2,0\n", {.label = "kind"}), HasSubstr("rows.csv:1: has no names of columns"));
  EXPECT_THAT(ErrorOf("a,b,c\n"), HasSubstr("has 0 rows"));
  EXPECT_THAT(ErrorOf("1,2,0\n", {.validation = 0.5, .evaluates = true}), HasSubstr("reserves 0 for evaluation"));
}

TEST_F(CsvSamplesTest, SamplesOfOneJob_MustNameTheSameColumns) {
  ASSERT_TRUE(Open("x,y,kind\n1,2,0\n").ok());

  const absl::Status swapped = Open("y,x,kind\n2,1,0\n", {.key = "train.data.held_out"}).status();

  EXPECT_TRUE(absl::IsInvalidArgument(swapped)) << swapped;
  EXPECT_THAT(std::string(swapped.message()), HasSubstr("rows.csv:1: names other columns than the first file"));
  EXPECT_THAT(std::string(swapped.message()), HasSubstr("expected x, y, kind; found y, x, kind"));
  EXPECT_TRUE(Open("x,y,kind\n1,2,0\n").ok());
}

TEST_F(CsvSamplesTest, ManyBadRows_AreCounted) {
  std::string text;
  for (int i = 0; i < 30; ++i) text += "1\n";

  EXPECT_THAT(ErrorOf(text), HasSubstr("and 10 more problems"));
}

}  // namespace
}  // namespace trainyard
