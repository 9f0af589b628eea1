#include "client/config_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/plain_text.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

constexpr int kEntriesMax = 10000;
constexpr size_t kFoundMax = 100;  // limit for each kind of file
constexpr int kLevels = 2;
constexpr mode_t kTextMode = 0644;

class Finder {
 public:
  explicit Finder(FoundFiles* found) : found_(*found) {}

  // `name`: relative to the folder that the search began in; empty for that folder.
  void Search(const std::string& folder, const std::string& name, int levels, bool in_data) {
    DIR* entries = opendir(folder.c_str());
    if (entries == nullptr) return;
    while (const dirent* entry = ReadEntry(entries)) {
      const std::string base = entry->d_name;
      // Names that a shell would split are not suggested.
      const bool is_plain = WhyNotPlainText(base).empty() && base.find_first_of(" \t'\"\\*?[") == std::string::npos;
      if (absl::StartsWith(base, ".") || !is_plain) continue;
      const std::string path = JoinPath(folder, base);
      const std::string shown = name.empty() ? base : JoinPath(name, base);
      struct stat info;
      if (lstat(path.c_str(), &info) != 0) continue;
      if (S_ISDIR(info.st_mode)) {
        const bool is_data = in_data || base == "data";
        if (is_data && levels > 0) Search(path, shown, levels - 1, true);
        if (FileExists(JoinPath(path, "config.json"))) Add(shown, &found_.models);
      } else if (S_ISREG(info.st_mode)) {
        AddFile(shown, in_data);
      }
    }
    closedir(entries);
  }

 private:
  const dirent* ReadEntry(DIR* entries) { return ++count_ > kEntriesMax ? nullptr : readdir(entries); }

  void AddFile(const std::string& name, bool in_data) {
    if (absl::EndsWith(name, ".py") && !in_data) Add(name, &found_.scripts);
    const bool is_text = absl::EndsWith(name, ".txt") && (in_data || !absl::StartsWith(name, "requirements"));
    const bool is_data = absl::EndsWith(name, ".jsonl") || absl::EndsWith(name, ".csv");
    if (is_text || is_data || (in_data && absl::EndsWith(name, ".bin"))) Add(name, &found_.data);
  }

  static void Add(const std::string& name, std::vector<std::string>* names) {
    if (names->size() < kFoundMax) names->push_back(name);
  }

  FoundFiles& found_;
  int count_ = 0;
};

absl::Status Failure(absl::string_view what, const std::string& path) {
  return ErrnoStatus(errno, absl::StrCat("cannot ", what, " ", path));
}

// Removes a temporary file in its destructor.
struct Remover {
  ~Remover() { unlink(path.c_str()); }
  const std::string path;
};

absl::Status WriteTo(int fd, absl::string_view text, const std::string& path) {
  absl::Status status;
  while (!text.empty() && status.ok()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) status = Failure("write", path);
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
  if (status.ok() && fsync(fd) != 0) status = Failure("write", path);
  if (close(fd) != 0 && status.ok()) status = Failure("write", path);
  return status;
}

absl::Status Exists(const std::string& path) {
  return absl::AlreadyExistsError(
      absl::StrCat(path, " exists already; give another name with -o, or --force to replace it"));
}

// Gives a complete file its name, unless the name is taken. NFS and many FUSE file systems lack RENAME_NOREPLACE, and
// some of those lack hard links, too.
absl::Status RenameToNew(const std::string& temporary, const std::string& path, absl::string_view text) {
  if (NameNewFile(temporary, path)) return absl::OkStatus();
  if (errno == EEXIST) return Exists(path);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kTextMode);
  if (fd < 0) return errno == EEXIST ? Exists(path) : Failure("create", path);
  absl::Status status = WriteTo(fd, text, path);
  if (!status.ok()) unlink(path.c_str());
  return status;
}

}  // namespace

FoundFiles FindFiles(const std::string& folder) {
  FoundFiles found;
  Finder(&found).Search(folder, "", kLevels, /*in_data=*/false);
  for (std::vector<std::string>* names : {&found.scripts, &found.data, &found.models}) {
    std::sort(names->begin(), names->end());
  }
  return found;
}

absl::Status WriteNewFile(const std::string& path, absl::string_view text, bool replace) {
  if (replace) return WriteFileAtomically(path, text, kTextMode);
  struct stat info;
  if (lstat(path.c_str(), &info) == 0) return Exists(path);
  const std::string name = absl::StrCat(path, ".", getpid(), ".tmp");
  const int fd = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, kTextMode);
  if (fd < 0) return Failure("create", path);
  // Made after open has succeeded, because a file of this name that existed before must stay.
  const Remover temporary{name};
  RETURN_IF_ERROR(WriteTo(fd, text, path));
  return RenameToNew(temporary.path, path, text);
}

}  // namespace trainyard::client
