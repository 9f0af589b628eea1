// Messages about data that differ from those of the checkpoint.
#include "worker/data/data_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace trainyard {
namespace {

using ::testing::HasSubstr;

struct Data {
  std::vector<Corpus::File> files;
  CorpusFingerprint fingerprint;
  ManifestData manifest;
};

// Returns data of files with these paths, sizes and hashes; the content hash is `content`.
Data NewData(const std::vector<ManifestDataFile>& files, const std::string& content) {
  Data data;
  data.fingerprint.content_hash = content;
  for (const ManifestDataFile& file : files) {
    data.files.push_back({file.path, static_cast<int64_t>(file.bytes)});
    data.fingerprint.file_hashes.push_back(file.hash);
    data.fingerprint.num_bytes += file.bytes;
  }
  data.fingerprint.num_files = files.size();
  data.manifest = {.num_files = files.size(),
                   .num_bytes = data.fingerprint.num_bytes,
                   .files_hash = {},
                   .content_hash = content,
                   .list = files};
  return data;
}

std::string MessageFor(const Data& before, const Data& now) {
  return std::string(CheckSameData(before.manifest, now.files, now.fingerprint).message());
}

TEST(DataCheckTest, TheSameBytes_AreTheSameDataInAnyFiles) {
  Data one = NewData({{"/a", 30, "h"}}, "same"), two = NewData({{"/b", 10, "i"}, {"/c", 20, "j"}}, "same");

  EXPECT_EQ(MessageFor(one, two), "");
  EXPECT_FALSE(DataSizesMatch(one.manifest, two.files));
  EXPECT_TRUE(DataSizesMatch(one.manifest, one.files));
}

TEST(DataCheckTest, EveryKindOfDifference_IsReportedPerFile_ForAtMostThree) {
  Data before = NewData({{"/a", 10, "h1"}, {"/b", 20, "h2"}, {"/c", 30, "h3"}}, "x");

  EXPECT_THAT(MessageFor(before, NewData({{"/a", 10, "h1"}, {"/b", 20, "h9"}, {"/c", 30, "h3"}}, "y")),
              HasSubstr("had 3 files of 60 bytes (content hash x): /b has the hash h9, had h2. Provide"));
  EXPECT_THAT(MessageFor(before, NewData({{"/a", 11, "h1"}, {"/d", 5, "h4"}}, "y")),
              HasSubstr(": /a has 11 bytes, had 10; /b is missing; /c is missing; and 1 more."));
  EXPECT_THAT(MessageFor(before, NewData({{"/b", 20, "h2"}, {"/a", 10, "h1"}, {"/c", 30, "h3"}}, "y")),
              HasSubstr("come in another order"));
}

TEST(DataCheckTest, WithoutAList_BothTotalsAreReported) {
  Data before = NewData({{"/a", 10, "h1"}}, "x");
  before.manifest.list.clear();

  const std::string message = MessageFor(before, NewData({{"/a", 12, "h2"}}, "y"));

  EXPECT_THAT(message, HasSubstr("it has 1 file of 12 bytes (content hash y) now, and had 1 file of 10 bytes"));
  EXPECT_FALSE(absl::StrContains(message, "/a"));
}

TEST(DataCheckTest, SizesInAnotherOrder_DoNotMatch) {
  Data before = NewData({{"/a", 10, "h1"}, {"/b", 20, "h2"}}, "x");

  EXPECT_FALSE(DataSizesMatch(before.manifest, NewData({{"/a", 20, ""}, {"/b", 10, ""}}, "").files));
  EXPECT_TRUE(DataSizesMatch(before.manifest, NewData({{"/c", 10, ""}, {"/d", 20, ""}}, "").files));
}

TEST(DataCheckTest, ACheckpointMadeWithoutData_ContinuesWithAnyData) {
  Data now = NewData({{"/a", 10, "h1"}}, "x");

  EXPECT_TRUE(DataSizesMatch(ManifestData{}, now.files));
  EXPECT_TRUE(CheckSameData(ManifestData{}, now.files, now.fingerprint).ok());
}

}  // namespace
}  // namespace trainyard
