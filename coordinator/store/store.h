// The coordinator's durable memory: keys and values, committed in batches. Two implementations of one small interface:
// a file (SQLite) and, for tests and simulation, memory. No SQL elsewhere. Used by the core's loop alone: not
// thread-safe.
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

// A put, or a delete where there is no value.
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
  // What one commit may hold: a replicated store takes no more in one transaction, and SQLite a commit of that size in
  // half a millisecond.
  static constexpr size_t kEntriesMax = 1'000;
  static constexpr size_t kEntryBytesMax = 1 << 20;

  virtual ~Store() = default;

  // Everything whose key starts with `prefix`.
  // Possible errors: DataLoss: the file is damaged. Unavailable: it cannot be read now.
  virtual absl::StatusOr<Snapshot> Load(absl::string_view prefix) = 0;

  // All of `entries` or none, durable when this returns. Returns the new revision.
  // Possible errors:
  //   Aborted            somebody else has written since `expected_revision`: two coordinators share the store; exit.
  //   InvalidArgument    more or larger entries than a commit takes: split the batch.
  //   ResourceExhausted  no disk space left: try again when there is.
  //   Unavailable        the disk does not take it now: try again.
  //   FailedPrecondition as of CheckPlace, also where the entries were written.
  virtual absl::StatusOr<uint64_t> Commit(const std::vector<StoreEntry>& entries, uint64_t expected_revision) = 0;

  // Whether what was committed lies where the next start will look for it. Takes microseconds. Possible errors:
  //   FailedPrecondition  it was removed or replaced, so nothing more may be acknowledged: exit.
  //   Unavailable         nobody can say so now.
  virtual absl::Status CheckPlace() { return absl::OkStatus(); }
};

// OK, or InvalidArgument naming the entry that no commit takes.
absl::Status CheckEntries(const std::vector<StoreEntry>& entries);

// Not durable.
std::unique_ptr<Store> NewMemoryStore();

// Opens or makes the file; write-ahead log, every commit synced to disk. The file is checked whole first.
// Possible errors: FailedPrecondition: written by a newer version, or not a store of ours. DataLoss: damaged; the
// message says how to restore it. PermissionDenied, Unavailable: the file cannot be opened.
absl::StatusOr<std::unique_ptr<Store>> OpenSqliteStore(const std::string& path);

// Writes a whole copy beside the file, at once or not at all; made at every clean stop. Where it lies: StoreBackupPath.
// Possible errors: as of Commit.
absl::Status BackUpSqliteStore(const std::string& path);
std::string StoreBackupPath(const std::string& path);

}  // namespace trainyard
