// The coordinator's disk: commits are written immediately but durable only after a sync. A crash keeps a prefix of the
// commits in progress, each of them complete.
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
    if (expected_revision != revision_ + under_way_.size()) return absl::AbortedError("another process has written");
    if (full) return absl::ResourceExhaustedError("no space left on the simulated disk");
    under_way_.push_back(entries);
    return expected_revision + 1;
  }

  bool anything_under_way() const { return !under_way_.empty(); }
  void Sync() { Keep(under_way_.size()); }
  void Crash(Random& random) {
    Keep(random.Below(under_way_.size() + 1));
    under_way_.clear();
  }

  const std::map<std::string, std::string>& durable() const { return durable_; }

  bool full = false;
  std::string lost_key;  // the next value written under this key is lost [a planted bug]

 private:
  void Keep(size_t commits) {
    for (; commits > 0; --commits) {
      for (StoreEntry& entry : under_way_.front()) {
        if (!entry.value.has_value()) {
          durable_.erase(entry.key);
        } else if (lost_key.empty() || !absl::StartsWith(entry.key, lost_key)) {
          durable_[entry.key] = *std::move(entry.value);
        }
      }
      under_way_.pop_front();
      ++revision_;
    }
  }

  std::map<std::string, std::string> durable_;
  std::deque<std::vector<StoreEntry>> under_way_;
  uint64_t revision_ = 0;
};

}  // namespace trainyard::sim
