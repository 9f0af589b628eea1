// The store's contract, on both implementations; and what only a file can show: reopening, foreign and damaged files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "coordinator/store/store.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class Folder {
 public:
  Folder() : path_(testing::TempDir() + "/store-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string File() const { return path_ + "/store.db"; }

 private:
  std::string path_;
};

class StoreContract : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!GetParam()) {
      store_ = NewMemoryStore();
      return;
    }
    auto opened = OpenSqliteStore(folder_.File());
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }
  Folder folder_;
  std::unique_ptr<Store> store_;
};

TEST_P(StoreContract, PutsAndDeletes_AreSeenByPrefix_InKeyOrder) {
  auto revision = store_->Commit({{"job/b", "2"}, {"job/a", std::string("1\0x", 3)}, {"jobs", "no"}, {"a", ""}}, 0);
  ASSERT_TRUE(revision.ok()) << revision.status();

  EXPECT_THAT(store_->Load("job/")->records,
              ElementsAre(Pair("job/a", std::string("1\0x", 3)), Pair("job/b", "2")));
  EXPECT_THAT(store_->Load("a")->records, ElementsAre(Pair("a", "")));
  EXPECT_EQ(store_->Load("")->records.size(), 4u);

  ASSERT_TRUE(store_->Commit({{"job/a", std::nullopt}, {"job/b", "3"}}, *revision).ok());
  EXPECT_THAT(store_->Load("job/")->records, ElementsAre(Pair("job/b", "3")));
}

TEST_P(StoreContract, AnotherRevisionThanExpected_IsAborted_AndChangesNothing) {
  ASSERT_TRUE(store_->Commit({{"k", "1"}}, 0).ok());
  EXPECT_TRUE(absl::IsAborted(store_->Commit({{"k", "2"}}, 0).status()));
  EXPECT_THAT(store_->Load("k")->records, ElementsAre(Pair("k", "1")));
  EXPECT_TRUE(store_->Commit({{"k", "2"}}, store_->Load("")->revision).ok());
}

TEST_P(StoreContract, MoreOrLargerEntriesThanACommitTakes_AreRefusedByName) {
  std::vector<StoreEntry> many(Store::kEntriesMax + 1, {"k", "v"});
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Commit(many, 0).status()));
  absl::Status large = store_->Commit({{"big", std::string(Store::kEntryBytesMax + 1, 'x')}}, 0).status();
  EXPECT_TRUE(absl::IsInvalidArgument(large));
  EXPECT_THAT(std::string(large.message()), HasSubstr("big"));
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreContract, testing::Bool(),
                         [](const auto& info) { return info.param ? "Sqlite" : "Memory"; });

TEST(SqliteStore, WhatWasCommitted_IsThereAfterReopening) {
  Folder folder;
  {
    auto store = OpenSqliteStore(folder.File());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->Commit({{"job/a", "1"}}, 0).ok());
  }
  auto store = OpenSqliteStore(folder.File());
  ASSERT_TRUE(store.ok()) << store.status();
  auto snapshot = (*store)->Load("");
  EXPECT_EQ(snapshot->revision, 1u);
  EXPECT_THAT(snapshot->records, ElementsAre(Pair("job/a", "1")));
}

TEST(SqliteStore, ASecondWriter_IsNoticed) {
  Folder folder;
  auto first = OpenSqliteStore(folder.File());
  auto second = OpenSqliteStore(folder.File());
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE((*second)->Commit({{"k", "theirs"}}, 0).ok());
  EXPECT_TRUE(absl::IsAborted((*first)->Commit({{"k", "ours"}}, 0).status()));
}

TEST(SqliteStore, AFileThatIsNoStore_IsRefusedWithASentence) {
  Folder folder;
  std::ofstream(folder.File()) << std::string(8'192, 'x');
  auto store = OpenSqliteStore(folder.File());
  ASSERT_FALSE(store.ok());
  EXPECT_TRUE(absl::IsDataLoss(store.status())) << store.status();
  EXPECT_THAT(std::string(store.status().message()), HasSubstr(folder.File()));
}

TEST(SqliteStore, AFolderThatIsNotThere_IsRefused) {
  EXPECT_FALSE(OpenSqliteStore("/nonexistent/store.db").ok());
}

}  // namespace
}  // namespace trainyard
