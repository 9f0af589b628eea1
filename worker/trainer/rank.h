// All that one rank trains with, in the order in which it is made: data, run folder, groups, model, strategy,
// state. Everything that can be refused is refused here, before the first step.
#pragma once

#include <memory>
#include <ostream>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/file_system.h"
#include "common/files.h"
#include "worker/collectives/abort_switch.h"
#include "worker/collectives/communicator.h"
#include "worker/collectives/group.h"
#include "worker/data/batches.h"
#include "worker/data/corpus.h"
#include "worker/diagnostics/event_log.h"
#include "worker/link/config.h"
#include "worker/link/link.h"
#include "worker/model/model.h"
#include "worker/parallel/data_parallel.h"
#include "worker/parallel/deal.h"
#include "worker/trainer/device.h"
#include "worker/trainer/run_folder.h"

namespace trainyard {

// Members are destroyed last to first: each uses only those above it.
struct Rank {
  ~Rank() { abort_switch->Detach(); }

  std::shared_ptr<AbortSwitch> abort_switch = std::make_shared<AbortSwitch>();  // the link's callback may outlive this
  RankDevice device;
  std::unique_ptr<RunFolder> folder;  // rank 0
  std::unique_ptr<Corpus> corpus;
  std::unique_ptr<TrainingData> training;
  std::unique_ptr<EvaluationData> evaluation;  // null: the job never evaluates
  std::unique_ptr<MeshGroups> groups;
  std::unique_ptr<Model> model;
  std::unique_ptr<EventLog> events;  // null: not asked for
  std::unique_ptr<DataParallel> strategy;
  Deal deal;             // of a step
  Deal evaluation_deal;  // of an evaluation
  Ledger* ledger = nullptr;

  Communicator& world() { return *groups->world; }
  Communicator& data() { return *groups->data; }

  uint64_t restored_step = 0;     // 0: from the start
  uint64_t restored_samples = 0;  // consumed up to then
  std::string restored_content_hash;
};

// `log` gets a few lines on rank 0; `ledger`, if there is one, all memory (not owned). Possible errors: those that are
// refused (InvalidArgument, NotFound, PermissionDenied, FailedPrecondition, DataLoss, Unimplemented,
// ResourceExhausted), each naming key or path; those of a Collective.
absl::StatusOr<std::unique_ptr<Rank>> PrepareRank(const StartOrder& order, Link& link, FileSystem& file_system,
                                                  std::ostream& log, Ledger* ledger = nullptr);

// Also for sampling: the model that the configuration describes, with weights drawn from its seed.
absl::StatusOr<std::unique_ptr<Model>> MakeModel(const TrainConfig& config, bool backed = true);

}  // namespace trainyard
