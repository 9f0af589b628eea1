// Packs the records of a batch of turns into commits of the store, which accepts a limited number of entries each. A
// commit holds whole turns in their order, so that a crash between two commits leaves a state that the core had. A turn
// that is too large is split between its groups (Record::group), and a group that is too large is split anywhere; the
// loader (records.h) ignores a group whose last commit was not written. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "coordinator/core/effect.h"
#include "coordinator/store/store.h"

namespace trainyard {

// If a commit has several records with one key, the last one counts.
std::vector<std::vector<StoreEntry>> MakeCommits(std::vector<std::vector<Record>> turns,
                                                 size_t max_entries = Store::kEntriesMax);

}  // namespace trainyard
