// Whether a name is taken. Header-only.
#pragma once

#include <errno.h>
#include <sys/stat.h>

#include <string>

namespace trainyard {

// Whether something has this name, also if it cannot be opened: a symbolic link whose target is missing or that leads
// to itself, or a name in a folder that may not be searched. FileExists returns false for these. Use this function for
// an optional file whose absence has a meaning, so that opening a file that is there but cannot be read is an error.
inline bool NameExists(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

}  // namespace trainyard
