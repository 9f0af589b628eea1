#include "common/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/files.h"
#include "common/ids.h"
#include "common/status_macros.h"
#include "common/user.h"

namespace trainyard {
namespace {

constexpr int kTokenLength = 52;  // 5 bits each
constexpr size_t kTokenBytesMin = 16;
constexpr size_t kTokenBytesMax = 1024;

std::string FileName(absl::string_view address) {
  utsname names = {};
  uname(&names);
  struct stat network = {};
  stat("/proc/self/ns/net", &network);
  const std::string name = absl::StrCat(names.nodename, "-", network.st_ino, "-", address);
  // An IPv6 address has brackets before its port.
  return absl::StrReplaceAll(name, {{"/", "_"}, {"]:", "-"}, {"[", ""}, {":", "-"}});
}

// Accepts only characters that can be sent in the metadata of a call.
absl::Status CheckToken(absl::string_view token, const std::string& path) {
  auto is_valid = [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("-._~+/=", c); };
  const bool plain = std::all_of(token.begin(), token.end(), is_valid);
  if (plain && token.size() >= kTokenBytesMin && token.size() <= kTokenBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("token file ", path, " does not contain a token: expected ",
                                                 kTokenBytesMin, " to ", kTokenBytesMax,
                                                 " letters, digits and -._~+/= on one line, found ", token.size(),
                                                 plain ? " of them" : " characters, not all of them valid"));
}

struct OpenFile {
  std::string text;
  struct stat info = {};
};

// Does not block on a pipe or a device in place of the file. Follows a symbolic link unless `flags` has O_NOFOLLOW.
absl::StatusOr<OpenFile> ReadTokenFile(const std::string& path, int flags) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot open token file ", path));
  absl::Cleanup close_fd = [fd] { close(fd); };
  OpenFile file;
  if (fstat(fd, &file.info) != 0) return ErrnoStatus(errno, absl::StrCat("cannot inspect token file ", path));
  if (!S_ISREG(file.info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat("token file ", path, " is not a regular file"));
  char buffer[kTokenBytesMax + 2];
  const ssize_t n = read(fd, buffer, sizeof buffer);
  if (n < 0) return ErrnoStatus(errno, absl::StrCat("cannot read token file ", path));
  file.text = std::string(absl::StripAsciiWhitespace(absl::string_view(buffer, static_cast<size_t>(n))));
  RETURN_IF_ERROR(CheckToken(file.text, path));
  return file;
}

absl::Status WriteAll(int fd, absl::string_view data, const std::string& path) {
  const ssize_t n = write(fd, data.data(), data.size());
  if (n == static_cast<ssize_t>(data.size())) return absl::OkStatus();
  return ErrnoStatus(n < 0 ? errno : ENOSPC, absl::StrCat("cannot write token file ", path));
}

// The file gets its name only when it is complete: an empty file after a crash or on a full disk would be refused at
// every later start. Possible errors: AlreadyExists: the path exists, and was not changed.
absl::Status MakeTokenFile(const std::string& path, absl::string_view token) {
  struct stat ignored;
  // The folder of an existing file may be read-only, such as that of a mounted secret.
  if (lstat(path.c_str(), &ignored) == 0) return ErrnoStatus(EEXIST, absl::StrCat("cannot make token file ", path));
  const std::string temporary = absl::StrCat(path, ".", RandomId(8));
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot make token file ", path));
  absl::Cleanup remove_temporary = [&temporary] { unlink(temporary.c_str()); };
  absl::Status written = WriteAll(fd, absl::StrCat(token, "\n"), path);
  if (written.ok() && fsync(fd) != 0) written = ErrnoStatus(errno, absl::StrCat("cannot write token file ", path));
  close(fd);
  RETURN_IF_ERROR(written);
  if (NameNewFile(temporary, path)) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("cannot put token file ", path, " in its place"));
}

// Creates the folder if necessary, makes it private to this user, and opens it. The descriptor refers to this folder
// even if the path changes.
absl::StatusOr<int> OpenFolder(const std::string& folder) {
  const size_t last = folder.rfind('/');
  RETURN_IF_ERROR(MakeFolders(folder.substr(0, last)));
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat("cannot make folder ", folder));
  }
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot open folder ", folder));
  struct stat info;
  if (fstat(fd, &info) == 0 && info.st_uid == geteuid() && fchmod(fd, 0700) == 0) return fd;
  close(fd);
  return absl::FailedPreconditionError(
      absl::StrCat("folder ", folder, " must belong to user ", UserText(geteuid()), "; remove it"));
}

}  // namespace

