#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "coordinator/store/store.h"

namespace trainyard {
namespace {

class MemoryStore final : public Store {
 public:
  absl::StatusOr<Snapshot> Load(absl::string_view prefix) override {
    Snapshot snapshot{.revision = revision_, .records = {}};
    for (auto it = records_.lower_bound(std::string(prefix)); it != records_.end(); ++it) {
      if (!absl::StartsWith(it->first, prefix)) break;
      snapshot.records.emplace_back(it->first, it->second);
    }
    return snapshot;
  }

  absl::StatusOr<uint64_t> Commit(const std::vector<StoreEntry>& entries, uint64_t expected_revision) override {
    RETURN_IF_ERROR(CheckEntries(entries));
    if (expected_revision != revision_) {
      return absl::AbortedError(absl::StrCat("the store is at revision ", revision_, ", expected ", expected_revision));
    }
    for (const StoreEntry& entry : entries) {
      if (entry.value.has_value()) {
        records_[entry.key] = *entry.value;
      } else {
        records_.erase(entry.key);
      }
    }
    return ++revision_;
  }

 private:
  std::map<std::string, std::string> records_;
  uint64_t revision_ = 0;
};

}  // namespace

absl::Status CheckEntries(const std::vector<StoreEntry>& entries) {
  if (entries.size() > Store::kEntriesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a commit of ", entries.size(), " entries; the limit is ", Store::kEntriesMax));
  }
  for (const StoreEntry& entry : entries) {
    size_t bytes = entry.key.size() + (entry.value.has_value() ? entry.value->size() : 0);
    if (bytes > Store::kEntryBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("entry ", entry.key, " has ", bytes, " bytes; the limit is ", Store::kEntryBytesMax));
    }
  }
  return absl::OkStatus();
}

std::unique_ptr<Store> NewMemoryStore() { return std::make_unique<MemoryStore>(); }

}  // namespace trainyard
