// trainctl metrics: lines of metrics.jsonl, files with restarts and damage, CSV, and event files of TensorBoard.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/event_file.h"
#include "client/metrics_export.h"
#include "client/metrics_record.h"
#include "client/metrics_source.h"
#include "client/plot.h"
#include "common/files.h"
#include "tests/unit/client/events.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string StepLine(uint64_t step, double loss) {
  return absl::StrCat("{\"event\":\"step\",\"step\":", step, ",\"loss\":", loss, ",\"step_s\":0.5}\n");
}

std::string EvalLine(uint64_t step, double loss) {
  return absl::StrCat("{\"event\":\"eval\",\"step\":", step, ",\"loss\":", loss, ",\"seconds\":1}\n");
}

// The records of a file as "STEP LOSS" or "eval STEP LOSS", and the notes about the file.
struct ReadFileResult {
  std::vector<std::string> rows;
  std::vector<std::string> notes;
};
ReadFileResult ReadMetrics(const std::string& text) {
  TemporaryFolder folder;
  const std::string path = JoinPath(folder.path(), "metrics.jsonl");
  EXPECT_TRUE(WriteFileAtomically(path, text).ok());
  auto source = OpenMetricsFile(path, "run");
  ReadFileResult result;
  EXPECT_TRUE((*source)
                  ->ForEach([&](const MetricsRecord& record) {
                    result.rows.push_back(
                        absl::StrCat(record.is_eval ? "eval " : "", record.step, " ", record.ValueOf("loss")));
                    return true;
                  })
                  .ok());
  result.notes = (*source)->Notes();
  return result;
}

TEST(MetricsPlot, NamesNoLowestEvaluationIfNoneHasAFiniteLoss) {
  const TemporaryFolder folder;
  const std::string path = folder / "metrics.jsonl";
  const std::string eval = "{\"event\":\"eval\",\"step\":2,\"loss\":null,\"seconds\":1}\n";
  ASSERT_TRUE(WriteFileAtomically(path, StepLine(1, 2) + StepLine(2, 1) + eval).ok());
  auto source = OpenMetricsFile(path, "run");
  ASSERT_TRUE(source.ok()) << source.status();

  const absl::StatusOr<std::string> text = PlotText(**source, {});

  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, AllOf(HasSubstr("evaluation"), Not(HasSubstr("inf"))));
}

TEST(MetricsLines, AreStepsAndEvaluationsOnly) {
  const auto record =
      ParseMetricsLine(R"({"event":"step","step":3,"loss":null,"tokens":1024,"skipped":true,"new":[1]})");

  ASSERT_TRUE(record.has_value());
  EXPECT_TRUE(std::isnan(record->ValueOf("loss")));
  EXPECT_EQ(CsvRow(*record), "step,3,nan,1024,,,,,,,,,,,,1,,");
  for (const char* line :
       {"", "{}", "[]", "{\"event\":\"step\",\"step\":-1}", "{\"event\":\"step\",\"step\":1.5}",
        "{\"event\":\"step\",\"step\":1e30}", "{\"event\":\"other\",\"step\":1}", "{\"event\":\"st"}) {
    EXPECT_FALSE(ParseMetricsLine(line).has_value()) << line;
    EXPECT_FALSE(ScanMetricsLine(line).has_value()) << line;
  }
}

TEST(MetricsLines, OfEventsHaveTheSameValues) {
  const auto record = RecordOfEvent(StepEvent(1, 7, 2.5, 0.5, 1000));

  EXPECT_EQ(CsvRow(*record).substr(0, 22), "step,7,2.5,1000,2000,0");
  EXPECT_EQ(*record->time, absl::FromUnixSeconds(1));
  EXPECT_FALSE(RecordOfEvent(StateEvent(1, v1::JOB_STATE_RUNNING)).has_value());
}

