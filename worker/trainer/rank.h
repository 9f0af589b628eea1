// Everything that one rank needs to train: data, run folder, groups, model, strategy, state. All reasons to refuse the
// job that can be known before the first step are checked here.
#pragma once

#include <memory>
#include <optional>
#include <ostream>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/file_system.h"
#include "common/files.h"
#include "worker/collectives/abort_switch.h"
#include "worker/collectives/communicator.h"
#include "worker/collectives/group.h"
#include "worker/collectives/pipeline_channels.h"
#include "worker/diagnostics/event_log.h"
#include "worker/link/config.h"
#include "worker/link/link.h"
#include "worker/model/model.h"
#include "worker/parallel/communicator_tensor_group.h"
#include "worker/parallel/data_parallel.h"
#include "worker/parallel/deal.h"
#include "worker/parallel/pipeline_executor.h"
#include "worker/parallel/stream_waits.h"
#include "worker/trainer/device.h"
#include "worker/trainer/evaluation_policy.h"
#include "worker/trainer/rank_data.h"
#include "worker/trainer/run_folder.h"
#include "worker/trainer/sizes_of_spec.h"

namespace trainyard {

// The order of the members matters: each uses only those above it, and is destroyed before them.
struct Rank {
  ~Rank() { abort_switch->Detach(); }

  // Shared with the link's callback, which may outlive this object.
  std::shared_ptr<AbortSwitch> abort_switch = std::make_shared<AbortSwitch>();
  RankDevice device;
  std::shared_ptr<RunFolder> folder;  // rank 0; threads that may hang on its disk refer to it weakly (SaveFence)
  RankData inputs;
  std::unique_ptr<MeshGroups> groups;
  OwnedPipelineChannels channels;
  std::unique_ptr<CommunicatorTensorGroup> tensor_group;  // null: the layers are not divided
  std::unique_ptr<Model> model;                           // this rank's part
  std::unique_ptr<EventLog> events;                       // null: not requested
  std::unique_ptr<StreamWaits> stream_waits;              // of the operations that the strategy waits for
  std::unique_ptr<DataParallel> strategy;
  std::unique_ptr<PipelineExecutor> executor;
  bool reports_losses = false;  // reports the losses of its data rank; true on one tensor rank of the last stage
  Deal deal;                    // of a step
  Deal evaluation_deal;         // of an evaluation
  Ledger* ledger = nullptr;

  Communicator& world() { return *groups->world; }
  // The time for which this rank has waited for the ranks that have other parts of the model.
  double waited_for_model_s() const {
    return executor->waited_s() + (tensor_group == nullptr ? 0 : tensor_group->waited_s());
  }

  uint64_t restored_step = 0;     // 0: from the beginning
  uint64_t restored_samples = 0;  // consumed up to that step
  std::string restored_content_hash;
  std::optional<EvaluationPolicy::Restored> restored_evaluation;
};

// `log` gets a few lines on rank 0; `ledger`, if not null, accounts for all memory (not owned); `sizes_of_spec` is as
// in RunOptions. Possible errors: if the job is refused, InvalidArgument, NotFound, PermissionDenied,
// FailedPrecondition, DataLoss or Unimplemented, with the key or the path in the message; ResourceExhausted: a restart
// may succeed; those of a Collective.
absl::StatusOr<std::unique_ptr<Rank>> PrepareRank(const StartOrder& order, Link& link, FileSystem& file_system,
                                                  std::ostream& log, Ledger* ledger = nullptr,
                                                  const SizesOfSpec& sizes_of_spec = nullptr);

// Returns the whole model of the configuration, for sampling and tests. `backed`: its weights are drawn from the seed;
// otherwise they have no memory yet (worker/model/model.h).
absl::StatusOr<std::unique_ptr<Model>> MakeModel(const TrainConfig& config, bool backed = true);

}  // namespace trainyard
