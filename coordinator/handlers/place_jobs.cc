#include "coordinator/handlers/place_jobs.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/plural.h"
#include "coordinator/core/desired.h"
#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/advance_job.h"
#include "coordinator/handlers/avoid_hosts.h"
#include "coordinator/handlers/begin_generation.h"
#include "coordinator/handlers/log_readers.h"
#include "coordinator/handlers/preempt_jobs.h"
#include "coordinator/handlers/queue_facts.h"
#include "coordinator/handlers/queue_totals.h"
#include "coordinator/handlers/slots.h"
#include "coordinator/policy/device.h"
#include "coordinator/policy/placement.h"
#include "coordinator/policy/queue.h"
#include "coordinator/policy/queue_quota.h"
#include "coordinator/policy/rank_assignment.h"
#include "coordinator/policy/saves.h"
#include "spec/device_rules.h"

namespace trainyard {
namespace {

constexpr size_t kJobsNamed = 3;
constexpr size_t kDeviceReasonBytes = 512;
constexpr char kThreadsKey[] = "resources.threads_per_rank";
constexpr char kSharedMemoryKey[] = "network.shared_memory";

v1::ResolvedKey& DecisionOf(Job& job, absl::string_view key) {
  for (v1::ResolvedKey& known : *job.head().mutable_decisions()) {
    if (known.key() == key) return known;
  }
  v1::ResolvedKey& added = *job.head().add_decisions();
  added.set_key(std::string(key));
  return added;
}

// These functions add to the job's decisions what depends on the chosen hosts.
void DecideSharedMemory(Job& job) {
  if (job.ranks.size() == 1 || job.head().spec().network().has_shared_memory()) return;
  v1::ResolvedKey& decision = DecisionOf(job, kSharedMemoryKey);
  if (job.ranks_on.size() == 1) {
    decision.set_value("on");
    decision.set_reason(
        absl::StrCat("all ", Plural(job.ranks.size(), "rank"), " are on ", job.ranks_on.begin()->first.value()));
    return;
  }
  // The value is not "on", because a job that sets "on" is rejected unless all its ranks are on one host.
  const bool any_may_share = job.ranks_on.size() < job.ranks.size();
  decision.set_value(any_may_share ? "auto" : "off");
  decision.set_reason(absl::StrCat(any_may_share ? "used between ranks on one host; " : "", "the ranks are on ",
                                   Plural(job.ranks_on.size(), "host")));
}

void DecideThreads(const State& state, Job& job) {
  if (job.head().spec().resources().has_threads_per_rank()) return;
  const auto& [name, ranks] = *job.ranks_on.begin();
  const Host& host = state.hosts.at(name);
  uint32_t threads = ThreadsPerRank(job, host, static_cast<uint32_t>(ranks.size()));
  v1::ResolvedKey& decision = DecisionOf(job, kThreadsKey);
  decision.set_value(absl::StrCat(threads));
  decision.set_reason(absl::StrCat(Plural(host.inventory.cores(), "core"), " of ", name.value(), " for ",
                                   Plural(ranks.size(), "rank"),
                                   job.ranks_on.size() > 1 ? "; other hosts decide likewise" : ""));
}

// Returns the other jobs on the host that may compute on its GPUs.
std::string OtherJobsOnGpus(const State& state, const Host& host, const Job& job) {
  std::string others;
  size_t count = 0;
  for (const JobId& id : host.jobs) {
    const Job& other = state.jobs.at(id);
    if (id == job.id || (DeviceOf(other) != v1::DEVICE_CUDA && !ChoosesDeviceItself(other))) continue;
    if (++count <= kJobsNamed) absl::StrAppend(&others, count == 1 ? "job " : ", job ", id.value());
  }
  if (!host.strays.empty() || !host.held.empty() || !host.unknown.empty())
    absl::StrAppend(&others, count == 0 ? "" : ", ", "trainers of other generations or of unknown jobs");
  if (count > kJobsNamed) absl::StrAppend(&others, " and ", Plural(count - kJobsNamed, "more job"));
  return others;
}

// Chooses the device once the ranks have their hosts.
void ChooseDevice(const State& state, Job& job) {
  const v1::JobSpec& spec = job.head().spec();
  if (spec.resources().has_device()) return;
  DeviceFacts facts{.needs_bfloat16 = NeedsBfloat16(spec), .hosts = {}};
  for (const auto& [name, ranks] : job.ranks_on) {
    const Host& host = state.hosts.at(name);
    DeviceHost& known = facts.hosts.emplace_back();
    known.name = name;
    known.ranks = static_cast<uint32_t>(ranks.size());
    known.gpus = static_cast<uint32_t>(host.inventory.gpus_size());
    known.gpu_note = host.inventory.gpu_note();
    known.cuda_note = host.inventory.cuda_note();
    known.other_jobs = OtherJobsOnGpus(state, host, job);
    const auto& gpus = host.inventory.gpus();
    const auto weakest = std::min_element(gpus.begin(), gpus.end(), [](const v1::Gpu& a, const v1::Gpu& b) {
      return a.compute_major() < b.compute_major();
    });
    if (weakest != gpus.end()) known.compute_major = weakest->compute_major();
  }
  const DeviceDecision decision = DecideDevice(facts);
  v1::ResolvedKey& device = DecisionOf(job, kDeviceKey);
  device.set_value(decision.cuda ? kCudaValue : "cpu");
  device.set_reason(CutText(decision.reason, kDeviceReasonBytes));
}

// A rank chooses its GPU by its number among the job's ranks on the host, so two jobs choose the same ones. This cannot
// happen to a job without resources.device (DecideDevice).
void WarnOfSharedGpus(Turn& turn, Job& job) {
  const v1::JobSpec& spec = job.head().spec();
  if (spec.has_command() || spec.resources().device() != v1::DEVICE_CUDA) return;
  std::vector<std::string> shared;
  for (const auto& [name, ranks] : job.ranks_on) {
    const std::string others = OtherJobsOnGpus(turn.state, turn.state.hosts.at(name), job);
    if (!others.empty()) shared.push_back(absl::StrCat(name.value(), " (", others, ")"));
  }
  if (shared.empty()) return;
  turn.Notice(job, NoticeLevel::kWarning,
              absl::StrCat("may share GPUs with other jobs, even if other GPUs are free, on ",
                           JoinFirst(shared, kJobsNamed), ": the first rank on a host uses GPU 0, the second GPU 1"));
}

void Place(Turn& turn, Job& job, const QueueOutcome& outcome) {
  const bool again = job.head().generation() > 0 || job.record.past_generation() > 0;
  BeginGeneration(turn, job, AssignRanks(*outcome.start, HostsOfRanks(job), RankGroup(job)));
  ChooseDevice(turn.state, job);
  WarnOfSharedGpus(turn, job);
  if (!job.head().spec().has_command()) {
    DecideThreads(turn.state, job);
    DecideSharedMemory(job);
  }
  std::string reason = absl::StrCat("generation ", job.head().generation(), ": ", outcome.reason);
  uint64_t step = job.record.restored_step();
  step = NewestResumeStep(job.head(), job.record.grants()).value_or(step);
  if (again && step > 0) absl::StrAppend(&reason, ", from step ", step);
  job.head().clear_preempted_by();
  turn.Decide(job, DecisionRule::kPlacement, NoticeLevel::kInfo, reason);
  turn.Move(job, LifecycleEvent::kPlaced, std::move(reason));
  turn.PushAll(job);
  MoveLogsOfJob(turn, job);
}

// At most this many waiting jobs get a new reason in one pass; the jobs behind them keep their old reasons.
constexpr size_t kReasons = 100;

}  // namespace

uint32_t RanksIfStartedAgain(const Turn& turn, const Job& job) {
  std::vector<HostSlots> hosts = AllHosts(turn.state);
  for (HostSlots& host : hosts) {
    const auto own = job.ranks_on.find(host.name);
    if (own == job.ranks_on.end()) continue;
    FreeRanks(host, static_cast<uint32_t>(own->second.size()), job.head().spec().command().cpus());
    host.free_cores = std::min(host.cores, host.free_cores);
  }
  WaitingJob waiting = MakeWaitingJob(turn, job, hosts);
  waiting.continues = true;
  const std::map<std::string, PoolUse> use = CountUse(turn.state);
  waiting.placement.ranks = DecideQuota(turn.state.options.queue, use.at(waiting.pool), waiting).ranks;
  return RanksThatFit(waiting.placement);
}

bool AnyWaitingJobCouldFit(const Turn& turn) {
  if (turn.state.queue.empty()) return false;
  const std::vector<HostSlots> hosts = AllHosts(turn.state);
  std::map<std::string, PoolUse> use = CountUse(turn.state);
  return std::any_of(turn.state.queue.begin(), turn.state.queue.end(), [&](uint64_t index) {
    const WaitingJob waiting = MakeWaitingJob(turn, turn.state.jobs.at(turn.state.by_submission.at(index)), hosts);
    return CouldFit(waiting.placement) && DecideQuota(turn.state.options.queue, use[waiting.pool], waiting).ranks > 0;
  });
}

bool FitsWithout(absl::Time now, const State& state, const Job& job, const std::vector<std::string>& without) {
  std::vector<HostSlots> hosts = AllHosts(state);
  PlacementFacts facts = MakePlacementFacts(now, job, hosts);
  facts.avoided = AvoidedNow(now, job, /*with_last_resorts=*/true);
  facts.excluded.insert(without.begin(), without.end());
  facts.one_version = false;
  return CouldFit(facts);
}

void PlaceJobs(Turn& turn, const std::set<uint64_t>& submit_indexes) {
  const State& state = turn.state;
  std::set<uint64_t> indexes = submit_indexes;
  std::erase_if(indexes, [&](uint64_t index) { return !state.queue.contains(index); });
  if (indexes.empty()) return;
  // Every pass includes the overdue and the preempting jobs, so that slots are kept for them.
  indexes.insert(state.overdue.begin(), state.overdue.end());
  indexes.insert(state.preempting.begin(), state.preempting.end());
  const bool is_partial = indexes.size() < state.queue.size();
  QueueView view = MakeQueueView(turn, indexes);
  view.facts.reasons = kReasons;
  for (QueueOutcome& outcome : DecideQueue(view.facts)) {
    const WaitingJob& waiting = view.facts.waiting[outcome.waiting];
    Job& job = turn.state.jobs.at(waiting.id);
    if (outcome.start.has_value()) {
      // The slots that were kept or reserved for the job, and that it does not use, are free for the other jobs.
      const bool was_reserved = state.overdue.contains(waiting.index) || waiting.is_preempting;
      if (KeepsSlots(job) || (is_partial && was_reserved)) turn.ScheduleAll();
      Place(turn, job, outcome);
      continue;
    }
    // A job that waits for a delay to end keeps its reason, which names the failure that caused the delay.
    if (outcome.cause != WaitCause::kDelay && !outcome.reason.empty() && job.head().reason() != outcome.reason) {
      turn.SetReason(job, outcome.reason);
    }
    if (!outcome.preempt.empty()) PreemptJobs(turn, job, outcome.preempt);
    ForgetVictims(turn, job);
  }
}

}  // namespace trainyard
