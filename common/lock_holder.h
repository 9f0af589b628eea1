// The process that holds a lock on a file, for error messages. LockHolder reads /proc/locks, which lists the locks of
// all processes of this host, including those of SQLite. If the process is on another host, which is possible on a
// network file system, only the content of the lock file names it.
#pragma once

#include <sys/stat.h>

#include <string>

#include "absl/strings/string_view.h"

namespace trainyard {

// "process 123 (trainyard-worker --name h1)"; without the command if it is hidden, because the process belongs to
// another user. If several processes hold locks, names one of them; empty if none is known. The text is escaped
// (escape.h).
std::string LockHolder(const struct stat& file);
std::string LockHolder(const std::string& path);

// What the holder of a lock writes into the lock file: the number of this process and the name of this host.
std::string LockFileText();
// "process 123 on host w1": what the content of a lock file says. Without the host if an earlier version of the program
// wrote it; "another process" if it names none. The text is escaped (escape.h).
std::string HolderInLockFile(absl::string_view text);
std::string HolderInLockFile(int fd);  // the same, for an open lock file

}  // namespace trainyard
