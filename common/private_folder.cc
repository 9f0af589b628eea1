#include "common/private_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/files.h"

namespace trainyard {
namespace {

constexpr char kLingerFolder[] = "/var/lib/systemd/linger";
// Leaves space for the file name in the path of a socket.
constexpr size_t kRuntimeBytesMax = 40;

bool ThisUserLingers() {
  std::vector<char> buffer(16 << 10);
  struct passwd entry;
  struct passwd* found = nullptr;
  if (getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return false;
  return FileExists(JoinPath(kLingerFolder, found->pw_name));
}

}  // namespace

std::optional<FileId> IdOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  return FileId{.device = info.st_dev, .inode = info.st_ino};
}

absl::Status CheckPrivateFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0 && (errno == ENOTDIR || errno == ELOOP)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " must be a folder and is something else (a symbolic link or a file); remove it"));
  }
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot open folder ", path));
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, absl::StrCat("cannot inspect ", path));
  if (info.st_uid == geteuid() && (info.st_mode & 077) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s must belong to user %d and be closed to all others (mode 0700), but it belongs to user %d and "
      "has mode %04o; remove it",
      path, geteuid(), info.st_uid, info.st_mode & 07777));
}

absl::Status MakePrivateFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat("cannot make folder ", path));
  }
  return CheckPrivateFolder(path);
}

SocketPlaces SocketPlacesOfThisUser() {
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  return {.runtime = runtime == nullptr ? "" : runtime, .lingers = ThisUserLingers()};
}

absl::StatusOr<std::string> MakeSocketFolder(const SocketPlaces& places) {
  if (places.lingers && !places.runtime.empty() && places.runtime[0] == '/' &&
      places.runtime.size() < kRuntimeBytesMax) {
    std::string folder = JoinPath(places.runtime, "trainyard");
    if (MakePrivateFolder(folder).ok()) return folder;
  }
  std::string folder = JoinPath(places.shared, absl::StrCat("trainyard-", geteuid()));
  absl::Status made = MakePrivateFolder(folder);
  if (made.ok()) return folder;
  if (!absl::IsFailedPrecondition(made)) return made;
  folder += "-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return ErrnoStatus(errno, absl::StrCat("cannot make folder ", folder));
  return folder;
}

absl::StatusOr<std::string> SocketFolder() { return MakeSocketFolder(SocketPlacesOfThisUser()); }

}  // namespace trainyard