std::string GenerateToken() { return RandomId(kTokenLength); }

bool SameToken(absl::string_view one, absl::string_view other) {
  unsigned differences = one.size() == other.size() ? 0 : 1;
  for (size_t i = 0; i < one.size() && !other.empty(); ++i) {
    differences |= static_cast<unsigned char>(one[i]) ^ static_cast<unsigned char>(other[i % other.size()]);
  }
  return differences == 0;
}

absl::StatusOr<std::string> UserTokenFolder() {
  ASSIGN_OR_RETURN(std::string state, UserStateFolder());
  return JoinPath(state, "trainyard/tokens");
}

std::string TokenPath(const std::string& folder, absl::string_view address) {
  return JoinPath(folder, FileName(address));
}

absl::Status WriteToken(const std::string& folder, absl::string_view address, absl::string_view token) {
  ASSIGN_OR_RETURN(const int folder_fd, OpenFolder(folder));
  absl::Cleanup close_folder = [folder_fd] { close(folder_fd); };
  const std::string path = TokenPath(folder, address), name = FileName(address);
  const std::string temporary = absl::StrCat(".", name, ".", getpid());
  unlinkat(folder_fd, temporary.c_str(), 0);
  const int fd = openat(folder_fd, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot make token file ", path));
  absl::Status written = WriteAll(fd, absl::StrCat(token, "\n"), path);
  close(fd);
  if (written.ok() && renameat(folder_fd, temporary.c_str(), folder_fd, name.c_str()) == 0) return written;
  if (written.ok()) written = ErrnoStatus(errno, absl::StrCat("cannot put token file ", path, " in its place"));
  unlinkat(folder_fd, temporary.c_str(), 0);
  return written;
}

absl::StatusOr<std::string> ReadOwnToken(const std::string& folder, absl::string_view address) {
  const std::string path = TokenPath(folder, address);
  absl::StatusOr<OpenFile> file = ReadTokenFile(path, O_NOFOLLOW);
  if (absl::IsNotFound(file.status())) return std::string();
  RETURN_IF_ERROR(file.status());
  const bool ours = file->info.st_uid == geteuid() || file->info.st_uid == 0;
  if (ours && (file->info.st_mode & 077) == 0) return std::move(file->text);
  return absl::PermissionDeniedError(
      absl::StrCat("token file ", path, " must belong to user ", UserText(geteuid()), " alone (mode 0600); remove it"));
}

void RemoveToken(const std::string& folder, absl::string_view address, absl::string_view token) {
  const std::string path = TokenPath(folder, address);
  absl::StatusOr<OpenFile> file = ReadTokenFile(path, O_NOFOLLOW);
  if (file.ok() && SameToken(file->text, token)) unlink(path.c_str());
}

absl::StatusOr<NamedToken> ReadNamedToken(const std::string& path) {
  ASSIGN_OR_RETURN(OpenFile file, ReadTokenFile(path, 0));
  if ((file.info.st_mode & 007) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("every user of this host can read or write token file ", path, "; run chmod o= ", path));
  }
  return NamedToken{std::move(file.text), file.info.st_uid};
}

absl::Status WriteTokenFile(const std::string& path, absl::string_view token) {
  unlink(path.c_str());
  return MakeTokenFile(path, token);
}

absl::StatusOr<NamedToken> ReadOrMakeNamedToken(const std::string& path) {
  absl::Status made = MakeTokenFile(path, GenerateToken());
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  return ReadNamedToken(path);
}

}  // namespace trainyard
