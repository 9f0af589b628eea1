#include "worker/data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class CorpusTest : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    fs::path path = fs::path(folder_) / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  static std::string All(const Corpus& corpus) {
    std::string text(static_cast<size_t>(corpus.num_bytes()), '\0');
    corpus.Read(0, absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size()));
    return text;
  }
  static std::string MessageOf(const CorpusOptions& options) {
    auto corpus = Corpus::Open(options);
    EXPECT_TRUE(absl::IsInvalidArgument(corpus.status())) << corpus.status();
    return std::string(corpus.status().message());
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(CorpusTest, AFolderIsReadRecursivelyInByteOrderOfPaths) {
  Write("b/2", "two");
  Write("b/1", "one");
  Write("a", "first");
  Write("B", "upper");
  Write("empty", "");

  auto corpus = Corpus::Open({.paths = {folder_}, .length = 2});

  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(All(**corpus), "upperfirstonetwo");
}

TEST_F(CorpusTest, ALinkToAFolderInsideOfAFolder_IsRefused_ButALinkToAFileIsRead) {
  Write("data/a.txt", "text");
  Write("elsewhere/b.txt", "other");
  fs::create_symlink(Path("elsewhere/b.txt"), Path("data/file"));
  EXPECT_TRUE(Corpus::Open({.paths = {Path("data")}, .length = 2}).ok());

  fs::create_directory_symlink(Path("elsewhere"), Path("data/folder"));

  EXPECT_THAT(MessageOf({.paths = {Path("data")}, .length = 2}),
              HasSubstr(Path("data/folder") + ": is a link to a folder, which is not followed; name its target in " +
                        "train.data.text"));
  EXPECT_TRUE(Corpus::Open({.paths = {Path("data/folder")}, .length = 2}).ok()) << "a link that is named is followed";
}

TEST_F(CorpusTest, AFileWithSeveralPathsIsReadOnce) {
  std::string path = Write("a.txt", "text");
  fs::create_hard_link(path, Path("b.txt"));

  auto corpus = Corpus::Open({.paths = {path, folder_, Path("*.txt")}, .length = 2});

  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(All(**corpus), "text");
}

TEST_F(CorpusTest, AReadCanSpanFiles) {
  auto corpus = Corpus::Open({.paths = {Write("1", "abc"), Write("2", "d"), Write("3", "efg")}, .length = 2});

  ASSERT_TRUE(corpus.ok()) << corpus.status();
  for (int64_t start = 0; start < 7; ++start) {
    for (int64_t length = 0; start + length <= 7; ++length) {
      std::string text(static_cast<size_t>(length), '\0');
      (*corpus)->Read(start, absl::MakeSpan(reinterpret_cast<uint8_t*>(text.data()), text.size()));
      EXPECT_EQ(text, std::string("abcdefg").substr(start, length));
    }
  }
}

TEST_F(CorpusTest, TheValidationPartIsTheEnd) {
  auto corpus = Corpus::Open({.paths = {Write("t", std::string(100, 'x'))}, .validation = 0.25, .length = 8});

  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ((*corpus)->groups()[0].num_train_bytes, 75);
  EXPECT_EQ((*corpus)->num_validation_bytes(), 25);
}

TEST_F(CorpusTest, AllProblemsAreReportedTogether) {
  std::string empty = Write("empty", "");
  fs::create_directories(Path("hollow"));

  std::string message =
      MessageOf({.paths = {Path("missing"), empty, Path("hollow"), Path("*.none"), "/dev/null"}, .length = 4});

  EXPECT_THAT(message, HasSubstr(Path("missing") + ": no such file or folder"));
  EXPECT_THAT(message, HasSubstr(empty + ": the file is empty"));
  EXPECT_THAT(message, HasSubstr(Path("hollow") + ": the folder holds no text"));
  EXPECT_THAT(message, HasSubstr(Path("*.none") + ": the pattern matches nothing"));
  EXPECT_THAT(message, HasSubstr("/dev/null: not a file"));
  EXPECT_THAT(message, Not(HasSubstr("shorter"))) << "the length of missing text is not a separate problem";
}

TEST_F(CorpusTest, APatternWhoseMatchesHoldNoData_IsRefused) {
  const std::string text = Write("full/a.txt", "some text");
  Write("empty/a.txt", "");
  Write("empty/b.txt", "");

  EXPECT_THAT(MessageOf({.paths = {Path("empty/*.txt")}, .length = 2}),
              HasSubstr(Path("empty/*.txt") + ": the pattern matches no file that holds data"));
  EXPECT_THAT(MessageOf({.paths = {text, Path("empty/*.txt")}, .separate = true, .length = 2}),
              HasSubstr(Path("empty/*.txt") + ": the pattern matches no file that holds data"));
  EXPECT_THAT(MessageOf({.paths = {text, Path("full/*.txt")}, .suffix = ".bin"}),
              HasSubstr(Path("full/*.txt") + ": the pattern matches no file that holds data and ends in .bin"));
  EXPECT_TRUE(Corpus::Open({.paths = {Path("*/a.txt")}, .length = 2}).ok()) << "one of two files is empty";
}

TEST_F(CorpusTest, AFolderOfAPatternThatCannotBeListed_IsNamed) {
  Write("a.txt", "some text");
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;  // even root can then list no folder

  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string message = MessageOf({.paths = {Path("*.txt")}, .length = 2});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);

  EXPECT_THAT(message, HasSubstr(Path("*.txt") + ": the pattern cannot be read: " + folder_ + " cannot be listed ("));
}

