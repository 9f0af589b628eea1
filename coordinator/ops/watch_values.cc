// WatchValues: all values of a generation, those there are and those to come, until the store is sealed or the
// generation is over. Who may use a store is decided here, for puts too.
#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"

namespace trainyard {

absl::Status CheckStoreAccess(const State& state, const JobId& id, uint64_t generation, Incarnation incarnation) {
  auto it = state.jobs.find(id);
  if (it == state.jobs.end()) return absl::NotFoundError(absl::StrCat("no job ", id.value()));
  const Job& job = it->second;
  if (generation != job.head().generation() || IsFinal(job.state()) || job.nothing_desired) {
    return absl::AbortedError(absl::StrCat("generation ", generation, " of job ", id.value(), " is over; the job is ",
                                           StateName(job.state()), " at generation ", job.head().generation()));
  }
  auto host = state.incarnations.find(incarnation);
  if (host != state.incarnations.end()) {
    if (job.ranks_on.contains(host->second)) return absl::OkStatus();
    return absl::AbortedError(absl::StrCat("job ", id.value(), " has no ranks on host ", host->second.value()));
  }
  for (const auto& [name, ranks] : job.ranks_on) {
    const auto& past = state.hosts.at(name).record.past_incarnations();
    if (std::count(past.begin(), past.end(), incarnation.value()) > 0) {
      return absl::AbortedError(absl::StrCat("a newer daemon runs on host ", name.value(), "; this one is to exit"));
    }
  }
  return absl::UnavailableError("this daemon is not attached; attach first, then try again");
}

void EndValueWatchers(Turn& turn, Job& job, absl::Status status) {
  if (job.store.watchers.empty()) return;
  EndValues end{{}, std::move(status)};
  for (const auto& [watch, incarnation] : job.store.watchers) end.watches.push_back(watch);
  job.store.watchers.clear();
  job.store.watcher_list = nullptr;
  // Nobody follows any more, so nobody need keep what was sent.
  job.store.log = std::make_shared<ValueLog>();
  turn.Emit(std::move(end));
}

void Run(Turn& turn, WatchValues& event) {
  JobId id(event.request.job_id());
  Incarnation incarnation(event.request.host_incarnation());
  if (absl::Status status = CheckStoreAccess(turn.state, id, event.request.generation(), incarnation); !status.ok()) {
    turn.Emit(EndValues{{event.watch}, std::move(status)});
    return;
  }
  Job& job = turn.state.jobs.at(id);
  if (job.store.log->values.size() != job.store.values.size()) {
    job.store.log = std::make_shared<ValueLog>();
    for (const auto& [name, value] : job.store.values) job.store.log->values.push_back(value);
  }
  if (!job.store.values.empty()) {
    turn.Emit(SendValues{job.store.log, std::make_shared<const std::vector<WatchId>>(1, event.watch)});
  }
  if (job.store.sealed) {
    turn.Emit(EndValues{{event.watch}, absl::OkStatus()});
  } else {
    job.store.watchers[event.watch] = incarnation;
    job.store.watcher_list = nullptr;
  }
}

void Run(Turn& turn, WatchValuesClosed& event) {
  auto it = turn.state.jobs.find(event.job);
  if (it == turn.state.jobs.end()) return;
  it->second.store.watchers.erase(event.watch);
  it->second.store.watcher_list = nullptr;
}

}  // namespace trainyard
