// The process that holds a lock on a file, for error messages. From /proc/locks, which lists the locks of all processes
// of this host, including those of SQLite.
#pragma once

#include <sys/stat.h>

#include <string>

namespace trainyard {

// "process 123 (trainyard-worker --name h1)". One of them if several processes hold locks; empty if none is known. Only
// the number if the command is hidden because it belongs to another user. The text is escaped (escape.h).
std::string LockHolder(const struct stat& file);
std::string LockHolder(const std::string& path);

}  // namespace trainyard
