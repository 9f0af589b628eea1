#include "worker/agent/home.h"

#include <errno.h>
#include <sys/stat.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/hash.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "worker/agent/rank_folder.h"

namespace trainyard::agent {
namespace {

constexpr char kRanks[] = "ranks";
constexpr char kLockFile[] = "lock";
constexpr char kStore[] = "store.db";  // the store of a coordinator
constexpr char kSocket[] = "worker.sock";

// Returns the device of the path, or of the nearest folder above it that exists.
dev_t DeviceOfNearest(std::filesystem::path path) {
  while (path.has_relative_path()) {
    if (std::optional<FileId> id = IdOf(path.string()); id.has_value()) return id->device;
    path = path.parent_path();
  }
  return IdOf("/").value_or(FileId{}).device;
}

}  // namespace

Home::Home(const Options& options)
    : options_(options),
      ranks_(JoinPath(options.state, kRanks)),
      lock_path_(JoinPath(options.state, kLockFile)),
      programs_(options.programs) {}

absl::StatusOr<std::shared_ptr<Home>> Home::Acquire(const Options& options) {
  auto home = std::shared_ptr<Home>(new Home(options));
  {
    absl::MutexLock lock(&home->mu_);
    RETURN_IF_ERROR(home->AcquireState(limits::kTakeOverWait));
  }
  RETURN_IF_ERROR(home->Listen());
  return home;
}

absl::Status Home::AcquireState(absl::Duration patience) {
  if (FileExists(JoinPath(options_.state, kStore))) {
    return absl::InvalidArgumentError(absl::StrCat("state folder ", options_.state,
                                                   " is that of a coordinator (it holds '", kStore,
                                                   "'); give this daemon another --state"));
  }
  if (!options_.own_root.empty()) {
    RETURN_IF_ERROR(MakePrivateFolder(options_.own_root));
  }
  RETURN_IF_ERROR(MakeFolders(ranks_));
  // The folder contains tokens and the output of trainers.
  if (chmod(options_.state.c_str(), 0700) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot protect ", options_.state));
  }
  if (lock_ == nullptr || IdOf(lock_path_) != lock_id_) {
    absl::StatusOr<std::unique_ptr<FileLock>> lock = FileLock::Acquire(lock_path_, patience);
    if (!lock.ok()) {
      return absl::Status(
          lock.status().code(),
          absl::StrCat(lock.status().message(), ": the state folder ", options_.state,
                       " belongs to another worker daemon; stop that one, or give this one another --state"));
    }
    lock_ = *std::move(lock);
  }
  state_id_ = IdOf(options_.state);
  ranks_id_ = IdOf(ranks_);
  lock_id_ = IdOf(lock_path_);
  return absl::OkStatus();
}

absl::Status Home::Listen() {
  LinkListenerOptions listening = {.candidates = {JoinPath(options_.state, kSocket)},
                                   .earlier = LinksOfTrainers(ranks_)};
  const std::string name = absl::StrCat("worker-", HashHex(options_.state).substr(0, 16), ".sock");
  if (absl::StatusOr<std::shared_ptr<LinkListener>> listener = LinkListener::Listen(listening); listener.ok()) {
    listener_ = *std::move(listener);
    return absl::OkStatus();
  }
  // The path in the state folder is too long, or the folder's file system supports no sockets.
  ASSIGN_OR_RETURN(std::string folder, MakeSocketFolder(options_.sockets));
  listening.candidates.push_back(JoinPath(folder, name));
  ASSIGN_OR_RETURN(listener_, LinkListener::Listen(listening));
  return absl::OkStatus();
}

bool Home::HasState() const {
  return IdOf(options_.state) == state_id_ && IdOf(ranks_) == ranks_id_ && IdOf(lock_path_) == lock_id_;
}

absl::Status Home::ReacquireState() {
  const bool same_disk = state_id_.has_value() && DeviceOfNearest(options_.state) == state_id_->device;
  if (!same_disk && !FileExists(lock_path_)) {
    return absl::FailedPreconditionError("the file system that it was on is gone, too; mount it again");
  }
  return AcquireState(absl::ZeroDuration());
}

// Returns why no trainer can be started, or an empty string.
std::string Home::Recreate() {
  if (!HasState()) {
    if (absl::Status reacquired = ReacquireState(); !reacquired.ok()) {
      return absl::StrCat("its state folder ", options_.state, " is gone: ", reacquired.message());
    }
    state_is_new_ = true;
  }
  absl::StatusOr<bool> recreated = listener_->Recreate();
  if (!recreated.ok()) return std::string(recreated.status().message());
  socket_is_new_ = socket_is_new_ || *recreated;
  return programs_.FindReplaced();
}

HomeChecked Home::Inspect() {
  absl::MutexLock lock(&mu_);
  std::string trouble = Recreate();
  return {.trouble = std::move(trouble),
          .state_is_new = std::exchange(state_is_new_, false),
          .socket_is_new = std::exchange(socket_is_new_, false)};
}

absl::Status Home::Check() {
  absl::MutexLock lock(&mu_);
  std::string trouble = Recreate();
  return trouble.empty() ? absl::OkStatus() : absl::UnavailableError(trouble);
}

}  // namespace trainyard::agent
