// Key-value stores for tests that create groups without a daemon: one for threads of a process, one for processes that
// share a folder. Both implement KeyValueStore completely, including its waits.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/key_value_store.h"

namespace trainyard {

class MemoryStore final : public KeyValueStore {
 public:
  absl::Status Put(absl::string_view name, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view name, absl::Duration timeout) override;

  // Ends all waits, and every later call, with Aborted.
  void EndGeneration();

 private:
  absl::Mutex mu_;
  std::map<std::string, std::string, std::less<>> values_ ABSL_GUARDED_BY(mu_);
  bool has_ended_ ABSL_GUARDED_BY(mu_) = false;
};

// Each value is a file that is created atomically. A wait checks every millisecond.
class FolderStore final : public KeyValueStore {
 public:
  explicit FolderStore(std::string folder) : folder_(std::move(folder)) {}
  absl::Status Put(absl::string_view name, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view name, absl::Duration timeout) override;

 private:
  std::string PathOf(absl::string_view name) const;
  const std::string folder_;
};

}  // namespace trainyard
