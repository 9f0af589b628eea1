// The coordinator's disk: commits are written immediately but become durable only by a sync. After a crash, some of the
// commits in progress are durable: the first ones, each of them completely.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "coordinator/store/store.h"
#include "tests/sim/engine.h"

namespace trainyard::sim {

class StoreModel final : public Store {
 public:
  absl::StatusOr<Snapshot> Load(absl::string_view prefix) override {
    Snapshot snapshot{.revision = revision_, .records = {}};
    for (const auto& [key, value] : durable_) {
      if (absl::StartsWith(key, prefix)) snapshot.records.emplace_back(key, value);
    }
    return snapshot;
  }

  absl::StatusOr<uint64_t> Commit(const std::vector<StoreEntry>& entries, uint64_t expected_revision) override {
    if (absl::Status status = CheckEntries(entries); !status.ok()) return status;
    if (expected_revision != revision_ + pending_.size()) return absl::AbortedError("another process has written");
    if (full) return absl::ResourceExhaustedError("no space left on the simulated disk");
    pending_.push_back(entries);
    return expected_revision + 1;
  }

  bool has_pending_commits() const { return !pending_.empty(); }
  void Sync() { MakeDurable(pending_.size()); }
  void Crash(Random& random) {
    MakeDurable(random.Below(pending_.size() + 1));
    pending_.clear();
  }

  const std::map<std::string, std::string>& durable() const { return durable_; }

  bool full = false;
  // If not empty: values under keys with this prefix are lost when they should become durable [a planted bug,
  // see mutation.h].
  std::string lost_prefix;

 private:
  void MakeDurable(size_t commits) {
    for (; commits > 0; --commits) {
      for (StoreEntry& entry : pending_.front()) {
        if (!entry.value.has_value()) {
          durable_.erase(entry.key);
        } else if (lost_prefix.empty() || !absl::StartsWith(entry.key, lost_prefix)) {
          durable_[entry.key] = *std::move(entry.value);
        }
      }
      pending_.pop_front();
      ++revision_;
    }
  }

  std::map<std::string, std::string> durable_;
  std::deque<std::vector<StoreEntry>> pending_;
  uint64_t revision_ = 0;
};

}  // namespace trainyard::sim
