// The store in one SQLite file. Write-ahead log and synchronous=FULL: a commit that has returned survives a power cut.
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/lock_holder.h"
#include "common/status_macros.h"
#include "coordinator/store/store.h"

namespace trainyard {
namespace {

// Stored in the file's user_version; a file with a newer schema is not changed. Schema 2 has events and reports, and
// job states that readers of schema 1 do not know. Files with schema 1 can be read unchanged.
constexpr int kSchema = 2;
constexpr int kOldestSchema = 1;
// "TRYD", in the file's application_id, which distinguishes our files from other programs' databases.
constexpr int kApplication = 0x54525944;
// When the write-ahead log has this number of pages of 4 KiB or more, the store copies it into the file: in an idle
// moment, or as part of a commit. Copying takes some milliseconds, for which the effects of such a commit wait.
constexpr int kLogPagesIdle = 500;
constexpr int kLogPagesMax = 4'000;

absl::Status ToStatus(int code, sqlite3* db, absl::string_view what) {
  std::string text = absl::StrCat(what, ": ", db == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(db));
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(text);
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(text);
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_AUTH:
      return absl::PermissionDeniedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

// Identifies the file at a path: a replacement with the same name has a different identity.
using FileIdentity = std::pair<dev_t, ino_t>;

absl::StatusOr<FileIdentity> IdentityOf(const std::string& path) {
  struct stat st;
  if (stat(path.c_str(), &st) != 0) return ErrnoStatus(errno, absl::StrCat("cannot check ", path));
  return FileIdentity(st.st_dev, st.st_ino);
}

class SqliteStore final : public Store {
 public:
  SqliteStore(sqlite3* db, std::string path) : db_(db), path_(std::move(path)) {}
  ~SqliteStore() override {
    for (sqlite3_stmt* statement : {load_, put_, delete_, read_revision_, write_revision_}) sqlite3_finalize(statement);
    sqlite3_close(db_);
  }

  absl::Status Prepare() {
    RETURN_IF_ERROR(Execute("PRAGMA journal_mode=WAL"));
    RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL"));
    // Replaces SQLite's own hook, which copies the log in the commit that reaches 1,000 pages.
    sqlite3_wal_hook(db_, &SqliteStore::LogGrew, this);
    // Must come before any write: a damaged, newer or foreign file stays unchanged.
    RETURN_IF_ERROR(CheckPages());
    RETURN_IF_ERROR(CheckSchema());
    const std::pair<sqlite3_stmt**, const char*> statements[] = {
        {&load_, "SELECT key, value FROM records WHERE key >= ?1 ORDER BY key"},
        {&put_, "INSERT INTO records(key, value) VALUES(?1, ?2) ON CONFLICT(key) DO UPDATE SET value = excluded.value"},
        {&delete_, "DELETE FROM records WHERE key = ?1"},
        {&read_revision_, "SELECT revision FROM revision"},
        {&write_revision_, "UPDATE revision SET revision = ?1"},
    };
    for (const auto& [statement, sql] : statements) {
      int code = sqlite3_prepare_v3(db_, sql, -1, SQLITE_PREPARE_PERSISTENT, statement, nullptr);
      if (code != SQLITE_OK) return Error(code, "cannot prepare");
    }
    ASSIGN_OR_RETURN(FileIdentity opened, IdentityOf(path_));
    files_ = {{path_, opened}};
    // The log has all commits since SQLite last copied it into the file. A file system may not support such a log; then
    // there is none.
    const std::string log = absl::StrCat(path_, "-wal");
    if (absl::StatusOr<FileIdentity> log_opened = IdentityOf(log); log_opened.ok())
      files_.push_back({log, *log_opened});
    return absl::OkStatus();
  }

  absl::StatusOr<Snapshot> Load(absl::string_view prefix) override {
    Snapshot snapshot;
    ASSIGN_OR_RETURN(snapshot.revision, ReadRevision());
    absl::Cleanup reset = [this] { sqlite3_reset(load_); };
    BindText(load_, 1, prefix);
    int code;
    while ((code = sqlite3_step(load_)) == SQLITE_ROW) {
      std::string key = Column(load_, 0);
      if (!absl::StartsWith(key, prefix)) return snapshot;
      snapshot.records.emplace_back(std::move(key), Column(load_, 1));
    }
    if (code != SQLITE_DONE) return Error(code, "cannot read");
    return snapshot;
  }

  absl::StatusOr<uint64_t> Commit(const std::vector<StoreEntry>& entries, uint64_t expected_revision) override {
    RETURN_IF_ERROR(CheckEntries(entries));
    RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE"));
    absl::Status written = Write(entries, expected_revision);
    if (written.ok()) written = Execute("COMMIT");
    // SQLite rolls back by itself after some errors; a second rollback is harmless.
    if (!written.ok()) sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
    // A removed file still accepts commits, but the next start would not find them.
    if (absl::Status found = CheckFiles(); absl::IsFailedPrecondition(found)) return found;
    RETURN_IF_ERROR(written);
    return expected_revision + 1;
  }

  absl::Status CheckFiles() override {
    for (const auto& [path, opened] : files_) {
      absl::StatusOr<FileIdentity> found = IdentityOf(path);
      if (found.ok() && *found == opened) continue;
      if (!found.ok() && !absl::IsNotFound(found.status())) {
        return absl::UnavailableError(std::string(found.status().message()));
      }
      return absl::FailedPreconditionError(
          absl::StrCat(path, found.ok() ? " was replaced" : " was removed",
                       " while this coordinator used it, so its state is no longer stored; restore the original, or "
                       "a copy of it, and restart the coordinator"));
    }
    return absl::OkStatus();
  }

  void TidyUp() override {
    if (log_pages_ >= kLogPagesIdle) CopyLog();
  }

 private:
  static int LogGrew(void* store, sqlite3*, const char*, int pages) {
    auto* self = static_cast<SqliteStore*>(store);
    self->log_pages_ = pages;
    if (pages >= kLogPagesMax) self->CopyLog();
    return SQLITE_OK;
  }

  // An error loses nothing, because the log still contains every commit. If the error lasts, later commits fail, too.
  void CopyLog() {
    log_pages_ = 0;  // until the next commit, so that an error is not repeated in every idle moment
    sqlite3_wal_checkpoint_v2(db_, nullptr, SQLITE_CHECKPOINT_PASSIVE, nullptr, nullptr);
  }

  absl::Status Error(int code, absl::string_view what) const {
    absl::Status status = ToStatus(code, db_, absl::StrCat("store ", path_, ": ", what));
    if ((code & 0xff) != SQLITE_BUSY) return status;
    std::string holder = LockHolder(path_);
    if (holder.empty()) holder = LockHolder(absl::StrCat(path_, "-shm"));
    return absl::Status(status.code(),
                        absl::StrCat(status.message(), holder.empty() ? "" : absl::StrCat(", by ", holder)));
  }

  absl::Status Execute(const char* sql) {
    int code = sqlite3_exec(db_, sql, nullptr, nullptr, nullptr);
    return code == SQLITE_OK ? absl::OkStatus() : Error(code, sql);
  }

  absl::StatusOr<int> ReadNumber(const char* sql) {
    sqlite3_stmt* statement = nullptr;
    int code = sqlite3_prepare_v2(db_, sql, -1, &statement, nullptr);
    absl::Cleanup finalize = [&statement] { sqlite3_finalize(statement); };
    if (code != SQLITE_OK) return Error(code, sql);
    code = sqlite3_step(statement);
    if (code != SQLITE_ROW) return Error(code, sql);
    return sqlite3_column_int(statement, 0);
  }

  absl::Status CheckPages() {
    sqlite3_stmt* statement = nullptr;
    int code = sqlite3_prepare_v2(db_, "PRAGMA quick_check(1)", -1, &statement, nullptr);
    absl::Cleanup finalize = [&statement] { sqlite3_finalize(statement); };
    if (code != SQLITE_OK) return Error(code, "cannot check");
    code = sqlite3_step(statement);
    if (code != SQLITE_ROW) return Error(code, "cannot check");
    std::string found = Column(statement, 0);
    if (found == "ok") return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("store ", path_, " is damaged: ", found));
  }

  absl::Status CheckSchema() {
    ASSIGN_OR_RETURN(int application, ReadNumber("PRAGMA application_id"));
    ASSIGN_OR_RETURN(int schema, ReadNumber("PRAGMA user_version"));
    ASSIGN_OR_RETURN(int tables, ReadNumber("SELECT count(*) FROM sqlite_master"));
    if (tables == 0) {
      return Execute(absl::StrCat("BEGIN;"
                                  "CREATE TABLE records(key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;"
                                  "CREATE TABLE revision(revision INTEGER NOT NULL); INSERT INTO revision VALUES(0);"
                                  "PRAGMA application_id=",
                                  kApplication, "; PRAGMA user_version=", kSchema, "; COMMIT")
                         .c_str());
    }
    if (application != kApplication) {
      return absl::FailedPreconditionError(
          absl::StrCat("store ", path_, ": this is not a coordinator's store; choose another --state"));
    }
    if (schema < kOldestSchema || schema > kSchema) {
      return absl::FailedPreconditionError(
          absl::StrCat("store ", path_, " has schema ", schema, ", this version reads ", kOldestSchema, " to ", kSchema,
                       "; install the version that wrote it, or start with another --state; nothing was changed"));
    }
    return schema == kSchema ? absl::OkStatus() : Execute(absl::StrCat("PRAGMA user_version=", kSchema).c_str());
  }

  absl::StatusOr<uint64_t> ReadRevision() {
    absl::Cleanup reset = [this] { sqlite3_reset(read_revision_); };
    int code = sqlite3_step(read_revision_);
    if (code != SQLITE_ROW) return Error(code, "cannot read the revision");
    return static_cast<uint64_t>(sqlite3_column_int64(read_revision_, 0));
  }

  absl::Status Write(const std::vector<StoreEntry>& entries, uint64_t expected_revision) {
    ASSIGN_OR_RETURN(uint64_t revision, ReadRevision());
    if (revision != expected_revision) {
      return absl::AbortedError(absl::StrCat("store ", path_, " is at revision ", revision, ", expected ",
                                             expected_revision, ": another coordinator writes to it"));
    }
    for (const StoreEntry& entry : entries) {
      sqlite3_stmt* statement = entry.value.has_value() ? put_ : delete_;
      BindText(statement, 1, entry.key);
      if (entry.value.has_value()) {
        sqlite3_bind_blob64(statement, 2, entry.value->data(), entry.value->size(), SQLITE_STATIC);
        // An empty value is valid, but a null pointer would be bound as NULL.
        if (entry.value->empty()) sqlite3_bind_zeroblob(statement, 2, 0);
      }
      RETURN_IF_ERROR(Run(statement, absl::StrCat("cannot write ", entry.key)));
    }
    sqlite3_bind_int64(write_revision_, 1, static_cast<sqlite3_int64>(expected_revision + 1));
    return Run(write_revision_, "cannot write the revision");
  }

  absl::Status Run(sqlite3_stmt* statement, absl::string_view what) {
    int code = sqlite3_step(statement);
    absl::Status status = code == SQLITE_DONE ? absl::OkStatus() : Error(code, what);
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return status;
  }

  static void BindText(sqlite3_stmt* statement, int index, absl::string_view text) {
    sqlite3_bind_text64(statement, index, text.data() == nullptr ? "" : text.data(), text.size(), SQLITE_TRANSIENT,
                        SQLITE_UTF8);
  }

  static std::string Column(sqlite3_stmt* statement, int index) {
    const void* data = sqlite3_column_blob(statement, index);
    int size = sqlite3_column_bytes(statement, index);
    return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), static_cast<size_t>(size));
  }

