// Messages about data that differ from those of the checkpoint.
#include "worker/data/data_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "common/files.h"
#include "tests/unit/temporary_folder.h"

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

TEST(DataCheckTest, TheRecord_HasTheHostAndIsOfOneContentOnly) {
  const TemporaryFolder folder;
  ASSERT_TRUE(RecordData(folder.path(), "content", "identity", "w1").ok());

  EXPECT_TRUE(DataIsRecorded(folder.path(), "content", "identity"));
  EXPECT_FALSE(DataIsRecorded(folder.path(), "content", "other"));
  EXPECT_EQ(RecordedHost(folder.path(), "content"), "w1");
  EXPECT_EQ(RecordedHost(folder.path(), "other"), "");

  ASSERT_TRUE(RecordData(folder.path(), "content", "identity", "w2").ok());
  EXPECT_EQ(RecordedHost(folder.path(), "content"), "w2");

  // Earlier versions recorded no host.
  ASSERT_TRUE(WriteFileAtomically(folder / ".data", R"({"identity":"identity","content_hash":"content"})").ok());
  EXPECT_TRUE(DataIsRecorded(folder.path(), "content", "identity"));
  EXPECT_EQ(RecordedHost(folder.path(), "content"), "");
}

TEST(DataCheckTest, HostsWithOtherDataThanTheCheckpoint_AreFound_UnlessTheDataHasChanged) {
  const DataOfRank same1{"w1", "x"}, other1{"w1", "y"}, same2{"w2", "x"}, other2{"w2", "y"}, other3{"w3", "z"};
  const DataOfCheckpoint checkpoint{.content_hash = "x", .host = "w1"};
  const std::vector<bool> refused;

  EXPECT_EQ(FindHostsWithOtherData(checkpoint, {same1, other2, same2}), std::vector<bool>({false, true, false}));
  EXPECT_EQ(FindHostsWithOtherData(checkpoint, {other1, same2}), std::vector<bool>({true, false}));
  EXPECT_EQ(FindHostsWithOtherData(checkpoint, {other2, other3}), std::vector<bool>({true, true}))
      << "the host that had the data is not among them";
  EXPECT_EQ(FindHostsWithOtherData(checkpoint, {other1, other3}), refused) << "the data has changed";
  EXPECT_EQ(FindHostsWithOtherData({.content_hash = "x", .host = ""}, {other2}), refused) << "unknown where it was";
  EXPECT_EQ(FindHostsWithOtherData({.content_hash = "", .host = "w1"}, {same1, other2}), refused);
  EXPECT_EQ(FindHostsWithOtherData(checkpoint, {same1, same2}), refused) << "not because of this data";
}

}  // namespace
}  // namespace trainyard
