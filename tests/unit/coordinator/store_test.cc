// The contract of the store for both implementations, and reopened, foreign and damaged files of the SQLite store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/store/store.h"
#include "tests/unit/temporary_folder.h"

namespace {

std::vector<std::string>& SyncedPaths() {
  static auto* paths = new std::vector<std::string>;
  return *paths;
}

// The name of a file whose sync fails.
std::string& UnsyncableName() {
  static auto* name = new std::string;
  return *name;
}

}  // namespace

// Replaces fsync of the C library in this program, so that a test sees what is synced.
extern "C" int fsync(int fd) {
  std::error_code ignored;
  const std::filesystem::path path = std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd), ignored);
  SyncedPaths().push_back(path.string());
  if (!UnsyncableName().empty() && path.filename() == UnsyncableName()) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class Folder : public TemporaryFolder {
 public:
  std::string File() const { return *this / "store.db"; }
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

  EXPECT_THAT(store_->Load("job/")->records, ElementsAre(Pair("job/a", std::string("1\0x", 3)), Pair("job/b", "2")));
  EXPECT_THAT(store_->Load("a")->records, ElementsAre(Pair("a", "")));
  EXPECT_EQ(store_->Load("")->records.size(), 4u);

  ASSERT_TRUE(store_->Commit({{"job/a", std::nullopt}, {"job/b", "3"}}, *revision).ok());
  EXPECT_THAT(store_->Load("job/")->records, ElementsAre(Pair("job/b", "3")));
}

TEST_P(StoreContract, UnexpectedRevision_IsAborted_AndChangesNothing) {
  ASSERT_TRUE(store_->Commit({{"k", "1"}}, 0).ok());
  EXPECT_TRUE(absl::IsAborted(store_->Commit({{"k", "2"}}, 0).status()));
  EXPECT_THAT(store_->Load("k")->records, ElementsAre(Pair("k", "1")));
  EXPECT_TRUE(store_->Commit({{"k", "2"}}, store_->Load("")->revision).ok());
}

TEST_P(StoreContract, EntriesBeyondTheLimits_AreRefusedByName) {
  std::vector<StoreEntry> many(Store::kEntriesMax + 1, {"k", "v"});
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Commit(many, 0).status()));
  absl::Status large = store_->Commit({{"big", std::string(Store::kEntryBytesMax + 1, 'x')}}, 0).status();
  EXPECT_TRUE(absl::IsInvalidArgument(large));
  EXPECT_THAT(std::string(large.message()), HasSubstr("big"));
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreContract, testing::Bool(),
                         [](const auto& info) { return info.param ? "Sqlite" : "Memory"; });

