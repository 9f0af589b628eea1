#include "worker/shim/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

namespace trainyard::shim {

void LastLines::Add(int stream, const char* data, size_t size) {
  Line& open = open_[stream];
  for (size_t i = 0; i < size; ++i) {
    if (data[i] == '\n') {
      Close(stream);
      continue;
    }
    if (open.returned && data[i] != '\r') open.size = 0;  // a progress bar overwrites its line
    open.returned = data[i] == '\r';
    if (!open.returned && open.size < kLastLineBytes) open.text[open.size++] = data[i];
  }
}

void LastLines::Close(int stream) {
  kept_[total_ % kLastLinesKept] = open_[stream];
  ++total_;
  open_[stream].size = 0;
  open_[stream].returned = false;
}

void LastLines::Finish() {
  for (int stream = 0; stream < 2; ++stream) {
    if (open_[stream].size > 0) Close(stream);
  }
}

const char* LastLines::line(unsigned index, size_t* size) const {
  unsigned first = total_ < kLastLinesKept ? 0 : total_ % kLastLinesKept;
  const Line& line = kept_[(first + index) % kLastLinesKept];
  *size = line.size;
  return line.text;
}

void LogFile::Write(const char* data, size_t size) {
  while (size > 0) {
    size_t free_bytes = file_bytes_max_ > size_ ? static_cast<size_t>(file_bytes_max_ - size_) : 0;
    if (size <= free_bytes) {
      WriteAll(data, size);
      return;
    }
    // Cuts after the end of a line if there is one, so that no line is split over two files.
    const void* last = free_bytes > 0 ? memrchr(data, '\n', free_bytes) : nullptr;
    size_t fits = last != nullptr ? static_cast<size_t>(static_cast<const char*>(last) - data) + 1 : 0;
    if (fits == 0 && size_ == 0) fits = free_bytes;
    if (fits > 0) WriteAll(data, fits);
    data += fits;
    size -= fits;
    Rotate();
  }
}

void LogFile::Rotate() {
  char rotated[32];
  snprintf(rotated, sizeof rotated, "%s%s", name_, kRotatedSuffix);
  if (fd_ >= 0) {
    close(fd_);
    rename(name_, rotated);
  }
  fd_ = -1;
  size_ = 0;
}

void LogFile::WriteAll(const char* data, size_t size) {
  if (fd_ < 0) fd_ = open(name_, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  // Counts the bytes even if the disk refuses them: the file is then rotated, which deletes the previous one and frees
  // its space.
  size_ += size;
  while (size > 0) {
    ssize_t n = fd_ >= 0 ? write(fd_, data, size) : -1;
    if (n < 0 && fd_ >= 0 && errno == EINTR) continue;
    if (n <= 0) {
      dropped_bytes_ += size;
      return;
    }
    data += n;
    size -= static_cast<size_t>(n);
  }
}

void Stream::Open(int fd) {
  fd_ = fd;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

bool Stream::Read(size_t bytes_max) {
  static char buffer[64 << 10];
  for (size_t bytes_read = 0; fd_ >= 0 && bytes_read < bytes_max;) {
    ssize_t n = read(fd_, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) {
      close(fd_);
      fd_ = -1;
      return false;
    }
    lines_->Add(index_, buffer, static_cast<size_t>(n));
    log_.Write(buffer, static_cast<size_t>(n));
    bytes_read += static_cast<size_t>(n);
  }
  return fd_ >= 0;
}

}  // namespace trainyard::shim
