// Reads one stream of a trainer's output line by line while the shim writes it: the rotated half first, then the
// current file, across any number of rotations. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

namespace trainyard::agent {

class LogFile {
 public:
  // `path` is that of the current file; the rotated half is next to it.
  explicit LogFile(std::string path) : path_(std::move(path)) {}
  ~LogFile();
  LogFile(LogFile&& other) noexcept;
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // Appends lines, without their ends, until there are no more or about `bytes_max` were read. A line longer than
  // limits::kLogLineBytes is returned in pieces. Returns whether anything was read.
  bool Read(size_t bytes_max, std::vector<std::string>* lines);
  // Appends the last line, if it has no end; call when nothing follows any more.
  void Finish(std::vector<std::string>* lines);

 private:
  bool OpenNext();
  void Take(const char* data, size_t size, std::vector<std::string>* lines);

  std::string path_;
  int fd_ = -1;
  ino_t inode_ = 0;
  std::string open_line_;
};

}  // namespace trainyard::agent