TEST(SqliteStore, CommittedData_SurvivesReopening) {
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

// Copying SQLite's write-ahead log into the file makes a commit slow, and the effects of a turn wait for its commit. So
// the log is copied while the store is idle, or in a commit when the log is long.
TEST(SqliteStore, LogIsCopiedIntoTheFile_WhenIdle_OrWhenItIsLong) {
  Folder folder;
  auto store = OpenSqliteStore(folder.File());
  ASSERT_TRUE(store.ok()) << store.status();
  uint64_t revision = 0;
  const auto commit = [&](int count) {
    for (int i = 0; i < count; ++i) {
      auto next = (*store)->Commit({{absl::StrCat("k", revision), std::string(400'000, 'v')}}, revision);
      ASSERT_TRUE(next.ok()) << next.status();
      revision = *next;
    }
  };
  const auto file_size = [&] { return std::filesystem::file_size(folder.File()); };
  const auto log_size = [&] { return std::filesystem::file_size(folder / "store.db-wal"); };
  const auto empty = file_size();

  commit(15);
  EXPECT_EQ(file_size(), empty) << "no commit may copy a short log";
  (*store)->TidyUp();
  EXPECT_GT(file_size(), 15u * 400'000);
  const auto tidied = file_size();

  commit(100);
  EXPECT_GT(file_size(), tidied) << "a commit must copy a long log";
  EXPECT_LT(log_size(), 60u * 400'000) << "after it was copied, the log must start again from the beginning";
  auto snapshot = (*store)->Load("");
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(snapshot->records.size(), 115u);
}

// Data committed to a removed file would be acknowledged and lost.
TEST(SqliteStore, RemovedOrReplacedFile_AcceptsNoCommit) {
  for (const char* name : {"store.db", "store.db-wal"}) {
    Folder folder;
    auto store = OpenSqliteStore(folder.File());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->Commit({{"k", "1"}}, 0).ok());
    EXPECT_EQ((*store)->CheckFiles(), absl::OkStatus());

    ASSERT_TRUE(std::filesystem::remove(folder / name));

    EXPECT_TRUE(absl::IsFailedPrecondition((*store)->CheckFiles()));
    absl::Status removed = (*store)->Commit({{"k", "2"}}, 1).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(removed)) << removed;
    EXPECT_THAT(std::string(removed.message()), HasSubstr(absl::StrCat(folder / name, " was removed")));
    std::ofstream(folder / name) << "another";
    EXPECT_THAT(std::string((*store)->CheckFiles().message()), HasSubstr("was replaced"));
  }
}

TEST(SqliteStore, SecondWriter_IsDetected) {
  Folder folder;
  auto first = OpenSqliteStore(folder.File());
  auto second = OpenSqliteStore(folder.File());
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE((*second)->Commit({{"k", "theirs"}}, 0).ok());
  EXPECT_TRUE(absl::IsAborted((*first)->Commit({{"k", "ours"}}, 0).status()));
}

TEST(SqliteStore, ForeignFile_IsRefusedWithAMessage) {
  Folder folder;
  std::ofstream(folder.File()) << std::string(8'192, 'x');
  auto store = OpenSqliteStore(folder.File());
  ASSERT_FALSE(store.ok());
  EXPECT_TRUE(absl::IsDataLoss(store.status())) << store.status();
  EXPECT_THAT(std::string(store.status().message()), HasSubstr(folder.File()));
}

void RunSql(const std::string& file, const std::string& sql) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(file.c_str(), &db), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
  sqlite3_close(db);
}

int UserVersion(const std::string& file) {
  int version = -1;
  sqlite3* db = nullptr;
  EXPECT_EQ(sqlite3_open(file.c_str(), &db), SQLITE_OK);
  sqlite3_exec(
      db, "PRAGMA user_version",
      [](void* to, int, char** values, char**) {
        *static_cast<int*>(to) = std::atoi(values[0]);
        return 0;
      },
      &version, nullptr);
  sqlite3_close(db);
  return version;
}

std::string BytesOf(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(SqliteStore, FileOfANewerVersion_IsRefused_AndUnchanged) {
  Folder folder;
  {
    auto store = OpenSqliteStore(folder.File());
    ASSERT_TRUE(store.ok() && (*store)->Commit({{"job/a", "1"}}, 0).ok());
  }
  RunSql(folder.File(), "PRAGMA user_version=3");
  std::string before = BytesOf(folder.File());

  auto store = OpenSqliteStore(folder.File());

  EXPECT_TRUE(absl::IsFailedPrecondition(store.status())) << store.status();
  EXPECT_THAT(std::string(store.status().message()), HasSubstr("install the version that wrote it"));
  EXPECT_EQ(BytesOf(folder.File()), before);
}

TEST(SqliteStore, FileOfAnOlderVersion_IsRead_AndUpgraded) {
  Folder folder;
  {
    auto store = OpenSqliteStore(folder.File());
    ASSERT_TRUE(store.ok() && (*store)->Commit({{"job/a", "1"}}, 0).ok());
  }
  RunSql(folder.File(), "PRAGMA user_version=1");

  auto store = OpenSqliteStore(folder.File());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_THAT((*store)->Load("")->records, ElementsAre(Pair("job/a", "1")));
  store->reset();
  EXPECT_EQ(UserVersion(folder.File()), 2);
}

TEST(SqliteStore, DamagedFile_IsRefused_AndTheBackupRestoresIt) {
  Folder folder;
  {
    auto store = OpenSqliteStore(folder.File());
    ASSERT_TRUE(store.ok());
    uint64_t revision = 0;
    for (int i = 0; i < 50; ++i) {
      std::vector<StoreEntry> entries;
      for (int j = 0; j < 50; ++j) entries.push_back({absl::StrCat("job/", i, "-", j), std::string(500, 'x')});
      auto committed = (*store)->Commit(entries, revision);
      ASSERT_TRUE(committed.ok());
      revision = *committed;
    }
  }
  ASSERT_TRUE(BackUpSqliteStore(folder.File()).ok());
  {
    std::fstream file(folder.File(), std::ios::in | std::ios::out | std::ios::binary);
    for (int page = 10; page < 20; ++page) {
      file.seekp(page * 4'096);
      file << std::string(200, '\xff');
    }
  }

  auto damaged = OpenSqliteStore(folder.File());
  ASSERT_TRUE(absl::IsDataLoss(damaged.status())) << damaged.status();
  std::string message(damaged.status().message());
  EXPECT_THAT(message, HasSubstr("the store was not used"));

  // Runs the command that the message gives.
  std::string command = message.substr(message.find("rm -f"));
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  auto store = OpenSqliteStore(folder.File());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->Load("job/")->records.size(), 2'500u);
  EXPECT_EQ((*store)->Load("")->revision, 50u);
}

TEST(SqliteStore, Backup_ReplacesThePreviousOneOnlyWhenItIsSynced) {
  Folder folder;
  const std::string backup = StoreBackupPath(folder.File());
  const std::string folder_path = std::filesystem::canonical(folder.path()).string();
  auto store = OpenSqliteStore(folder.File());
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*store)->Commit({{"a", "1"}}, 0).ok());
  SyncedPaths().clear();
  ASSERT_TRUE(BackUpSqliteStore(folder.File()).ok());
  std::vector<std::string> synced;  // without the files that SQLite may sync, too
  for (const std::string& path : SyncedPaths()) {
    if (path != folder_path && path != folder_path + "/store.db.bak.new") continue;
    if (synced.empty() || synced.back() != path) synced.push_back(path);
  }
  EXPECT_THAT(synced, ElementsAre(folder_path + "/store.db.bak.new", folder_path));
  ASSERT_TRUE((*store)->Commit({{"b", "2"}}, 1).ok());

  UnsyncableName() = "store.db.bak.new";
  absl::Status status = BackUpSqliteStore(folder.File());
  UnsyncableName().clear();

  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(std::filesystem::exists(backup + ".new"));
  auto previous = OpenSqliteStore(backup);
  ASSERT_TRUE(previous.ok()) << previous.status();
  EXPECT_THAT((*previous)->Load("")->records, ElementsAre(Pair("a", "1")));
}

TEST(SqliteStore, FullDisk_IsReported_AndTheStoreStaysConsistent) {
  Folder folder;
  auto store = OpenSqliteStore(folder.File());
  ASSERT_TRUE(store.ok());
  ASSERT_TRUE((*store)->Commit({{"a", "1"}}, 0).ok());
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit small = {64 << 10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);

  absl::Status refused = (*store)->Commit({{"b", std::string(200'000, 'x')}}, 1).status();
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);

  EXPECT_TRUE(absl::IsResourceExhausted(refused) || absl::IsUnavailable(refused)) << refused;
  auto again = (*store)->Commit({{"b", "2"}}, 1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_THAT((*store)->Load("")->records, ElementsAre(Pair("a", "1"), Pair("b", "2")));
}

TEST(SqliteStore, MissingFolder_IsRefused) { EXPECT_FALSE(OpenSqliteStore("/nonexistent/store.db").ok()); }

}  // namespace
}  // namespace trainyard