  sqlite3* db_;
  std::string path_;
  int log_pages_ = 0;                                        // in the write-ahead log after the last commit
  std::vector<std::pair<std::string, FileIdentity>> files_;  // as found when the store was opened
  sqlite3_stmt* load_ = nullptr;
  sqlite3_stmt* put_ = nullptr;
  sqlite3_stmt* delete_ = nullptr;
  sqlite3_stmt* read_revision_ = nullptr;
  sqlite3_stmt* write_revision_ = nullptr;
};

// Adds instructions to the error of a damaged store, which is never used in part.
absl::Status WithRestoreInstructions(const absl::Status& status, const std::string& path) {
  if (!absl::IsDataLoss(status)) return status;
  std::string backup = StoreBackupPath(path);
  std::string how = FileExists(backup)
                        ? absl::StrCat("to restore the state of the last clean stop: rm -f ", path, "-wal ", path,
                                       "-shm && cp ", backup, " ", path)
                        : absl::StrCat("restore it from a copy of the state folder, or start with another --state");
  return absl::DataLossError(absl::StrCat(std::string(status.message()), "; the store was not used; ", how));
}

}  // namespace

std::string StoreBackupPath(const std::string& path) { return absl::StrCat(path, ".bak"); }

absl::Status BackUpSqliteStore(const std::string& path) {
  std::string copy = absl::StrCat(StoreBackupPath(path), ".new");
  unlink(copy.c_str());  // left by an interrupted backup
  sqlite3* db = nullptr;
  int code =
      sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, nullptr);
  absl::Cleanup close_db = [&db] { sqlite3_close(db); };
  if (code == SQLITE_OK) {
    char* sql = sqlite3_mprintf("VACUUM INTO %Q", copy.c_str());
    code = sqlite3_exec(db, sql, nullptr, nullptr, nullptr);
    sqlite3_free(sql);
  }
  absl::Cleanup remove_copy = [&copy] { unlink(copy.c_str()); };
  if (code != SQLITE_OK) return ToStatus(code, db, absl::StrCat("store ", path, ": cannot back up"));
  // SQLite does not sync the copy in every version. A loss of power after the rename could leave an empty backup.
  RETURN_IF_ERROR(SyncFile(copy)) << "while backing up the store " << path;
  if (std::rename(copy.c_str(), StoreBackupPath(path).c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot rename ", copy));
  }
  std::move(remove_copy).Cancel();
  return SyncFolder(std::filesystem::path(path).parent_path().string());
}

absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path) {
  sqlite3* db = nullptr;
  int code = sqlite3_open_v2(path.c_str(), &db,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
                             nullptr);
  auto store = std::make_unique<SqliteStore>(db, path);
  if (code != SQLITE_OK) return ToStatus(code, db, absl::StrCat("store ", path, ": cannot open"));
  sqlite3_busy_timeout(db, 1'000);
  if (absl::Status status = store->Prepare(); !status.ok()) return WithRestoreInstructions(status, path);
  return store;
}

}  // namespace trainyard