TEST(MetricsFiles, StepsThatALaterGenerationRepeatsReplaceTheEarlierOnes) {
  const auto read = ReadMetrics(StepLine(1, 9) + StepLine(2, 8) + EvalLine(2, 7) + StepLine(3, 6) + EvalLine(3, 5) +
                                StepLine(3, 4) + StepLine(4, 3) + EvalLine(3, 2.5) + StepLine(2, 2));

  EXPECT_THAT(read.rows, ElementsAre("1 9", "2 2"));
  EXPECT_THAT(read.notes, ElementsAre(HasSubstr("7 records of steps that a later generation repeated")));
}

// Regression: the first pass found no step in such a file, and the second one read behind the end of an empty list.
TEST(MetricsFiles, LinesThatEndWithCrLf_OrHaveOtherSpaces_AreRead) {
  const auto read = ReadMetrics(absl::StrReplaceAll(StepLine(1, 9) + StepLine(2, 8), {{"\n", "\r\n"}}) +
                                "{\"event\":\"step\",\"step\":3 , \"loss\":7}\n");

  EXPECT_THAT(read.rows, ElementsAre("1 9", "2 8", "3 7"));
  EXPECT_THAT(read.notes, IsEmpty());
}

TEST(MetricsFiles, AnEvaluationAfterALaterStepReplacesNothing) {
  const auto read = ReadMetrics(StepLine(1, 9) + StepLine(2, 8) + EvalLine(1, 7) + StepLine(3, 6));

  EXPECT_THAT(read.rows, ElementsAre("1 9", "2 8", "eval 1 7", "3 6"));
  EXPECT_THAT(read.notes, IsEmpty());
}

TEST(MetricsFiles, MissingStepsAndDamagedLinesAreNamed) {
  const auto read = ReadMetrics(StepLine(3, 9) + "garbage\n" + std::string(3 << 20, 'x') + "\n" + StepLine(6, 8) +
                                "{\"event\":\"step\",\"step\":7");  // a line that is being written

  EXPECT_THAT(read.rows, ElementsAre("3 9", "6 8"));
  EXPECT_THAT(read.notes, ElementsAre(HasSubstr("steps 1 to 2 are not here"), HasSubstr("2 steps between"),
                                      HasSubstr("2 lines of")));
}

TEST(MetricsFiles, AFileThatChangesWhileItIsReadIsRefused) {
  TemporaryFolder folder;
  const std::string path = JoinPath(folder.path(), "metrics.jsonl");
  ASSERT_TRUE(WriteFileAtomically(path, StepLine(1, 9) + StepLine(2, 8)).ok());
  auto source = OpenMetricsFile(path, "run");
  const auto use = [](const MetricsRecord&) { return true; };
  const int fd = *OpenRegularFile(path, O_RDWR | O_TRUNC);
  const std::string other = StepLine(1, 9) + StepLine(2, 7) + StepLine(3, 6);

  EXPECT_EQ((*source)->ForEach(use).code(), absl::StatusCode::kAborted);
  ASSERT_EQ(write(fd, other.data(), other.size()), static_cast<ssize_t>(other.size()));
  EXPECT_EQ((*source)->ForEach(use).code(), absl::StatusCode::kAborted);
  close(fd);
}

TEST(EventFiles, HaveTheChecksumsOfTfRecord) {
  EXPECT_EQ(MaskedCrc32c("123456789"), 0xC78AB0E5u);  // the masked form of 0xE3069283, the CRC of this text in RFC 3720
  EXPECT_EQ(TfRecord("ab").size(), 8u + 4 + 2 + 4);
}

TEST(EventFiles, WithoutCommitLeaveNothing) {
  TemporaryFolder folder;
  {
    auto file = EventFileWriter::Create(JoinPath(folder.path(), "events.out.tfevents.1"), absl::UnixEpoch());
    EXPECT_TRUE((*file)->Add(absl::UnixEpoch(), 1, {{"train/loss", 1}}).ok());
  }

  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Plots, StepsThatGoBackAndHugeLosses_AreLeftOut) {
  EXPECT_EQ(Plot({{5, 1}, {3, 2}, {4, 1e308}}, {}), "");
  EXPECT_THAT(Plot({{5, 1}, {3, 2}, {6, -1e308}, {8, 3}}, {.columns = 30, .unicode = false}), HasSubstr("step 5"));
}

}  // namespace
}  // namespace trainyard::client
