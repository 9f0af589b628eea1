// The part of a checkpoint's manifest that is not about tensors: the step, the run and the position in the data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "worker/data/corpus.h"
#include "worker/link/config.h"
#include "worker/parallel/parallel_state.h"

namespace trainyard {

// The position of a run in its data, and what its evaluations have found.
struct RunPosition {
  uint64_t consumed_samples = 0;
  uint64_t samples_per_epoch = 1;
  std::vector<int64_t> samples = {};  // ManifestData::samples
  std::optional<ManifestEvaluation> evaluation = {};
};

// Returns the manifest of `step` without the fields that come from the ranks' parts and without the description of the
// data. Called by the loop's thread.
Manifest MakeSaveHead(const StartOrder& order, const ParallelState& state, uint64_t step, const RunPosition& position);

// Adds the description of the data. Called by the commit thread, because reading all of the data may take long.
// Returns a warning if the content differs from that of the restored checkpoint (`restored_content_hash`, empty if none
// was restored), else an empty string. With checkpoint.allow_data_change, the start of a run compares only the sizes of
// files, so other changes are detected only here.
std::string DescribeData(const Corpus& corpus, const std::string& restored_content_hash, ManifestData& data);

}  // namespace trainyard
