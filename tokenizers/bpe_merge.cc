// Merging the symbols of a word.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "tokenizers/bpe.h"

namespace trainyard {
namespace {

constexpr uint32_t kNoRank = UINT32_MAX;
// Up to this number of symbols, finding the lowest rank in an array is faster than using a heap.
constexpr size_t kFewSymbols = 64;

}  // namespace

void Bpe::EncodeSymbols(absl::Span<int32_t> symbols, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (symbols.size() <= kFewSymbols) return MergeFew(symbols, ids);
  MergeMany(symbols, scratch, ids);
}

void Bpe::MergeFew(absl::Span<int32_t> symbols, std::vector<int32_t>& ids) const {
  std::array<uint32_t, kFewSymbols> ranks;
  std::array<int32_t, kFewSymbols> made;
  size_t count = symbols.size();
  const auto look_up = [&](size_t at) {
    const auto found = merges_.find(Pair(symbols[at], symbols[at + 1]));
    ranks[at] = found == merges_.end() ? kNoRank : found->second.rank;
    if (found != merges_.end()) made[at] = found->second.made;
  };
  for (size_t at = 0; at + 1 < count; ++at) look_up(at);
  while (count > 1) {
    const size_t at = std::min_element(ranks.begin(), ranks.begin() + (count - 1)) - ranks.begin();
    if (ranks[at] == kNoRank) break;
    symbols[at] = made[at];
    const size_t after = count - at - 2;  // symbols after the pair
    std::memmove(&symbols[at] + 1, &symbols[at] + 2, after * sizeof(int32_t));
    std::memmove(ranks.data() + at, ranks.data() + at + 1, after * sizeof(uint32_t));
    std::memmove(made.data() + at, made.data() + at + 1, after * sizeof(int32_t));
    --count;
    if (at > 0) look_up(at - 1);
    if (at + 1 < count) look_up(at);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.begin() + count);
}

void Bpe::MergeMany(absl::Span<int32_t> symbols, Scratch& scratch, std::vector<int32_t>& ids) const {
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<int32_t>&previous = scratch.previous, &next = scratch.next, &made = scratch.made;
  std::vector<uint32_t>& ranks = scratch.ranks;  // of the pair that begins at each symbol
  std::vector<uint64_t>& heap = scratch.heap;    // rank << 32 | position; entries whose rank has changed are stale
  previous.resize(count);
  next.resize(count);
  made.resize(count);
  ranks.assign(count, kNoRank);
  heap.clear();
  const auto look_up = [&](int32_t at) {
    const auto found = merges_.find(Pair(symbols[at], symbols[next[at]]));
    ranks[at] = found == merges_.end() ? kNoRank : found->second.rank;
    if (found == merges_.end()) return false;
    made[at] = found->second.made;
    heap.push_back(static_cast<uint64_t>(ranks[at]) << 32 | static_cast<uint32_t>(at));
    return true;
  };
  for (int32_t at = 0; at < count; ++at) {
    previous[at] = at - 1;
    next[at] = at + 1;
    if (at + 1 < count) look_up(at);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto at = static_cast<int32_t>(heap.back() & UINT32_MAX);
    const auto rank = static_cast<uint32_t>(heap.back() >> 32);
    heap.pop_back();
    if (ranks[at] != rank) continue;
    const int32_t gone = next[at];
    symbols[at] = made[at];
    ranks[gone] = ranks[at] = kNoRank;
    next[at] = next[gone];
    if (next[at] < count) {
      previous[next[at]] = at;
      if (look_up(at)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
    if (previous[at] >= 0 && look_up(previous[at])) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  }
  for (int32_t at = 0; at < count; at = next[at]) ids.push_back(symbols[at]);
}

}  // namespace trainyard
