// The folder of the token cache and the format of its chunks: simultaneous builders, crashes and damaged files.
#include "worker/data/token_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "tests/unit/temporary_folder.h"
#include "worker/data/pieces.h"
#include "worker/data/token_chunk.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;

class TokenCacheTest : public testing::Test {
 protected:
  size_t NumTemporary() const {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      count += entry.path().filename().string().starts_with(".making-") ? 1 : 0;
    }
    return count;
  }

  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path() + "/cache";
};

TEST_F(TokenCacheTest, SeveralBuilders_PublishEachChunkOnce) {
  std::vector<std::thread> builders;
  std::atomic<int> failures{0};
  for (int b = 0; b < 4; ++b) {
    builders.emplace_back([&] {
      absl::StatusOr<TokenCacheFolder> cache = TokenCacheFolder::Make(folder_);
      if (!cache.ok()) ++failures;
      for (size_t chunk = 0; cache.ok() && chunk < 20; ++chunk) {
        if (!cache->PublishChunk(chunk, std::string(1000 + chunk, 'x')).ok()) ++failures;
      }
      if (cache.ok() && !cache->PublishIndex(20).ok()) ++failures;
    });
  }
  for (std::thread& builder : builders) builder.join();

  EXPECT_EQ(failures, 0);
  const TokenCacheFolder cache = *TokenCacheFolder::Make(folder_);
  EXPECT_TRUE(cache.IsComplete(20));
  EXPECT_EQ(NumTemporary(), 0u);
  for (size_t chunk = 0; chunk < 20; ++chunk) EXPECT_EQ(fs::file_size(cache.ChunkPath(chunk)), 1000 + chunk);
}

TEST_F(TokenCacheTest, ACacheThatLacksAChunk_OrHasATruncatedOne_IsNotComplete) {
  const TokenCacheFolder cache = *TokenCacheFolder::Make(folder_);
  for (size_t chunk = 0; chunk < 3; ++chunk) ASSERT_TRUE(cache.PublishChunk(chunk, "12345678").ok());
  EXPECT_FALSE(cache.IsComplete(3)) << "without an index";
  ASSERT_TRUE(cache.PublishIndex(3).ok());
  EXPECT_TRUE(cache.IsComplete(3));

  fs::resize_file(cache.ChunkPath(1), 5);
  EXPECT_FALSE(cache.IsComplete(3));
  fs::remove(cache.ChunkPath(1));
  EXPECT_FALSE(cache.IsComplete(3));
  EXPECT_FALSE(cache.HasChunk(1));

  ASSERT_TRUE(cache.PublishChunk(1, "12345678").ok());
  EXPECT_TRUE(cache.IsComplete(3)) << "only what was missing had to be made";
  ASSERT_TRUE(WriteFileAtomically(folder_ + "/index.json", "{\"chunk_bytes\": 5}").ok());
  EXPECT_FALSE(cache.IsComplete(3)) << "with a damaged index";
}

TEST_F(TokenCacheTest, WhatACrashHasLeft_IsRemoved_ButNotTheFilesOfALiveBuilder) {
  ASSERT_TRUE(TokenCacheFolder::Make(folder_).ok());
  std::ofstream(folder_ + "/.making-dead") << "half";
  std::ofstream(folder_ + "/.making-live") << "half";
  const int live = open((folder_ + "/.making-live").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(live, LOCK_EX), 0);

  ASSERT_TRUE(TokenCacheFolder::Make(folder_).ok());

  EXPECT_FALSE(FileExists(folder_ + "/.making-dead"));
  EXPECT_TRUE(FileExists(folder_ + "/.making-live"));
  close(live);
}

TEST_F(TokenCacheTest, TheContentOfFiles_IsRecordedByHostAndIdentity) {
  const std::string root = temporary_.path(), hash(32, 'a');
  EXPECT_EQ(RecordedContent(root, "w1", "identity"), "");
  ASSERT_TRUE(RecordContent(root, "w1", "identity", hash).ok());

  EXPECT_EQ(RecordedContent(root, "w1", "identity"), hash);
  EXPECT_EQ(RecordedContent(root, "w2", "identity"), "");
  EXPECT_EQ(RecordedContent(root, "w1", "other"), "");
}

TEST_F(TokenCacheTest, TheRoot_IsNextToTheRunFolder) {
  for (const char* run : {"/run", "/run/", "/./run//", "/other/../run"}) {
    EXPECT_EQ(TokenCacheRoots(temporary_.path() + run)[0], temporary_.path() + "/.trainyard-tokens") << run;
  }
}

