#include "worker/agent/programs.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/files.h"

namespace trainyard::agent {
namespace {

// A package manager puts a new file in the place of the old one; a copy may overwrite the file itself.
bool IsSameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

}  // namespace

Programs::Programs(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    Program program{.path = path, .fd = open(path.c_str(), O_PATH | O_CLOEXEC)};
    if (program.fd < 0) continue;
    if (fstat(program.fd, &program.info) == 0) {
      programs_.push_back(program);
    } else {
      close(program.fd);
    }
  }
}

Programs::~Programs() {
  for (const Program& program : programs_) close(program.fd);
}

std::string Programs::FindReplaced() const {
  for (const Program& program : programs_) {
    struct stat now = {};
    const bool exists = stat(program.path.c_str(), &now) == 0;
    if (exists && IsSameFile(now, program.info)) continue;
    if (!exists && errno != ENOENT && errno != ENOTDIR) {  // for example, a network file system is away for a moment
      return std::string(ErrnoStatus(errno, absl::StrCat("cannot examine ", program.path)).message());
    }
    return absl::StrCat(program.path, exists ? " was replaced" : " was removed",
                        " after this daemon had started, for example by an upgrade; restart the daemon (systemctl "
                        "restart trainyard-worker)");
  }
  return "";
}

}  // namespace trainyard::agent
