#include "worker/trainer/rank.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "models/head_loss_limits.h"
#include "models/lora_targets.h"
#include "worker/collectives/device_communicator.h"
#include "worker/data/data_check.h"
#include "worker/mesh/mesh.h"
#include "worker/model/model_factory.h"
#include "worker/numerics/loss_scaler.h"
#include "worker/numerics/precision.h"
#include "worker/parallel/parallelize.h"
#include "worker/saving/sentences.h"
#include "worker/saving/state.h"
#include "worker/trainer/initial_weights.h"
#include "worker/trainer/other_data.h"
#include "worker/trainer/rank_strategy.h"
#include "worker/trainer/restore.h"
#include "worker/trainer/run_folder.h"

namespace trainyard {
namespace {

// How long to wait for another job that is about to leave the run folder (trainctl run --resume). An earlier generation
// of the same job is not waited for.
constexpr absl::Duration kFolderWait = absl::Seconds(10);

// The slowest rank may still be reading its checkpoint, its initial weights or its data while the others wait for it.
// Tokenization has the same limit (kReadingLimit).
constexpr absl::Duration kReadyLimit = absl::Hours(12);

// The name of the value by which rank 0 reports to the other ranks that it joins them.
constexpr char kRankZeroJoins[] = "rank-0-joins";

// Whether ranks on one host may exchange data through shared memory. All ranks decide identically, because the
// coordinator sets the number of ranks per host, which is constant for a generation.
absl::StatusOr<bool> MayUseSharedMemory(const StartOrder& order) {
  using Switch = TrainConfig::Switch;
  if (order.config.shared_memory == Switch::kOn && order.local_world_size != order.world_size) {
    return absl::FailedPreconditionError(absl::StrCat(
        "network.shared_memory is on, but ", order.local_world_size, " of ", order.world_size, " ranks are on host ",
        order.host, "; choose auto, or resources.hosts with a host that has enough free slots"));
  }
  return order.config.shared_memory != Switch::kOff;
}

// Rank 0 may verify a large partial checkpoint before it joins (AcquireFolder), which may take longer than the members
// of a group wait for each other.
absl::Status AwaitRankZero(const StartOrder& order, Link& link) {
  if (order.world_size == 1) return absl::OkStatus();
  if (order.rank == 0) return link.Put(kRankZeroJoins, "1");
  RETURN_IF_ERROR(link.Get(kRankZeroJoins, kReadyLimit)) << "while waiting for rank 0 to join";
  return absl::OkStatus();
}

std::vector<CommunicatorProgress> ProgressOf(AbortSwitch& abort_switch) {
  std::vector<CommunicatorProgress> all;
  for (NamedProgress& each : abort_switch.Progress()) {
    all.push_back({.name = std::move(each.name),
                   .started = each.progress.num_started,
                   .completed = each.progress.num_completed,
                   .waits_in = std::move(each.progress.waits_in),
                   .last_started = std::move(each.progress.last_started)});
  }
  return all;
}

absl::Status Join(const StartOrder& order, Link& link, Rank& rank) {
  link.ReportProgress(Phase::kJoining, 0);
  ASSIGN_OR_RETURN(bool shared_memory, MayUseSharedMemory(order));
  ASSIGN_OR_RETURN(Mesh mesh, MeshOf(order));
  RETURN_IF_ERROR(AwaitRankZero(order, link));
  GroupOptions options{.world_size = order.world_size, .rank = order.rank, .store = &link, .host = order.host};
  if (!order.data_address.empty()) options.address = order.data_address;
  options.shared_memory = shared_memory;
  options.device = GroupDeviceOf(rank.device, &link, options.timeout);
  ASSIGN_OR_RETURN(rank.groups, JoinMesh(mesh, order.config.parallel.reshard_to, options));
  for (const auto& group : rank.groups->owned) rank.abort_switch->Attach(group->name(), group.get());
  ASSIGN_OR_RETURN(rank.channels, JoinPipeline(mesh, /*wraps=*/order.config.parallel.chunks_per_rank > 1, options));
  for (const auto& channel : rank.channels.owned) rank.abort_switch->Attach(channel.get());
  if (order.config.parallel.tensor > 1) {
    rank.tensor_group = std::make_unique<CommunicatorTensorGroup>(*rank.groups->tensor, Clock::GetSteadyClock());
  }
  link.OnAbort([abort_switch = rank.abort_switch](const std::string& reason) { abort_switch->Abort(reason); });
  link.PollCommunicators([abort_switch = rank.abort_switch] { return ProgressOf(*abort_switch); });
  return absl::OkStatus();
}

// All data were there when the job began. So if a host cannot open them at a restart, the job is not refused: it
// resumes on another host, or on this one when they are back, for example because their file system is mounted again.
absl::Status OpenDataOfHost(const StartOrder& order, RankData& inputs, std::ostream& log) {
  absl::Status opened = OpenData(order, inputs, log);
  const bool is_refusal =
      absl::IsInvalidArgument(opened) || absl::IsNotFound(opened) || absl::IsPermissionDenied(opened);
  if (!is_refusal || !order.restart_step.has_value()) return opened;
  return CheckpointMissing(std::move(opened));
}

// Reads the content of the files if the user resumed the run, or if nothing proves that they are unchanged since the
// checkpoint was made. With checkpoint.allow_data_change, reads the content only if the sizes of the files differ. With
// train.data.uneven: join, a restart may place rank 0 on a host that has other files than the host before.
absl::Status CheckData(const StartOrder& order, const ManifestData& before, const Corpus& corpus, std::ostream& log) {
  if (before.content_hash.empty()) return absl::OkStatus();
  const bool is_user_resume = order.resume && order.generation == 1;
  const bool sizes_match = DataSizesMatch(before, corpus.files());
  const bool is_known =
      !is_user_resume && DataIsRecorded(order.config.checkpoint_dir, before.content_hash, corpus.identity());
  if (sizes_match && (is_known || order.config.allow_data_change)) return absl::OkStatus();
  absl::Status same = CheckSameData(before, corpus.files(), corpus.Fingerprint());
  const bool joins = order.config.data.joins_uneven && !is_user_resume;
  if (same.ok() || !(order.config.allow_data_change || joins)) return same;
  log << "warning: " << same.message() << "; "
      << (order.config.allow_data_change ? "checkpoint.allow_data_change is true" : "train.data.uneven is join")
      << ", so the job continues" << std::endl;
  return absl::OkStatus();
}

// On rank 0: what the data of the hosts are compared with.
DataOfCheckpoint DataOf(const StartOrder& order, const Checkpoint* checkpoint) {
  if (checkpoint == nullptr) return {};
  const std::string& hash = checkpoint->manifest().data.content_hash;
  return {.content_hash = hash, .host = RecordedHost(order.config.checkpoint_dir, hash)};
}

// Collective, at a restart, before the data is tokenized. If rank 0 has other data than the checkpoint that it has
// chosen, all ranks compare theirs, because the data may be wrong on some hosts only. On the other ranks `chosen` is
// null. With train.data.uneven: join, hosts may have other data, if it has enough samples (ContinueOrder).
absl::Status CompareDataOfHosts(const StartOrder& order, const Checkpoint* chosen, Link& link, Rank& rank,
                                std::ostream& log) {
  const bool allows_other_data = order.config.allow_data_change || order.config.data.joins_uneven;
  if (!order.restart_step.has_value() || allows_other_data) return absl::OkStatus();
  link.ReportProgress(Phase::kLoad, 0);  // rank 0 may read all data, for which joining would have too little time
  const Corpus& corpus = *rank.inputs.train.corpus;
  absl::Status own;
  if (chosen != nullptr) {
    own = CheckData(order, chosen->manifest().data, corpus, log);
    if (!own.ok()) own = absl::Status(own.code(), absl::StrCat(own.message(), "; ", chosen->path()));
  }
  RETURN_IF_ERROR(rank.world().MonitoredBarrier(kReadyLimit)) << "while rank 0 compares its data with the checkpoint";
  // An empty sentence is not returned.
  ASSIGN_OR_RETURN(const std::vector<std::string> differences, ShareSentences(own.message(), rank.world()),
                   << "while comparing the data with the checkpoint");
  link.ReportProgress(Phase::kJoining, 0);
  if (differences.empty()) return absl::OkStatus();
  if (own.ok()) own = absl::AbortedError(absl::StrCat("rank 0 cannot resume: ", differences[0]));
  const auto content_hash = [&corpus] { return corpus.Fingerprint().content_hash; };
  return RefuseDataOrHosts(order, rank.inputs.checkpoint, content_hash, rank.world(), &link, std::move(own));
}

// Checks that this job computes what the job of the checkpoint computed. `changes` gets the keys that differ. All ranks
// get the same result.
absl::Status CompareSpec(const StartOrder& order, const Checkpoint& checkpoint, std::vector<KeyChange>& changes) {
  const Manifest& manifest = checkpoint.manifest();
  changes.clear();
  if (order.compare_spec == nullptr || manifest.spec.empty() || manifest.spec == order.spec_bytes) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(changes, order.compare_spec(manifest.spec), << checkpoint.path());
  return absl::OkStatus();
}

// On rank 0: checks, without reading any tensor, whether this job may resume from the checkpoint.
absl::Status CheckSameComputation(const StartOrder& order, const Checkpoint& checkpoint, const Corpus& corpus,
                                  std::vector<KeyChange>& changes, std::ostream& log) {
  const Manifest& manifest = checkpoint.manifest();
  if (manifest.spec.empty() && order.compare_spec != nullptr) {
    log << checkpoint.path() << " does not say which job made it: only the shapes of its tensors are compared"
        << std::endl;
  }
  RETURN_IF_ERROR(CompareSpec(order, checkpoint, changes));
  RETURN_IF_ERROR(CheckData(order, manifest.data, corpus, log)) << checkpoint.path();
  return absl::OkStatus();
}

// Restores the number of updates, and the loss scale of the checkpoint if both jobs adjust their scales. A static scale
// is the one that the job has now, because the user may have lowered it after gradients overflowed. After a static
// scale, which no overflow has adjusted, a dynamic one begins at train.loss_scale.initial.
void RestoreNumbers(const StartOrder& order, const Checkpoint& checkpoint, ParallelState& state) {
  std::vector<KeyChange> changes;
  // Rank 0 has refused the job if this fails.
  const bool is_comparable = CompareSpec(order, checkpoint, changes).ok();
  const bool was_static = is_comparable && std::any_of(changes.begin(), changes.end(), [](const KeyChange& change) {
                            return change.key == "train.loss_scale.static" && change.before == "true";
                          });
  const bool restores = !order.config.loss_scale.is_static && !was_static;
  RestoreCounters(checkpoint.manifest(), restores, state);
  if (restores) state.set_loss_scale(FitLossScale(state.loss_scale(), LossScalingOf(order.config)));
}

// `announced` unset: training begins from scratch. `choosing_time`: the time spent on choosing the checkpoint.
absl::Status Restore(const StartOrder& order, RestorePoint chosen, const std::optional<AnnouncedCheckpoint>& announced,
                     absl::Duration choosing_time, Link& link, Rank& rank, std::ostream& log) {
  for (const std::string& note : chosen.notes) log << note << std::endl;
  if (!announced.has_value()) return absl::OkStatus();
  const absl::Time began = Clock::GetSteadyClock().TimeNow();
  std::vector<KeyChange> changes;
  auto load = [&](const Checkpoint& checkpoint) -> absl::Status {
    if (order.rank == 0) {
      RETURN_IF_ERROR(CheckSameComputation(order, checkpoint, *rank.inputs.train.corpus, changes, log));
    }
    return LoadTensors(checkpoint, rank.strategy->state());
  };
  ASSIGN_OR_RETURN(RestorePoint point, LoadRestorePoint(order, std::move(chosen), *announced, rank.world(), load));
  const absl::Duration restore_time = choosing_time + (Clock::GetSteadyClock().TimeNow() - began);
  const Manifest& manifest = point.checkpoint->manifest();
  RETURN_IF_ERROR(ContinueOrder(order, manifest.data.samples, rank.inputs, log)) << point.checkpoint->path();
  RestoreNumbers(order, *point.checkpoint, rank.strategy->state());
  rank.restored_step = manifest.step;
  rank.restored_samples = manifest.data.consumed_samples;
  rank.restored_content_hash = manifest.data.content_hash;
  if (manifest.evaluation.has_value()) {
    rank.restored_evaluation = {
        .step = manifest.step, .evaluation = *manifest.evaluation, .of_this_job = manifest.job_id == order.job_id};
  }
  if (order.rank != 0) return absl::OkStatus();
  for (const std::string& sentence : point.passed_over) log << sentence << std::endl;
  for (const KeyChange& change : changes) {
    log << "since the checkpoint was made, " << change.key << " has changed: " << change.before << " -> " << change.now
        << std::endl;
  }
  log << absl::StrFormat("resumes after step %d from %s, read in %.3f s", manifest.step, point.checkpoint->path(),
                         absl::ToDoubleSeconds(restore_time))
      << std::endl;
  link.ReportFact(RestoredFact{.step = manifest.step,
                               .path = point.checkpoint->path(),
                               .manifest_hash = std::string(point.checkpoint->manifest_hash()),
                               .passed_over = std::move(point.passed_over),
                               .changes = std::move(changes)});
  return absl::OkStatus();
}

// For rank 0: locks the folder and chooses the checkpoint. Nothing of another job is changed before every check has
// passed (RunFolder::Claim). Adds the time spent on choosing the checkpoint to `choosing_time`.
absl::StatusOr<RestorePoint> AcquireFolder(const StartOrder& order, FileSystem& file_system, Rank& rank,
                                           absl::Duration& choosing_time) {
  RETURN_IF_ERROR(CheckMayResume(order));
  const bool owned_before = order.restart_step.has_value();
  auto folder = RunFolder::Acquire({.folder = order.config.checkpoint_dir,
                                    .job_id = order.job_id,
                                    .generation = order.generation,
                                    .wait = kFolderWait,
                                    .owned_before = owned_before});
  // This host does not see the folder, may not use it, or fails to read it (an I/O error); another host may.
  const bool depends_on_host = absl::IsNotFound(folder.status()) || absl::IsPermissionDenied(folder.status()) ||
                               absl::IsUnknown(folder.status());
  if (owned_before && depends_on_host) return CheckpointMissing(folder.status());
  ASSIGN_OR_RETURN(rank.folder, std::move(folder));
  const absl::Time began = Clock::GetSteadyClock().TimeNow();
  const LockedFolder locked{.settled = rank.folder->settled(), .claimed = rank.folder->claimed()};
  ASSIGN_OR_RETURN(RestorePoint point, ChooseRestorePoint(order, locked, file_system));
  choosing_time += Clock::GetSteadyClock().TimeNow() - began;
  if (point.checkpoint != nullptr) {
    // Compares before the other ranks see the checkpoint, because naming the differing key helps more than errors about
    // shapes on the other ranks.
    std::vector<KeyChange> changes;
    RETURN_IF_ERROR(CompareSpec(order, *point.checkpoint, changes));
  }
  if (rank.folder->claimed()) {
    RETURN_IF_ERROR(rank.folder->MarkSettled());
  }
  return point;
}

void LogModel(const StartOrder& order, const Mesh& mesh, const RankDevice& device, std::ostream& log) {
  const TrainConfig& config = order.config;
  log << absl::StrFormat("model: %s, %d layers, %d heads, width %d, context %d: %d parameters in %s",
                         FamilyName(config.model.family), config.model.layers, config.model.heads, config.model.width,
                         config.model.context, CountParameters(config.model),
                         PrecisionOf(config).value_or(Precision{}).ToString())
      << std::endl;
  if (config.model.lora.rank > 0) {
    const uint64_t adapters = CountAdapterParameters(config.model);
    log << absl::StrFormat("adapters: rank %d on %s; %d of the parameters (%.2f %%) are trained",
                           config.model.lora.rank, absl::StrJoin(config.model.lora.targets, ", "), adapters,
                           100.0 * static_cast<double>(adapters) / static_cast<double>(CountParameters(config.model)))
        << std::endl;
  }
  if (device.cuda != nullptr) {
    log << absl::StrFormat("device: GPU %d, %s, %.1f GB", device.gpu.index, device.gpu.name,
                           static_cast<double>(device.gpu.memory_bytes) / 1e9)
        << std::endl;
  }
  log << absl::StrFormat("batch: %d sequences a step in micro-batches of %d, dealt to %d data ranks: %d tokens a step",
                         config.batch_global, config.batch_micro, mesh.num_data_ranks(),
                         config.batch_global * SampleLength(config))
      << std::endl;
  log << "parallel: " << config.parallel.strategy << ", " << mesh.ToString() << std::endl;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const TrainConfig& config, bool backed) {
  // The parameters have the type of the masters, because checkpoints contain the masters.
  ASSIGN_OR_RETURN(at::ScalarType master, TypeFromName(config.precision.master), << "train.precision.master");
  return NewModel(config.model, config.seed, master, backed);
}

absl::StatusOr<std::unique_ptr<Rank>> PrepareRank(const StartOrder& order, Link& link, FileSystem& file_system,
                                                  std::ostream& log, Ledger* ledger, const SizesOfSpec& sizes_of_spec) {
  auto rank = std::make_unique<Rank>();
  rank->ledger = ledger;
  ASSIGN_OR_RETURN(rank->device, ChooseDevice(order));
  ASSIGN_OR_RETURN(const Precision precision, PrecisionOf(order.config), << "train.precision");
  RETURN_IF_ERROR(CheckPrecision(rank->device, precision));
  for (const std::string& reason : WhySlow(order, rank->device)) log << "warning: " << reason << std::endl;
  RETURN_IF_ERROR(OpenDataOfHost(order, rank->inputs, log));
  RestorePoint point;
  Clock& clock = Clock::GetSteadyClock();
  absl::Duration choosing_time;
  if (order.rank == 0) {
    // Settling a partial reads all of it, which may take long. The coordinator limits the time of the phase joining,
    // but not that of the phase load (coordinator/handlers/tick.cc).
    link.ReportProgress(Phase::kLoad, 0);
    ASSIGN_OR_RETURN(point, AcquireFolder(order, file_system, *rank, choosing_time));
    rank->inputs.checkpoint = DataOf(order, point.checkpoint.get());
  }
  // A job that cannot be trained is refused here, because after this the rank waits for the others.
  ASSIGN_OR_RETURN(rank->model, MakePart(order, rank->device, /*tensor_group=*/nullptr));
  RETURN_IF_ERROR(CheckOffload(order, *rank->model));
  RETURN_IF_ERROR(Join(order, link, *rank));
  if (rank->tensor_group != nullptr) {
    ASSIGN_OR_RETURN(rank->model, MakePart(order, rank->device, rank->tensor_group.get()));
  }
  RETURN_IF_ERROR(CompareDataOfHosts(order, point.checkpoint.get(), link, *rank, log));
  RETURN_IF_ERROR(TokenizeData(order, {.link = &link}, rank->world(), rank->inputs, log));
  RETURN_IF_ERROR(AgreeOnData(order, rank->world(), link, rank->inputs, log));
  link.ReportProgress(Phase::kLoad, 0);
  const absl::Time agreement_began = clock.TimeNow();
  ASSIGN_OR_RETURN(std::optional<AnnouncedCheckpoint> announced, AgreeOnRestorePoint(order, point, rank->world()));
  choosing_time += clock.TimeNow() - agreement_began;
  if (order.rank == 0) {
    ASSIGN_OR_RETURN(Mesh mesh, MeshOf(order));
    LogModel(order, mesh, rank->device, log);
  }
  const absl::Time weights_began = clock.TimeNow();
  std::unique_ptr<ForeignWeights> weights;
  if (!announced.has_value()) {
    ASSIGN_OR_RETURN(weights, PrepareInitialWeights(order, sizes_of_spec, rank->world(), *rank->model));
  }
  const absl::Duration opening_time = clock.TimeNow() - weights_began;
  RETURN_IF_ERROR(MakeParallel(order, /*loads_state=*/weights != nullptr || announced.has_value(), *rank));
  if (weights != nullptr) {
    const absl::Time loading_began = clock.TimeNow();
    RETURN_IF_ERROR(LoadInitialWeights(*weights, *rank->model, rank->strategy->state())) << "train.model.init_from";
    if (order.rank == 0) {
      log << absl::StrFormat("begins with the weights of %s, read in %.3f s", order.config.init_from,
                             absl::ToDoubleSeconds(opening_time + (clock.TimeNow() - loading_began)))
          << std::endl;
    }
  }
  RETURN_IF_ERROR(Restore(order, std::move(point), announced, choosing_time, link, *rank, log));
  RETURN_IF_ERROR(rank->world().MonitoredBarrier(kReadyLimit)) << "before the first step";
  if (order.rank == 0) {
    ASSIGN_OR_RETURN(std::vector<std::string> notes, ClaimRunFolder(order, *rank->folder, file_system));
    for (const std::string& note : notes) log << note << std::endl;
  }
  for (const auto& group : rank->groups->owned) {
    RETURN_IF_ERROR(WarmUp(*group)) << "while warming up the " << group->name();
    if (rank->device.device.is_cpu()) continue;
    RETURN_IF_ERROR(WarmUpOn(*group, rank->device.device)) << "while warming up the " << group->name() << " on the GPU";
  }
  return rank;
}

}  // namespace trainyard
