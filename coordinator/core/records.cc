#include "coordinator/core/records.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "coordinator/policy/lifecycle.h"

namespace trainyard {
namespace {

constexpr char kHostPrefix[] = "host/";
constexpr char kJobPrefix[] = "job/";
constexpr char kToldPrefix[] = "told/";
constexpr char kRankPrefix[] = "rank/";

absl::Status Unreadable(absl::string_view key) {
  return absl::DataLossError(absl::StrCat("record ", key, " of the store cannot be read; restore the state folder "
                                          "from a copy, or start with an empty one"));
}

absl::Status LoadRankPart(const std::string& key, const std::string& value, State& state) {
  std::vector<std::string> parts = absl::StrSplit(key, '/');
  uint64_t generation = 0;
  v1::RankPart part;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[2], &generation) || !part.ParseFromString(value)) {
    return Unreadable(key);
  }
  auto it = state.jobs.find(JobId(parts[1]));
  // Left by a commit whose second half was lost; the job's record does not know it, so it does not count.
  if (it == state.jobs.end() || it->second.head().generation() != generation) return absl::OkStatus();
  for (const v1::RankRecord& record : part.ranks()) {
    if (record.rank() >= it->second.ranks.size()) return Unreadable(key);
    Rank& rank = it->second.ranks[record.rank()];
    rank.record = record;
    rank.phase = record.has_exit() ? "ended" : record.ready() ? "ready" : record.registered() ? "joining" : "starting";
  }
  return absl::OkStatus();
}

absl::Status IndexJob(Job& job, absl::Time now, State& state) {
  for (const Rank& rank : job.ranks) {
    if (rank.record.host().empty()) return Unreadable(JobKey(job.id));
  }
  IndexRanks(job);
  v1::JobState at = job.state();
  state.by_submission[job.record.submit_index()] = job.id;
  state.next_submit_index = std::max(state.next_submit_index, job.record.submit_index() + 1);
  job.last_sequence = job.record.sequence_limit();
  job.progress_at = now;
  if (at == v1::JOB_STATE_QUEUED) state.queue.insert(job.record.submit_index());
  if (IsFinal(at)) state.finished.push_back(job.id);
  if (!HasTrainers(at)) return absl::OkStatus();

  state.active.insert(job.id);
  bool formed = std::all_of(job.ranks.begin(), job.ranks.end(), [](const Rank& rank) { return rank.record.ready(); });
  job.store.sealed = formed;
  // A stop that was asked for while steps were made is asked for again; any other end goes on as an end.
  job.stop = at == v1::JOB_STATE_STOPPING && formed && job.record.cancelled();
  job.nothing_desired = at == v1::JOB_STATE_RECOVERING || (at == v1::JOB_STATE_STOPPING && !job.stop);
  for (const auto& [name, ranks] : job.ranks_on) {
    Host& host = state.hosts[name];
    host.name = name;
    host.jobs.insert(job.id);
    for (uint32_t rank : ranks) {
      if (!job.ranks[rank].exited()) job.unconfirmed.insert(name);
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string RankPartKey(const JobId& job, uint64_t generation, uint32_t part) {
  return absl::StrCat(kRankPrefix, job.value(), "/", generation, "/", part);
}
std::string JobKey(const JobId& job) { return absl::StrCat(kJobPrefix, job.value()); }
std::string ToldKey(const JobId& job) { return absl::StrCat(kToldPrefix, job.value()); }

Record RankPartRecord(const Job& job, uint32_t part) {
  v1::RankPart message;
  size_t end = std::min<size_t>(job.ranks.size(), size_t{part + 1} * kRanksPerPart);
  for (size_t rank = size_t{part} * kRanksPerPart; rank < end; ++rank) *message.add_ranks() = job.ranks[rank].record;
  return {RankPartKey(job.id, job.head().generation(), part), message.SerializeAsString()};
}

Record MakeJobRecord(const Job& job) { return {JobKey(job.id), job.record.SerializeAsString()}; }
Record MakeToldRecord(const Job& job) { return {ToldKey(job.id), job.told.SerializeAsString()}; }
Record MakeHostRecord(const Host& host) {
  return {absl::StrCat(kHostPrefix, host.name.value()), host.record.SerializeAsString()};
}

void IndexRanks(Job& job) {
  job.ranks_on.clear();
  for (const Rank& rank : job.ranks) job.ranks_on[rank.host()].push_back(rank.record.rank());
  for (const auto& [host, ranks] : job.ranks_on) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      job.ranks[ranks[i]].local_rank = static_cast<uint32_t>(i);
      job.ranks[ranks[i]].local_world_size = static_cast<uint32_t>(ranks.size());
    }
  }
}

absl::Status LoadState(const std::vector<std::pair<std::string, std::string>>& records, absl::Time now, State& state) {
  for (const auto& [key, value] : records) {
    absl::string_view rest = key;
    if (absl::ConsumePrefix(&rest, kJobPrefix)) {
      Job job;
      job.id = JobId(rest);
      if (!job.record.ParseFromString(value)) return Unreadable(key);
      if (job.record.rank_count() > 1'000'000) return Unreadable(key);
      job.ranks.resize(job.record.rank_count());
      state.jobs.emplace(job.id, std::move(job));
    } else if (absl::ConsumePrefix(&rest, kHostPrefix)) {
      Host& host = state.hosts[HostName(rest)];
      host.name = HostName(rest);
      if (!host.record.ParseFromString(value)) return Unreadable(key);
    }
  }
  for (const auto& [key, value] : records) {
    absl::string_view rest = key;
    if (absl::StartsWith(key, kRankPrefix)) {
      RETURN_IF_ERROR(LoadRankPart(key, value, state));
    } else if (absl::ConsumePrefix(&rest, kToldPrefix)) {
      auto it = state.jobs.find(JobId(rest));
      if (it != state.jobs.end() && !it->second.told.ParseFromString(value)) return Unreadable(key);
    }
  }
  for (auto& [id, job] : state.jobs) RETURN_IF_ERROR(IndexJob(job, now, state));
  std::sort(state.finished.begin(), state.finished.end(), [&](const JobId& a, const JobId& b) {
    return state.jobs.at(a).head().finished_unix_ms() < state.jobs.at(b).head().finished_unix_ms();
  });
  for (auto& [name, host] : state.hosts) {
    host.last_heard = now;
    host.reachable = true;  // until its lease, counted from now, has run out
    if (host.record.incarnation() != 0) state.incarnations[host.incarnation()] = name;
  }
  return absl::OkStatus();
}

}  // namespace trainyard
