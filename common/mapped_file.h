// A file that is mapped for reading, so that only the pages that are accessed are read, without any copy.
//
// A page of a mapping may become unreadable later: another program makes the file shorter, or the file system fails
// (NFS). The kernel then raises SIGBUS in the thread that accesses the page. The first mapping of a process installs a
// handler which writes the name of the file and the reason to standard error, and ends the process with kExitFailed.
// This costs nothing while the files can be read. SIGBUS that no mapped file causes has the effect that it had before.
//
// Immutable, so thread-safe.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

struct MappedRange;

class MappedFile {
 public:
  // Maps the whole file, which may be empty. Possible errors: those of OpenRegularFile; ResourceExhausted: the process
  // has as many mappings as the kernel allows; Unknown: the file system cannot map files.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  absl::string_view bytes() const { return bytes_; }
  // The mapped file, as it was when it was opened.
  const struct stat& info() const { return info_; }

 private:
  MappedFile(const std::string& path, absl::string_view bytes, const struct stat& info);

  const std::string path_;
  const absl::string_view bytes_;
  const struct stat info_;
  MappedRange* range_ = nullptr;  // null: the file is empty
};

}  // namespace trainyard
