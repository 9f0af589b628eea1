// Reads one stream of a trainer's output line by line while the shim writes it (worker/shim/output.h): first the older
// output in the rotated file, then the current file, across any number of rotations. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace trainyard::agent {

// The line in place of output that was removed before it was read.
inline constexpr char kMissingOutput[] =
    "[trainyard: output is missing here, because it was written faster than it was read]";

class LogFile {
 public:
  // `path` is that of the current file; the rotated file is next to it.
  explicit LogFile(std::string path) : path_(std::move(path)) {}
  ~LogFile();
  LogFile(LogFile&& other) noexcept;
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // Appends lines, without their line ends, until there are no more or about `bytes_max` were read. A line longer than
  // limits::kLogLineBytes is returned in pieces. Returns whether anything was read. Output that is replaced before it
  // is read is lost; kMissingOutput is in its place.
  bool Read(size_t bytes_max, std::vector<std::string>* lines);
  // Appends the last line if it has no line end, and closes the file. Call it when no more output follows, and do not
  // call Read after it.
  void Finish(std::vector<std::string>* lines);
  // Returns what a terminal shows of a progress bar: text that a carriage return has begun or ended, and that has no
  // line end yet. Empty: there is none, or it was returned before. Read returns only the last of the texts that
  // overwrite each other on one line.
  std::string TakeProgress();

 private:
  bool OpenNext(std::vector<std::string>* lines);
  void AddLines(absl::string_view data, std::vector<std::string>* lines);
  void EndLine(std::vector<std::string>* lines);
  void EndLastLine(std::vector<std::string>* lines);

  std::string path_;
  int fd_ = -1;
  ino_t inode_ = 0;           // of the open file
  std::string partial_line_;  // the beginning of a line whose end was not read yet
  bool overwrites_ = false;   // a carriage return came before partial_line_
  bool returned_ = false;     // a carriage return came after partial_line_, so the next text overwrites it
  std::string progress_;      // what TakeProgress returned last
};

}  // namespace trainyard::agent
