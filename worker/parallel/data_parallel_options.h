// How data parallelism is carried out. The fields follow from the keys of `parallel` and `train.precision` in a job
// file, except copies_initial_values, events, ledger, stream_waits and clock.
#pragma once

#include <cstdint>
#include <optional>

#include "common/clock.h"
#include "common/defaults.h"
#include "worker/numerics/precision.h"
#include "worker/parallel/offload.h"
#include "worker/parallel/sharding.h"

namespace trainyard {

class EventLog;
class Ledger;
class StreamWaits;

struct DataParallelOptions {
  Strategy strategy = Strategy::kDdp;
  // None: everything has the model's type. Otherwise the model is given in the type of the masters, and computes in
  // `param` from then on.
  std::optional<Precision> precision = {};
  int64_t bucket_elements = defaults::kBucketElements;  // a bucket is closed once it holds this number
  bool overlap = true;                    // communicate during computation; the numbers are the same either way
  bool reduce_scatter = true;             // zero1: false reduces by all-reduce, which gives the numbers of ddp
  bool reduce_every_micro_batch = false;  // reduce sharded gradients after each micro-batch, so none stay whole
  bool reshard_after_forward = true;      // sharded parameters: gather them again for backward
  int64_t prefetch_elements = -1;         // this limit and the next two: as in pass_plan.h
  int64_t reuse_elements = 0;
  int64_t max_live_elements = defaults::kMaxLiveElements;
  int64_t persist_elements = 0;  // sharded parameters: those with fewer elements stay whole on every rank
  int64_t gather_bucket_elements = defaults::kBucketElements;  // of updated parameters, gathered at a time
  bool all_gather = true;  // false: each owner broadcasts its part of the updated parameters
  // False: the caller loads all parameters before the first pass, so those of rank 0 need not be copied to the others.
  bool copies_initial_values = true;
  Offload offload = {};
  EventLog* events = nullptr;               // records what was done when; may be null; not owned
  Ledger* ledger = nullptr;                 // accounts for memory; may be null; not owned
  StreamWaits* stream_waits = nullptr;      // measures the waits of the device; may be null; not owned
  Clock* clock = &Clock::GetSteadyClock();  // measures StepOutput::exposed_comm_s; not owned
};

}  // namespace trainyard
