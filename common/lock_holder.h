// The process that holds a lock on a file, for error messages. LockHolder reads /proc/locks, which lists the locks of
// all processes of this host, including those of SQLite. If the process is on another host, which is possible on a
// network file system, only the content of the lock file names it.
#pragma once

#include <sys/stat.h>

#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

// Returns "process 123 (trainyard-worker --name h1)", or only "process 123" if the command is hidden, because the
// process belongs to another user. If several processes hold locks on the file, names one of them. Empty: no holder is
// known. The text is escaped (escape.h).
std::string LockHolder(const struct stat& file);
std::string LockHolder(const std::string& path);

// What the holder of a lock writes into the lock file: the number of this process and the name of this host.
std::string LockFileText();
// Returns "process 123 on host w1" from the content of a lock file. The host is missing if an earlier version of the
// program wrote the file. Returns "another process" if the content names no process. The text is escaped (escape.h).
std::string HolderInLockFile(absl::string_view text);
std::string HolderInLockFile(int fd);  // the same, for an open lock file

}  // namespace trainyard
