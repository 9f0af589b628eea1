#include "common/user_path.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"

namespace trainyard {

std::string HomeFolder() {
  const char* home = getenv("HOME");
  if (home != nullptr && *home == '/') return home;
  struct passwd entry, *found = nullptr;
  std::vector<char> buffer(64 << 10);
  if (getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return "";
  return found->pw_dir != nullptr && *found->pw_dir == '/' ? found->pw_dir : "";
}

absl::StatusOr<std::string> PathOfUser(absl::string_view path, absl::string_view working_directory) {
  if (path.empty()) return absl::InvalidArgumentError("expected a path, found an empty string");
  if (absl::StrContains(path, '$')) {
    return absl::InvalidArgumentError(absl::StrCat("contains a '$', but shell variables are not expanded here; ",
                                                   "write the path out, or begin it with ~/ for your home folder: '",
                                                   path.substr(0, 200), "'"));
  }
  std::string expanded(path);
  if (path[0] == '~') {
    if (path.size() > 1 && path[1] != '/') {
      return absl::InvalidArgumentError(absl::StrCat("begins with '", path.substr(0, path.find('/')).substr(0, 60),
                                                     "', but only ~/ (your own home folder) is expanded; write the ",
                                                     "path out, or ./~... for a file of that name"));
    }
    const std::string home = HomeFolder();
    if (home.empty()) {
      return absl::InvalidArgumentError(
          "begins with ~, but no home folder is known: $HOME is not set, and the password database names none; write "
          "the path out");
    }
    expanded = absl::StrCat(home, path.substr(1));
  }
  return working_directory.empty() && expanded[0] != '/' ? expanded : AbsolutePath(expanded, working_directory);
}

}  // namespace trainyard
