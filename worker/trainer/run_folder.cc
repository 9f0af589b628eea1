#include "worker/trainer/run_folder.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/ids.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr char kPrivateFolder[] = ".trainyard";
constexpr char kLockName[] = ".lock";
constexpr size_t kNamesShown = 3;

std::string TokenPath(const std::string& folder, absl::string_view token) {
  return JoinPath(folder, absl::StrCat(kPrivateFolder, "/token-", token));
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileLock>> TakeRunFolder(const std::string& folder, absl::Duration wait) {
  RETURN_IF_ERROR(MakeFolders(folder)) << "while making checkpoint.dir";
  absl::StatusOr<std::unique_ptr<FileLock>> lock = FileLock::Acquire(JoinPath(folder, kLockName), wait);
  if (!absl::IsUnavailable(lock.status())) return lock;
  return absl::FailedPreconditionError(absl::StrCat("checkpoint.dir ", folder,
                                                    " is in use by another job: ", lock.status().message(),
                                                    "; wait for its end, or choose another checkpoint.dir"));
}

absl::Status CheckEmpty(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name != kPrivateFolder && name != kLockName) names.push_back(std::move(name));
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("cannot list checkpoint.dir ", folder));
  if (names.empty()) return absl::OkStatus();
  std::sort(names.begin(), names.end());
  size_t more = names.size() - std::min(names.size(), kNamesShown);
  names.resize(names.size() - more);
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint.dir ", folder, " is not empty (it holds ", absl::StrJoin(names, ", "),
                   more > 0 ? absl::StrCat(" and ", more, " more") : "",
                   "): go on from its newest checkpoint with --resume, or choose another checkpoint.dir"));
}

absl::StatusOr<std::unique_ptr<SharedFolderToken>> SharedFolderToken::Leave(const std::string& folder) {
  std::string name = RandomId(16);
  RETURN_IF_ERROR(MakeFolders(JoinPath(folder, kPrivateFolder)));
  RETURN_IF_ERROR(WriteFileAtomically(TokenPath(folder, name), name));
  return std::unique_ptr<SharedFolderToken>(new SharedFolderToken(folder, std::move(name)));
}

SharedFolderToken::~SharedFolderToken() {
  std::error_code ignored;
  std::filesystem::remove(TokenPath(folder_, name_), ignored);
  std::filesystem::remove(JoinPath(folder_, kPrivateFolder), ignored);  // if nothing else is in it
}

absl::Status FindToken(const std::string& folder, absl::string_view token, absl::string_view host,
                       absl::Duration patience) {
  absl::Time until = absl::Now() + patience;
  while (!FileExists(TokenPath(folder, token))) {
    if (absl::Now() >= until) {
      return absl::FailedPreconditionError(absl::StrCat("host ", host, ": checkpoint.dir ", folder,
                                                        " is not the folder that rank 0 sees under that path; ",
                                                        "it must be shared by all hosts of the job"));
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  return absl::OkStatus();
}

}  // namespace trainyard
