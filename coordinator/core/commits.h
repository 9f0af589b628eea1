// How the records of a batch of turns become commits of the store, which takes so many entries at once: each commit
// holds whole turns, in their order, so that a crash between two leaves a state that was. A turn that is too large for
// one is split between its groups, and a group that is too large anywhere; the loader (records.h) then drops what lacks
// its end. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "coordinator/core/effect.h"
#include "coordinator/store/store.h"

namespace trainyard {

// Of several records with one key in a commit the last one counts.
std::vector<std::vector<StoreEntry>> MakeCommits(std::vector<std::vector<Record>> turns,
                                                 size_t most = Store::kEntriesMax);

}  // namespace trainyard
