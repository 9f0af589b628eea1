// The process that holds a lock on a file, for error messages. The functions read /proc/locks, which lists the locks of
// all processes of this host, including those of SQLite.
#pragma once

#include <sys/stat.h>

#include <string>

namespace trainyard {

// "process 123 (trainyard-worker --name h1)"; without the command if it is hidden, because the process belongs to
// another user. If several processes hold locks, names one of them; empty if none is known. The text is escaped
// (escape.h).
std::string LockHolder(const struct stat& file);
std::string LockHolder(const std::string& path);

}  // namespace trainyard
