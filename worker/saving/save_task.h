// What a rank is to write of one save, and what became of it: values between the saver and its thread.
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

// What a rank is to write of one tensor.
struct SaveRange {
  ShardEntry entry = {};
  const char* bytes = nullptr;
  bool stays = false;  // nobody changes `bytes` while `owner` lives: they need no copy
};

struct SaveTask {
  SaveKey save = {};
  uint64_t rank = 0;
  std::string folder = {};  // the partial one; made if it is not there
  struct File {
    std::string name = {};
    std::vector<SaveRange> ranges = {};
    bool derived = false;  // made of what is in the others: nothing goes on from it
  };
  std::vector<File> files = {};
  std::vector<SaveRange> witnessed = {};   // hashed alone
  std::shared_ptr<const void> owner = {};  // of all the bytes
  bool again = false;                      // the same save has failed before
  bool copies = true;                      // false: the state stays as it is until this has ended or was given up
  std::string more = {};                   // goes into the snapshot as it is
  std::function<absl::Status()> may_write = nullptr;  // asked before the folder is made, and when all is written
};

struct SaveEnd {
  SaveKey save = {};
  absl::Status status = {};
  absl::Duration copying = {};
  absl::Duration writing = {};
  uint64_t bytes = 0;
  absl::Status snapshot = {};     // why it has no whole one, where it should have
  std::string beyond_range = {};  // a derived tensor with values that are not finite; empty: none
};

}  // namespace trainyard
