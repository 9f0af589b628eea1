// The saver's memory for copies: decides, identically on all ranks, which copies there is memory for.
#include <ATen/ops/zeros.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "worker/parallel/offload.h"
#include "worker/saving/saver.h"

namespace trainyard {

// The sizes of what this rank saves.
struct Saver::StateBytes {
  uint64_t all = 0;     // including gathered tensors
  uint64_t own = 0;     // the ranges that this rank writes
  uint64_t copied = 0;  // the part of `own` on the CPU; a save reserves no memory here for state on a device
};

absl::StatusOr<Saver::StateBytes> Saver::MeasureState() {
  StateBytes bytes;
  RETURN_IF_ERROR(deps_.state.VisitOwn([&](const StateEntry&, int64_t, const at::Tensor& values) {
    const uint64_t bytes_of_values = AlignedInSnapshot(static_cast<uint64_t>(values.nbytes()));
    bytes.own += bytes_of_values;
    if (values.is_cpu()) bytes.copied += bytes_of_values;
    return absl::OkStatus();
  }));
  bytes.all = bytes.own;
  if (deps_.order.rank == 0) bytes.all += static_cast<uint64_t>(GatheredBytes(deps_.state, WantedFiles()));
  return bytes;
}

SnapshotPlace Saver::Place() const {
  return {.folder = deps_.order.snapshot_folder,
          .job_id = deps_.order.job_id,
          .generation = deps_.order.generation,
          .rank = static_cast<uint64_t>(deps_.order.rank)};
}

absl::StatusOr<int> Saver::CountRanks(bool lacks) {
  at::Tensor count = at::zeros({1}, at::kDouble);
  *count.mutable_data_ptr<double>() = lacks ? 1 : 0;
  RETURN_IF_ERROR(deps_.world.AllReduceSum(count)->Wait()) << "while preparing to save";
  return static_cast<int>(*count.const_data_ptr<double>());
}

SaveMemoryPlan Saver::PlanFor(const StateBytes& state) const {
  return PlanSaveMemory({.bytes = state.all,
                         .local_ranks = deps_.order.local_world_size,
                         .available_bytes = AvailableHostBytes(),
                         .folder_bytes = FreeBytesOf(deps_.order.snapshot_folder)});
}

absl::Status Saver::AgreeOnCopies(const StateBytes& state, bool has_copy) {
  ASSIGN_OR_RETURN(const int lacking, CountRanks(!has_copy));
  copies_ = lacking == 0;
  if (!copies_ && deps_.order.rank == 0) {
    deps_.log << "warning: on " << Plural(static_cast<uint64_t>(lacking), "rank")
              << " there is not enough memory for a copy of the state that the rank saves (" << state.all
              << " bytes on rank 0), so training waits until each save is written" << std::endl;
  }
  return absl::OkStatus();
}

absl::Status Saver::Prepare() {
  ASSIGN_OR_RETURN(tensors_, deps_.state.PrepareSaves());
  ASSIGN_OR_RETURN(const StateBytes state, MeasureState());
  SaveMemoryPlan plan = PlanFor(state);
  if (config_.checkpoint_every == 0 && !config_.checkpoint_keep_best) {
    // Only a requested save makes a copy. There may be no request, so the memory is not held for the whole job.
    return AgreeOnCopies(state, plan.one_copy);
  }
  if (!plan.shared && !deps_.order.snapshot_folder.empty()) {
    // Removes the snapshots of older generations, so that there may be enough memory for those of this generation.
    RemoveOlderSnapshots(deps_.order.snapshot_folder, deps_.order.job_id, deps_.order.generation);
    plan = PlanFor(state);
  }
  ASSIGN_OR_RETURN(shares_, ShareMemory(state, plan));
  if (!shares_) {
    const bool has_copy = plan.one_copy && thread_.Reserve(state.copied).ok();
    RETURN_IF_ERROR(AgreeOnCopies(state, has_copy));
    if (!copies_) thread_.DropMemory();
  }
  if (deps_.order.rank == 0 && WantedFiles().any()) gathered_.Reserve(GatheredBytes(deps_.state, WantedFiles()));
  held_ = TrackMemory(deps_.ledger, MemoryKind::kSnapshots, static_cast<int64_t>(thread_.reserved_bytes()));
  return absl::OkStatus();
}

// Either all ranks use shared memory or none does, because snapshots of only some ranks are useless.
absl::StatusOr<bool> Saver::ShareMemory(const StateBytes& state, const SaveMemoryPlan& plan) {
  const bool wants_shared =
      !deps_.order.snapshot_folder.empty() && !config_.checkpoint_full && state.copied == state.own;
  std::string why = plan.why_not_shared;
  ASSIGN_OR_RETURN(int lacking, CountRanks(!wants_shared || !plan.shared));
  if (lacking == 0) {
    absl::Status reserved = thread_.ReserveShared(Place(), state.copied);
    why = std::string(reserved.message());
    ASSIGN_OR_RETURN(lacking, CountRanks(!reserved.ok()));
  }
  if (lacking == 0) return true;
  thread_.DropMemory();
  if (!wants_shared || (why.empty() && deps_.order.rank != 0)) return false;
  deps_.log << "warning: copies of saves are not in shared memory, so they do not outlive their trainers; "
               "saves to disk continue: "
            << (why.empty() ? absl::StrCat("there is not enough shared memory on ",
                                           Plural(static_cast<uint64_t>(lacking), "other rank"))
                            : why)
            << std::endl;
  return false;
}

void Saver::DropSnapshots() {
  thread_.DropMemory();
  held_ = TrackedMemory();
}

}  // namespace trainyard
