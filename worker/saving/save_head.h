// What a checkpoint says beside its tensors: the step, the run and the place in the data.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/manifest.h"
#include "worker/data/corpus.h"
#include "worker/link/config.h"
#include "worker/parallel/data_parallel.h"

namespace trainyard {

// Where a run stands in its data.
struct DataPosition {
  uint64_t consumed_samples = 0;
  uint64_t samples_per_epoch = 1;
};

// All but what the parts tell and what the data are, as it is at this very step: on the loop's thread.
Manifest MakeSaveHead(const StartOrder& order, const DataParallel& strategy, uint64_t step,
                      const DataPosition& position);

// Adds what the data are. Called by the commit thread: reading all of them takes long where there is much. So a job
// that was started again by itself hears only here that files have changed which kept their sizes: returns a warning
// where the content is not what it was in the checkpoint that was restored (empty: none was), else nothing.
std::string DescribeData(const Corpus& corpus, const std::string& restored_content_hash, ManifestData& data);

}  // namespace trainyard
