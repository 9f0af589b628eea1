#include "tests/parity/stores.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/files.h"

namespace trainyard {

absl::Status MemoryStore::Put(absl::string_view name, absl::string_view value) {
  absl::MutexLock lock(&mu_);
  if (has_ended_) return absl::AbortedError("the generation is over");
  auto [it, is_new] = values_.try_emplace(std::string(name), std::string(value));
  if (!is_new && it->second != value) return absl::AlreadyExistsError(absl::StrCat(name, " has a different value"));
  return absl::OkStatus();
}

absl::StatusOr<std::string> MemoryStore::Get(absl::string_view name, absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  auto is_available = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return has_ended_ || values_.count(name) > 0; };
  bool in_time = mu_.AwaitWithTimeout(absl::Condition(&is_available), timeout);
  if (has_ended_) return absl::AbortedError("the generation is over");
  if (!in_time)
    return absl::DeadlineExceededError(absl::StrCat(name, " was not written within ", absl::FormatDuration(timeout)));
  return values_.find(name)->second;
}

void MemoryStore::EndGeneration() {
  absl::MutexLock lock(&mu_);
  has_ended_ = true;
}

std::string FolderStore::PathOf(absl::string_view name) const {
  return JoinPath(folder_, absl::BytesToHexString(name));
}

absl::Status FolderStore::Put(absl::string_view name, absl::string_view value) {
  std::string path = PathOf(name), temporary = absl::StrCat(path, ".", getpid(), ".partial");
  FILE* file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) return ErrnoStatus(errno, absl::StrCat("cannot write ", temporary));
  std::fwrite(value.data(), 1, value.size(), file);
  std::fclose(file);
  // Unlike a rename, a link fails if the name exists.
  int failed = link(temporary.c_str(), path.c_str());
  int error = errno;
  unlink(temporary.c_str());
  if (failed == 0) return absl::OkStatus();
  absl::StatusOr<std::string> existing = ReadFile(path);
  if (existing.ok() && *existing == value) return absl::OkStatus();
  return ErrnoStatus(error, absl::StrCat("cannot put ", name));
}

absl::StatusOr<std::string> FolderStore::Get(absl::string_view name, absl::Duration timeout) {
  absl::Time deadline = absl::Now() + timeout;
  while (true) {
    absl::StatusOr<std::string> value = ReadFile(PathOf(name));
    if (value.ok() || !absl::IsNotFound(value.status())) return value;
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(name, " was not written within ", absl::FormatDuration(timeout)));
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace trainyard
