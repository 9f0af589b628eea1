#include "common/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdint>

#include "absl/base/attributes.h"
#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/exit_codes.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {

// The memory of a mapping, for the handler, which may neither lock nor allocate. Objects are reused and never deleted,
// so the handler can follow the list at any time. It reads the path only of the range that contains the address of a
// failed access; the file of that range is in use.
struct MappedRange {
  std::atomic<uintptr_t> begin{0};  // 0: not in use
  std::atomic<size_t> num_bytes{0};
  std::string path = {};
  MappedRange* next = nullptr;         // in the list of all ranges; constant once it is listed
  MappedRange* next_unused = nullptr;  // protected by mapped_ranges_mutex
};

namespace {

ABSL_CONST_INIT absl::Mutex mapped_ranges_mutex(absl::kConstInit);
MappedRange* unused_mapped_ranges ABSL_GUARDED_BY(mapped_ranges_mutex) = nullptr;
bool watches_mapped_files ABSL_GUARDED_BY(mapped_ranges_mutex) = false;
std::atomic<MappedRange*> newest_mapped_range{nullptr};
struct sigaction previous_sigbus_action;  // constant once the handler is installed
std::atomic<bool> unreadable_page_reported{false};

// A text that a signal handler composes.
class HandlerText {
 public:
  void Add(const char* text) {
    const size_t size = std::min(strlen(text), sizeof text_ - size_);
    memcpy(text_ + size_, text, size);
    size_ += size;
  }
  void Add(uint64_t number) {
    size_ = static_cast<size_t>(std::to_chars(text_ + size_, text_ + sizeof text_, number).ptr - text_);
  }
  void Write(int fd) const {
    for (size_t at = 0; at < size_;) {
      const ssize_t written = write(fd, text_ + at, size_ - at);
      if (written <= 0 && errno != EINTR) return;
      at += static_cast<size_t>(std::max<ssize_t>(written, 0));
    }
  }

 private:
  char text_[8192];
  size_t size_ = 0;
};

const MappedRange* FindMappedRange(uintptr_t address) {
  for (const MappedRange* range = newest_mapped_range; range != nullptr; range = range->next) {
    const uintptr_t begin = range->begin;
    if (begin != 0 && address >= begin && address - begin < range->num_bytes) return range;
  }
  return nullptr;
}

[[noreturn]] void EndWithUnreadablePage(const MappedRange& range, uint64_t at) {
  // Another thread may access an unreadable page at the same time; one report is enough.
  while (unreadable_page_reported.exchange(true)) pause();
  HandlerText text;
  text.Add(range.path.c_str());
  struct stat now;
  if (stat(range.path.c_str(), &now) != 0) {
    text.Add(" cannot be read any more at byte ");
    text.Add(at);
    text.Add(": it was removed, or its file system is not mounted any more");
  } else if (static_cast<uint64_t>(now.st_size) < range.num_bytes) {
    text.Add(" has become shorter while it was in use: it had ");
    text.Add(range.num_bytes);
    text.Add(" bytes when it was opened and has ");
    text.Add(static_cast<uint64_t>(now.st_size));
    text.Add(" now");
  } else {
    text.Add(" cannot be read any more at byte ");
    text.Add(at);
    text.Add(": its file system has failed, or another program has written the file again");
  }
  text.Add(". Provide the file again. Do not change a file that is in use: write a new one and rename it.\n");
  text.Write(STDERR_FILENO);
  _exit(kExitFailed);
}

void HandleUnreadablePage(int signal, siginfo_t* info, void*) {
  // Signals that a process sends have other codes, and no address.
  const bool is_access = info->si_code > 0 && info->si_code != SI_KERNEL;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const MappedRange* range = is_access ? FindMappedRange(address) : nullptr;
  if (range != nullptr) EndWithUnreadablePage(*range, address - range->begin);
  sigaction(SIGBUS, &previous_sigbus_action, nullptr);
  raise(signal);  // is delivered when this handler returns
}

MappedRange* ListMappedRange(const std::string& path, absl::string_view bytes) {
  absl::MutexLock lock(&mapped_ranges_mutex);
  if (!watches_mapped_files) {
    struct sigaction action = {};
    action.sa_sigaction = HandleUnreadablePage;
    action.sa_flags = SA_SIGINFO;
    watches_mapped_files = sigaction(SIGBUS, &action, &previous_sigbus_action) == 0;
  }
  MappedRange* range = unused_mapped_ranges;
  if (range != nullptr) {
    unused_mapped_ranges = range->next_unused;
  } else {
    range = new MappedRange;
    range->next = newest_mapped_range;
    newest_mapped_range = range;
  }
  range->path = path;
  range->num_bytes = bytes.size();
  range->begin = reinterpret_cast<uintptr_t>(bytes.data());
  return range;
}

void UnlistMappedRange(MappedRange* range) {
  absl::MutexLock lock(&mapped_ranges_mutex);
  range->begin = 0;
  range->next_unused = unused_mapped_ranges;
  unused_mapped_ranges = range;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const int fd, OpenRegularFile(path, O_RDONLY));
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info = {};
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, absl::StrCat("cannot inspect ", path));
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) return std::unique_ptr<MappedFile>(new MappedFile(path, absl::string_view(), info));
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    return ErrnoStatus(error, absl::StrCat("cannot map ", path,
                                           error == ENOMEM ? " (more files than vm.max_map_count allows? combine some, "
                                                             "or raise it by sysctl)"
                                                           : ""));
  }
  return std::unique_ptr<MappedFile>(new MappedFile(path, {static_cast<const char*>(data), size}, info));
}

MappedFile::MappedFile(const std::string& path, absl::string_view bytes, const struct stat& info)
    : path_(path), bytes_(bytes), info_(info) {
  if (!bytes_.empty()) range_ = ListMappedRange(path_, bytes_);
}

MappedFile::~MappedFile() {
  if (range_ == nullptr) return;
  UnlistMappedRange(range_);
  munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

}  // namespace trainyard
