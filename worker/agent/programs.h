// The programs that the daemon starts, as they were when the daemon started. An upgrade replaces them while the daemon
// still runs. It must not start the new ones then: to the coordinator, this host has the daemon's version, so ranks of
// two versions could train together, and the new programs may not understand the daemon's files and messages.
//
// Thread-safe. A check may hang if the disk does.
#pragma once

#include <sys/stat.h>

#include <string>
#include <vector>

namespace trainyard::agent {

class Programs {
 public:
  // Remembers the files at these paths. A path without a file is ignored: starting that program fails anyway.
  explicit Programs(const std::vector<std::string>& paths);
  ~Programs();
  Programs(const Programs&) = delete;
  Programs& operator=(const Programs&) = delete;

  // Returns which program was replaced or removed, and what to do, or which one cannot be examined; empty: all are as
  // they were.
  std::string FindReplaced() const;

 private:
  struct Program {
    std::string path;
    int fd = -1;  // keeps the inode, so that no other file gets its number
    struct stat info = {};
  };
  std::vector<Program> programs_;
};

}  // namespace trainyard::agent
