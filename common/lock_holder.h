// Who holds a lock on a file, for messages about a lock that is not to be had: from /proc/locks, which knows the locks
// of every process of this host, also those that SQLite takes.
#pragma once

#include <sys/stat.h>

#include <string>

namespace trainyard {

// "process 123 (trainyard-worker --name h1)"; of several one, and empty where nobody can say. Another user's command
// may be hidden; then it is the number alone. The text is escaped (escape.h).
std::string LockHolder(const struct stat& file);
std::string LockHolder(const std::string& path);

}  // namespace trainyard