TEST_F(CorpusTest, AFolderThatContainsTheRunFolder_IsRefused_UnlessOnlyFilesWithASuffixAreRead) {
  const std::string file = Write("data/a.txt", "some text");
  fs::create_directory_symlink(Path("data"), Path("link"));
  CorpusOptions options{.paths = {Path("data")}, .length = 2, .run_folder = Path("link/runs/first")};

  EXPECT_THAT(MessageOf(options), HasSubstr(Path("data") + ": the folder contains checkpoint.dir ("));
  options.paths = {Path("dat*")};
  EXPECT_THAT(MessageOf(options), HasSubstr(Path("data") + ": the folder contains checkpoint.dir ("));
  options.suffix = ".txt";
  EXPECT_TRUE(Corpus::Open(options).ok());
  options.suffix = "";
  options.paths = {file};
  EXPECT_TRUE(Corpus::Open(options).ok()) << "a file that is named";
  options.paths = {Path("data")};
  options.run_folder = Path("data-runs/first");
  EXPECT_TRUE(Corpus::Open(options).ok());
}

TEST_F(CorpusTest, TablesAreRefusedWithTheCommandThatExportsThem_ExceptCsvInFolders) {
  const std::string parquet = Write("a.data", "PAR1...PAR1"), csv = Write("b.csv", "x,y\n1,2\n");
  const std::string message = MessageOf({.paths = {parquet, csv}, .length = 1});
  EXPECT_THAT(message, HasSubstr(parquet + ": is a Parquet file; write it as JSONL"));
  EXPECT_THAT(message, HasSubstr("pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2]"));
  EXPECT_THAT(message, HasSubstr(csv + ": is a CSV file"));
  EXPECT_THAT(MessageOf({.paths = {Path("*.csv")}, .length = 1}), HasSubstr("pandas.read_csv"));
  EXPECT_THAT(MessageOf({.paths = {folder_}, .length = 1}), AllOf(HasSubstr("Parquet"), Not(HasSubstr("CSV"))));
}

TEST_F(CorpusTest, ACompressedFileThatIsNamedOrMatched_IsRefused) {
  const std::string gzip = Write("a.gz", "\x1f\x8b\x08 some bytes"), zstd = Write("b.zst", "\x28\xb5\x2f\xfd bytes");
  const std::string tokens = Write("c.bin", "\x1f\x8b\x08 some bytes");

  const std::string message = MessageOf({.paths = {gzip, Path("*.zst")}, .length = 2});

  EXPECT_THAT(message, HasSubstr(gzip + ": is compressed; unpack it (gunzip " + gzip + ")"));
  EXPECT_THAT(message, HasSubstr(zstd + ": is compressed; unpack it (unzstd " + zstd + ")"));
  EXPECT_TRUE(Corpus::Open({.paths = {folder_}, .length = 2}).ok()) << "a folder may hold any files";
  EXPECT_TRUE(Corpus::Open({.paths = {tokens}, .suffix = ".bin"}).ok()) << "tokens may be any bytes";
}

TEST_F(CorpusTest, OnlyTenProblemsAreShown_WithTheNumberOfOthers) {
  CorpusOptions options{.length = 4};
  for (int i = 0; i < 40; ++i) options.paths.push_back(Path(absl::StrCat("missing-", i)));

  EXPECT_THAT(MessageOf(options), HasSubstr("and 30 more"));
}

TEST_F(CorpusTest, AnUnreadableFileIsNamed) {
  if (geteuid() == 0) {
    // Root can read every file, but no user can read a broken link.
    fs::create_symlink("/nowhere/at/all", Path("dangling"));
    EXPECT_THAT(MessageOf({.paths = {folder_}, .length = 4}), HasSubstr("dangling"));
    return;
  }
  std::string path = Write("secret", "text");
  chmod(path.c_str(), 0);
  EXPECT_THAT(MessageOf({.paths = {folder_}, .length = 4}), HasSubstr("secret: cannot be read"));
}

