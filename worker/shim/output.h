// The trainer's output: copies bytes from a pipe into a log file, which is rotated into one older file, and keeps the
// last lines of both streams for the exit record. Nothing here may block the trainer: if the disk is full or broken,
// output is dropped and counted. Single-threaded.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "worker/shim/records.h"

namespace trainyard::shim {

// The newest lines of stdout and stderr, in order of arrival.
class LastLines {
 public:
  // `stream` is 0 or 1. A line may arrive in pieces; each stream has one open line.
  void Add(int stream, const char* data, size_t size);
  // Closes open lines. Call once, at the end.
  void Finish();

  unsigned count() const { return total_ < kLastLinesKept ? total_ : kLastLinesKept; }
  // 0 is the oldest.
  const char* line(unsigned index, size_t* size) const;

 private:
  struct Line {
    char text[kLastLineBytes];
    size_t size = 0;
    bool returned = false;  // a carriage return came last, so that the next text overwrites this one
  };
  void Close(int stream);

  Line open_[2];               // by stream
  Line kept_[kLastLinesKept];  // a ring buffer
  unsigned total_ = 0;         // closed lines so far
};

// One stream's log file in the working directory.
class LogFile {
 public:
  // A file is renamed to `<name>.1` before it grows beyond `file_bytes_max`.
  LogFile(const char* name, uint64_t file_bytes_max) : name_(name), file_bytes_max_(file_bytes_max) {}

  void Write(const char* data, size_t size);
  uint64_t dropped_bytes() const { return dropped_bytes_; }

 private:
  void Rotate();
  void WriteAll(const char* data, size_t size);

  const char* name_;
  uint64_t file_bytes_max_;
  int fd_ = -1;
  uint64_t size_ = 0;
  uint64_t dropped_bytes_ = 0;
};

// One pipe from the trainer.
class Stream {
 public:
  Stream(int index, const char* file, uint64_t file_bytes_max, LastLines* lines)
      : index_(index), log_(file, file_bytes_max), lines_(lines) {}

  // Takes over the reading end and makes it non-blocking.
  void Open(int fd);
  // Reads what is available, at most `bytes_max`, so that the other stream is read too. Returns false once the pipe
  // has ended.
  bool Read(size_t bytes_max);

  int fd() const { return fd_; }  // -1: ended
  uint64_t dropped_bytes() const { return log_.dropped_bytes(); }

 private:
  int index_;
  int fd_ = -1;
  LogFile log_;
  LastLines* lines_;
};

}  // namespace trainyard::shim
