// The coordinator's durable storage: keys and values, committed in batches. The interface has two implementations: an
// SQLite file and, for tests and simulation, memory. SQL is used nowhere else. Not thread-safe: used only by the core's
// loop.
//
//   ASSIGN_OR_RETURN(auto store, OpenSqliteStore("/var/lib/trainyard/store.db"));
//   ASSIGN_OR_RETURN(Snapshot snapshot, store->Load(""));
//   ASSIGN_OR_RETURN(uint64_t revision, store->Commit(batch, snapshot.revision));
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// A put, or a delete if there is no value.
struct StoreEntry {
  std::string key;
  std::optional<std::string> value;
};

struct Snapshot {
  uint64_t revision = 0;
  std::vector<std::pair<std::string, std::string>> records;  // in key order
};

class Store {
 public:
  // The limit of one commit: a replicated store accepts no more in one transaction, and SQLite commits this size in
  // half a millisecond.
  static constexpr size_t kEntriesMax = 1'000;
  static constexpr size_t kEntryBytesMax = 1 << 20;

  virtual ~Store() = default;

  // Returns all records whose keys start with `prefix`. Possible errors: DataLoss if the file is damaged; Unavailable
  // if it cannot be read now.
  virtual absl::StatusOr<Snapshot> Load(absl::string_view prefix) = 0;

  // Commits all of `entries` or none; they are durable when this returns. Returns the new revision.
  // Possible errors:
  //   Aborted             another process has written since `expected_revision` and owns the store now: exit.
  //   InvalidArgument     the entries exceed the limit of a commit: split the batch.
  //   ResourceExhausted   no disk space is left: retry when there is.
  //   Unavailable         the disk does not accept writes now: retry.
  //   DataLoss            the file is damaged: exit.
  //   PermissionDenied    the file may not be written: exit.
  //   FailedPrecondition  see CheckFiles; the entries may have been written nevertheless.
  virtual absl::StatusOr<uint64_t> Commit(const std::vector<StoreEntry>& entries, uint64_t expected_revision) = 0;

  // Checks that the committed data is where the next start will look for it. Takes microseconds. Possible errors:
  //   FailedPrecondition  the file was removed or replaced, so nothing more may be acknowledged: exit.
  //   Unavailable         the files cannot be checked now.
  virtual absl::Status CheckFiles() { return absl::OkStatus(); }

  // Does housekeeping that a later commit would otherwise have to do. Called when nothing waits for a commit.
  virtual void TidyUp() {}
};

// Returns OK, or InvalidArgument with the entry that exceeds the limits.
absl::Status CheckEntries(const std::vector<StoreEntry>& entries);

// A store without durability.
std::unique_ptr<Store> NewMemoryStore();

// Opens or creates the file, with a write-ahead log; every commit is synced to disk. The whole file is checked first.
// Possible errors: FailedPrecondition if it was written by a newer version or is not a Trainyard store; DataLoss if it
// is damaged, with instructions to restore it; PermissionDenied or Unavailable if it cannot be opened.
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path);

// Atomically writes a complete copy next to the file, at StoreBackupPath; called at every clean stop. The copy is
// synced before it replaces the previous one. Possible errors: DataLoss, PermissionDenied, ResourceExhausted or
// Unavailable, as for OpenSqliteStore and Commit; those of ErrnoStatus (common/files.h) if the copy cannot be synced or
// renamed.
absl::Status BackUpSqliteStore(const std::string& path);
std::string StoreBackupPath(const std::string& path);

}  // namespace trainyard