TEST_F(CorpusTest, TextShorterThanASampleIsRefusedWithBothLengths) {
  std::string message = MessageOf({.paths = {Write("t", "12345678")}, .length = 8});

  EXPECT_THAT(message, HasSubstr("8 bytes"));
  EXPECT_THAT(message, HasSubstr("train.batch.length + 1 = 9"));
}

TEST_F(CorpusTest, AValidationPartShorterThanASampleIsRefusedOnlyWhenItIsUsed) {
  CorpusOptions options{.paths = {Write("t", std::string(100, 'x'))}, .validation = 0.05, .length = 8};
  EXPECT_TRUE(Corpus::Open(options).ok());

  options.evaluates = true;
  EXPECT_THAT(MessageOf(options), HasSubstr("validation is 5 bytes"));
}

TEST_F(CorpusTest, SeparatePathsAreGroups_InTheGivenOrder_EachWithAValidationPart) {
  const std::string b = Write("b", std::string(40, 'b')), a = Write("a", std::string(20, 'a'));
  CorpusOptions options{.paths = {b, a, b}, .separate = true, .validation = 0.25, .length = 8};

  auto corpus = *Corpus::Open(options);

  ASSERT_EQ(corpus->groups().size(), 3u) << "a file counts once for each path";
  EXPECT_EQ(corpus->groups()[0].num_train_bytes, 30);
  EXPECT_EQ(corpus->groups()[1].begin, 40);
  EXPECT_EQ(corpus->groups()[1].num_train_bytes, 15);
  EXPECT_EQ(corpus->num_validation_bytes(), 25);
  options.length = 30;
  EXPECT_THAT(MessageOf(options), HasSubstr(a + ": the text for training is 15 bytes"));
  EXPECT_THAT(MessageOf(options), HasSubstr(b + ": the text for training is 30 bytes"));
  std::swap(options.paths[0], options.paths[1]);
  options.length = 8;
  EXPECT_NE((*Corpus::Open(options))->Fingerprint().content_hash, corpus->Fingerprint().content_hash);
}

TEST_F(CorpusTest, TheFingerprintDistinguishesContentAndFiles) {
  std::string path = Write("t", "some text");
  CorpusOptions options{.paths = {path}, .length = 2};
  CorpusFingerprint before = (*Corpus::Open(options))->Fingerprint();
  CorpusFingerprint repeated = (*Corpus::Open(options))->Fingerprint();
  EXPECT_EQ(before, repeated);

  Write("t", "same text");
  CorpusFingerprint edited = (*Corpus::Open(options))->Fingerprint();
  EXPECT_EQ(edited.files_hash, before.files_hash);
  EXPECT_NE(edited.content_hash, before.content_hash);

  Write("t", "some texts");
  EXPECT_NE((*Corpus::Open(options))->Fingerprint().files_hash, before.files_hash);
}

TEST_F(CorpusTest, AFileThatBecomesShorter_EndsTheProcessWithItsName) {
  const std::string path = Write("shrinking", std::string(50'000, 'x'));
  auto corpus = Corpus::Open({.paths = {Write("other", "text"), path}, .length = 2});
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  const auto cut_and_read = [&] {
    fs::resize_file(path, 100);
    All(**corpus);
  };

  EXPECT_EXIT(cut_and_read(), testing::ExitedWithCode(1),
              "shrinking has become shorter while it was in use: it had 50000 bytes");
}

TEST_F(CorpusTest, AFileThatIsChanged_IsNamed_AndTheIdentityRemainsThatOfTheOpenedFile) {
  const std::string path = Write("data", "text");
  fs::last_write_time(path, fs::last_write_time(path) - std::chrono::hours(1));
  auto opened = *Corpus::Open({.paths = {Write("other", "text"), path}, .length = 2});
  ASSERT_TRUE(opened->CheckUntouched().ok()) << opened->CheckUntouched();

  Write("data", "TEXT");
  auto reopened = *Corpus::Open({.paths = {Path("other"), path}, .length = 2});
  opened->SetRules("rules");
  reopened->SetRules("rules");

  EXPECT_TRUE(absl::IsUnknown(opened->CheckUntouched())) << opened->CheckUntouched();
  EXPECT_THAT(std::string(opened->CheckUntouched().message()), HasSubstr(path + " was changed or replaced"));
  EXPECT_TRUE(opened->CheckUntouched(1).ok()) << "files are sorted by their paths";
  EXPECT_NE(opened->identity(), reopened->identity());
}

}  // namespace
}  // namespace trainyard
