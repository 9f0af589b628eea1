// Everything that one rank needs to train, in the order of its creation: data, run folder, groups, model, strategy,
// state. All reasons to refuse the job are checked here, before the first step.
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
#include "worker/diagnostics/event_log.h"
#include "worker/link/config.h"
#include "worker/link/link.h"
#include "worker/model/model.h"
#include "worker/parallel/data_parallel.h"
#include "worker/parallel/deal.h"
#include "worker/trainer/device.h"
#include "worker/trainer/evaluation_policy.h"
#include "worker/trainer/rank_data.h"
#include "worker/trainer/run_folder.h"

namespace trainyard {

// Members are destroyed from last to first: each uses only those above it.
struct Rank {
  ~Rank() { abort_switch->Detach(); }

  // the link's callback may outlive this object
  std::shared_ptr<AbortSwitch> abort_switch = std::make_shared<AbortSwitch>();
  RankDevice device;
  std::unique_ptr<RunFolder> folder;  // rank 0
  RankData inputs;
  std::unique_ptr<MeshGroups> groups;
  std::unique_ptr<Model> model;
  std::unique_ptr<EventLog> events;  // null: not requested
  std::unique_ptr<DataParallel> strategy;
  Deal deal;             // of a step
  Deal evaluation_deal;  // of an evaluation
  Ledger* ledger = nullptr;

  Communicator& world() { return *groups->world; }
  Communicator& data() { return *groups->data; }

  uint64_t restored_step = 0;     // 0: from the beginning
  uint64_t restored_samples = 0;  // consumed up to that step
  std::string restored_content_hash;
  std::optional<EvaluationPolicy::Restored> restored_evaluation;
};

// `log` gets a few lines on rank 0; `ledger`, if not null, accounts for all memory (not owned). Possible errors: those
// of a refusal (InvalidArgument, NotFound, PermissionDenied, FailedPrecondition, DataLoss, Unimplemented,
// ResourceExhausted), each naming key or path; those of a Collective.
absl::StatusOr<std::unique_ptr<Rank>> PrepareRank(const StartOrder& order, Link& link, FileSystem& file_system,
                                                  std::ostream& log, Ledger* ledger = nullptr);

// Returns the model of the configuration, with weights drawn from its seed. Also used for sampling.
absl::StatusOr<std::unique_ptr<Model>> MakeModel(const TrainConfig& config, bool backed = true);

}  // namespace trainyard
