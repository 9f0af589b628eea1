#include "common/user.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/files.h"

namespace trainyard {
namespace {

constexpr size_t kEntryBytes = 16 << 10;

struct Account {
  std::string name, home;
};

Account AccountOf(uid_t user) {
  std::vector<char> buffer(kEntryBytes);
  passwd entry;
  passwd* found = nullptr;
  if (getpwuid_r(user, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return {};
  return {entry.pw_name, entry.pw_dir};
}

std::string AbsoluteVariable(const char* name) {
  const char* value = getenv(name);
  return value != nullptr && *value == '/' ? value : "";
}

// A folder that does not exist yet has no owner.
bool IsOwnedByAnotherUser(const std::string& folder) {
  struct stat info;
  return stat(folder.c_str(), &info) == 0 && info.st_uid != geteuid();
}

}  // namespace

std::string UserText(uid_t user) {
  const std::string name = AccountOf(user).name;
  return name.empty() ? absl::StrCat(user) : absl::StrCat(name, " (", user, ")");
}

absl::StatusOr<std::string> UserStateFolder() {
  const std::string given = AbsoluteVariable("XDG_STATE_HOME");
  if (!given.empty() && !IsOwnedByAnotherUser(given)) return given;
  const std::string home = AbsoluteVariable("HOME");
  if (FileExists(home) && !IsOwnedByAnotherUser(home)) return JoinPath(home, ".local/state");
  const std::string known = AccountOf(geteuid()).home;
  if (FileExists(known) && !IsOwnedByAnotherUser(known)) return JoinPath(known, ".local/state");
  return absl::FailedPreconditionError(absl::StrCat(
      "user ", UserText(geteuid()), " has no folder for state: neither XDG_STATE_HOME ('", given, "') nor HOME ('",
      home, "') nor the home in the password database ('", known, "') is a folder of that user; set XDG_STATE_HOME"));
}

}  // namespace trainyard
