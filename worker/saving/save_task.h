// What one rank must write of a save, and how that ended: values exchanged between the saver and its save thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "checkpoint/part.h"

namespace trainyard {

// What one rank writes of one tensor.
struct SaveRange {
  ShardEntry entry = {};
  const char* bytes = nullptr;
  bool is_stable = false;  // `bytes` do not change while `owner` exists, so they need no copy
};

struct SaveTask {
  SaveKey save = {};
  uint64_t rank = 0;
  std::string folder = {};  // the partial folder; created if it does not exist
  struct File {
    std::string name = {};
    std::vector<SaveRange> ranges = {};
    bool derived = false;  // can be derived from the other files; no run resumes from it
  };
  std::vector<File> files = {};
  std::vector<SaveRange> witnessed = {};   // replicas that another rank writes: hashed for comparison, but not written
  std::shared_ptr<const void> owner = {};  // keeps all the bytes alive
  bool is_retry = false;                   // the same save has failed before
  bool needs_copy = true;                  // false: the state does not change until this save has ended or was given up
  std::string snapshot_text = {};          // stored in the snapshot unchanged
  // Called before the folder is created, and after everything is written; an error fails the save.
  std::function<absl::Status()> may_write = nullptr;
};

// How one rank's part of a save ended.
struct SaveEnd {
  SaveKey save = {};
  absl::Status status = {};
  absl::Duration copying = {};    // how long the copy took
  absl::Duration writing = {};    // how long hashing and writing took after the copy
  uint64_t bytes = 0;             // written
  absl::Status snapshot = {};     // why this save has no complete snapshot although it should have one
  std::string beyond_range = {};  // the name of a derived tensor with values that are not finite; empty: none
};

}  // namespace trainyard