// Regression: on a file system that maps all users to another one, ranks that looked before and after the folder was
// made used different folders.
TEST_F(TokenCacheTest, TheRoots_DoNotDependOnTheOwnerOfAFolder_OnlyTheChoiceDoes) {
  const std::string run = temporary_.path() + "/run";
  const std::vector<std::string> roots = TokenCacheRoots(run);
  EXPECT_EQ(RootNextToRun(roots), 0u);
  ASSERT_TRUE(MakeCacheRoot(roots[0]).ok());
  EXPECT_EQ(RootNextToRun(roots), 0u);
  if (chown(roots[0].c_str(), 65533, 65533) != 0) {  // only root can change the owner of a folder
    fs::remove(roots[0]);
    fs::create_directory_symlink("/", roots[0]);
  }

  EXPECT_EQ(TokenCacheRoots(run), roots);
  EXPECT_EQ(RootNextToRun(roots), 1u);
  EXPECT_EQ(roots[1], absl::StrCat(roots[0], "-", geteuid()));
}

TEST_F(TokenCacheTest, EveryDamagedByte_IsFoundByTheHash_AndInvalidStructureIsRefused) {
  TokenChunkWriter writer(100, ChunkKind::kDocuments);
  for (int i = 0; i < 5; ++i) writer.AddDocument({1, 2, 3, 4}, {false, true, true, false});
  const std::string good = writer.Finish();
  std::vector<uint64_t> aligned(good.size() / 8);
  const auto parse = [&](const std::string& bytes) {
    std::memcpy(aligned.data(), bytes.data(), std::min(bytes.size(), good.size()));
    return TokenChunk::Parse({reinterpret_cast<const char*>(aligned.data()), bytes.size()}).status();
  };
  ASSERT_TRUE(parse(good).ok());

  for (size_t size = 0; size < good.size(); ++size) {
    const bool lacks_only_its_hash = size == good.size() - 40;  // as chunks of earlier versions
    EXPECT_EQ(absl::IsDataLoss(parse(good.substr(0, size))), !lacks_only_its_hash) << "cut to " << size << " bytes";
  }
  EXPECT_TRUE(HasGoodHash(good));
  for (size_t byte = 0; byte < sizeof(TokenChunkHeader) + 5 * sizeof(TokenDocument); ++byte) {
    std::string damaged = good;
    damaged[byte] = static_cast<char>(~damaged[byte]);
    EXPECT_FALSE(HasGoodHash(damaged)) << "byte " << byte;
    // Parse does not check the hash, so it need not find another count, loss or kind.
    const bool is_only_counted = byte >= 40 && byte < 64;  // numbers of records, and the vocabulary
    const bool is_loss = byte >= 64 && (byte - 64) % 16 == 8;
    const bool is_found = !is_only_counted && !is_loss && byte / 8 != 2;  // bytes 16 to 23 are the kind
    EXPECT_TRUE(!parse(damaged).ok() || !is_found) << "byte " << byte;
  }
}

TEST_F(TokenCacheTest, Pieces_EndAtLineEnds_AndCoverEveryFile) {
  fs::create_directories(folder_);
  std::string text;
  for (int i = 0; i < 200; ++i) text += std::string(static_cast<size_t>(i * 7 % 23), 'x') + "\n";
  std::ofstream(folder_ + "/a") << text << "without an end";
  std::ofstream(folder_ + "/b") << std::string(500, 'y');
  auto corpus = *Corpus::Open({.paths = {folder_}});

  for (const int64_t bytes : {1, 2, 16, 64, 100'000}) {
    std::string all;
    for (const DataPiece& piece : CutAtLines(*corpus, bytes)) {
      const absl::string_view file = corpus->ContentsOf(piece.file);
      ASSERT_LT(piece.begin, piece.end);
      all += std::string(file.substr(piece.begin, piece.end - piece.begin));
      const bool ends = static_cast<size_t>(piece.end) == file.size() || file[piece.end - 1] == '\n';
      EXPECT_TRUE(ends) << "pieces of " << bytes << " bytes, the one that ends at " << piece.end;
    }
    EXPECT_EQ(all, text + "without an end" + std::string(500, 'y')) << "pieces of " << bytes << " bytes";
  }
}

}  // namespace
}  // namespace trainyard
