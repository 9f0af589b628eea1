#include "coordinator/core/commits.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace trainyard {
namespace {

class Packer {
 public:
  explicit Packer(size_t max_entries) : max_entries_(max_entries) {}

  // Adds the records of a turn, all to the same commit if they fit into one.
  void Add(std::vector<Record> records) {
    if (records.size() > max_entries_) return AddSplit(std::move(records));
    // CountNew is an upper bound: it counts a key once for each of its records.
    if (entries_.size() + CountNew(records) > max_entries_) Close();
    for (Record& record : records) Put(std::move(record));
  }

  std::vector<std::vector<StoreEntry>> Finish() {
    Close();
    return std::move(commits_);
  }

 private:
  // Splits between groups of records (Record::group), and inside a group only if the group is too large for one commit.
  void AddSplit(std::vector<Record> records) {
    Close();
    for (size_t begin = 0; begin < records.size();) {
      size_t end = begin + 1;
      while (end < records.size() && records[begin].group != 0 && records[end].group == records[begin].group) ++end;
      if (entries_.size() + (end - begin) > max_entries_) Close();
      for (; begin < end; ++begin) {
        if (entries_.size() == max_entries_) Close();
        Put(std::move(records[begin]));
      }
    }
    Close();
  }

  size_t CountNew(const std::vector<Record>& records) const {
    return static_cast<size_t>(std::count_if(records.begin(), records.end(),
                                             [&](const Record& record) { return !index_.contains(record.key); }));
  }

  void Put(Record record) {
    auto [at, is_new] = index_.emplace(record.key, entries_.size());
    if (is_new) {
      entries_.push_back({std::move(record.key), std::move(record.value)});
    } else {
      entries_[at->second].value = std::move(record.value);
    }
  }

  void Close() {
    if (!entries_.empty()) commits_.push_back(std::exchange(entries_, {}));
    index_.clear();
  }

  const size_t max_entries_;
  std::vector<std::vector<StoreEntry>> commits_;
  std::vector<StoreEntry> entries_;
  absl::flat_hash_map<std::string, size_t> index_;
};

}  // namespace

std::vector<std::vector<StoreEntry>> MakeCommits(std::vector<std::vector<Record>> turns, size_t max_entries) {
  Packer packer(max_entries);
  for (std::vector<Record>& turn : turns) packer.Add(std::move(turn));
  return packer.Finish();
}

}  // namespace trainyard
