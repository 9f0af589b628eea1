#include "coordinator/core/records.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "coordinator/policy/goodput.h"
#include "coordinator/policy/lifecycle.h"
#include "coordinator/policy/recovery.h"

namespace trainyard {
namespace {

constexpr char kHostPrefix[] = "host/";
constexpr char kJobPrefix[] = "job/";
constexpr char kPublishedPrefix[] = "told/";  // the name that existing stores have
constexpr char kRankPrefix[] = "rank/";
constexpr char kEventPrefix[] = "event/";
constexpr char kReportPrefix[] = "reports/";
constexpr char kForgottenPrefix[] = "forgotten/";

absl::Status Unreadable(absl::string_view key) {
  return absl::DataLossError(
      absl::StrCat("record ", key,
                   " of the store cannot be read; stop the coordinator and restore "
                   "the state folder from a copy (store.db.bak is a copy from the last clean stop), "
                   "or start with an empty one"));
}

absl::Status LoadRankPart(const std::string& key, const std::string& value, State& state) {
  std::vector<std::string> parts = absl::StrSplit(key, '/');
  uint64_t generation = 0;
  v1::RankPart part;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[2], &generation) || !part.ParseFromString(value)) {
    return Unreadable(key);
  }
  auto it = state.jobs.find(JobId(parts[1]));
  // This part was left by a commit whose second half was lost: the job's record does not name this generation, so the
  // part is ignored.
  if (it == state.jobs.end() || it->second.head().generation() != generation) {
    state.orphans.push_back(key);
    return absl::OkStatus();
  }
  for (const v1::RankRecord& record : part.ranks()) {
    if (record.rank() >= it->second.ranks.size()) return Unreadable(key);
    Rank& rank = it->second.ranks[record.rank()];
    rank.record = record;
    rank.phase = record.has_exit()     ? Phase::kEnded
                 : record.ready()      ? Phase::kReady
                 : record.registered() ? Phase::kJoining
                                       : Phase::kStarting;
  }
  return absl::OkStatus();
}

absl::Status LoadEvent(const std::string& key, const std::string& value, State& state) {
  std::vector<absl::string_view> parts = absl::StrSplit(key, '/');
  uint64_t sequence = 0;
  auto event = std::make_shared<v1::Event>();
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[2], &sequence) || sequence == 0 || !event->ParseFromString(value) ||
      event->sequence() != sequence) {
    return Unreadable(key);
  }
  if (parts[1].empty()) {
    state.cluster_sequence = std::max(state.cluster_sequence, sequence);
    for (uint64_t dropped : state.cluster.AddDurable(std::move(event))) {
      state.orphans.push_back(EventKey(JobId(), dropped));
    }
    return absl::OkStatus();
  }
  auto it = state.jobs.find(JobId(parts[1]));
  if (it == state.jobs.end() || sequence > it->second.record.event_sequence()) {
    state.orphans.push_back(key);
    // The sequence number is not used again: deleting this record would delete an event that reused its key.
    if (it != state.jobs.end()) it->second.last_sequence = std::max(it->second.last_sequence, sequence);
    return absl::OkStatus();
  }
  Job& job = it->second;
  const std::vector<uint64_t> dropped = job.history.AddDurable(std::move(event));
  for (uint64_t one : dropped) state.orphans.push_back(EventKey(job.id, one));
  CountDeleted(job, dropped);
  return absl::OkStatus();
}

// Loads a job that was removed from the history; the number in the key is the order of removal.
absl::Status LoadForgotten(absl::string_view number, const std::string& key, const std::string& id, State& state) {
  uint64_t index = 0;
  if (!absl::SimpleAtoi(number, &index)) return Unreadable(key);
  state.forgotten[index] = JobId(id);
  state.forgotten_ids.insert(JobId(id));
  return absl::OkStatus();
}

// An earlier version dropped events without counting them. A job's first event, its acceptance, has sequence 1.
void CountDroppedEvents(Job& job) {
  const auto& kept = job.history.durable();
  const bool cut = kept.empty() ? job.record.event_sequence() > 0 : kept.front()->sequence() > 1;
  if (cut && job.record.events_dropped() == 0) job.record.set_events_dropped(1);
  // That version did not record which events it dropped, either. The first kDurableEventsFirst events are dropped last,
  // so the dropped events were probably between these first ones and the next retained event.
  if (job.record.events_dropped() == 0 || job.record.deleted_sequence() != 0 || kept.empty()) return;
  const size_t first = std::min(limits::kDurableEventsFirst, kept.size() - 1);
  job.record.set_deleted_sequence(kept[first]->sequence() - 1);
}

// Reports keep their sequence numbers, so that they stay before the events that were published after them.
absl::Status LoadReports(const std::string& key, const std::string& value, State& state) {
  std::vector<absl::string_view> parts = absl::StrSplit(key, '/');
  uint64_t part = 0;
  v1::ReportPart message;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[2], &part) || !message.ParseFromString(value)) {
    return Unreadable(key);
  }
  auto it = state.jobs.find(JobId(parts[1]));
  if (it == state.jobs.end()) {
    state.orphans.push_back(key);
    return absl::OkStatus();
  }
  Job& job = it->second;
  job.stored_parts.insert(part);
  for (v1::Event& event : *message.mutable_events()) {
    uint64_t& newest = event.has_step() ? job.reported_step : job.reported_eval;
    uint64_t number = event.has_step() ? event.step().step() : event.eval().step();
    if (number <= newest || event.sequence() <= job.stored_sequence) continue;
    newest = number;
    job.stored_sequence = event.sequence();
    job.history.AddReport(std::make_shared<const v1::Event>(std::move(event)));
  }
  job.last_sequence = std::max(job.last_sequence, job.stored_sequence);
  return absl::OkStatus();
}

// Sets what the queue needs to know of an unfinished job.
void IndexQueue(Job& job, absl::Time now, State& state) {
  ++state.unfinished[job.namespace_name()];
  // An earlier version did not record `admitted`.
  if (HasTrainers(job.state())) job.record.set_admitted(true);
  const int64_t spared_ms = job.record.spared_until_unix_ms();
  if (spared_ms > 0) job.spared_until = std::min(now + kMaxSpareTime, absl::FromUnixMillis(spared_ms));
  if (job.state() != v1::JOB_STATE_QUEUED) {
    job.record.clear_preempting();  // after its ranks end, a job that recovers enters the queue and may preempt again
    return;
  }
  const int64_t since_ms =
      job.head().queued_unix_ms() > 0 ? job.head().queued_unix_ms() : job.head().submitted_unix_ms();
  EnterQueue(state, job, std::min(now, absl::FromUnixMillis(since_ms)));
  if (job.record.preempting_size() > 0) state.preempting.insert(job.record.submit_index());
}

absl::Status IndexJob(Job& job, absl::Time now, State& state) {
  for (const Rank& rank : job.ranks) {
    if (rank.record.host().empty()) return Unreadable(JobKey(job.id));
  }
  IndexRanks(job);
  const v1::JobState job_state = job.state();
  state.by_submission[job.record.submit_index()] = job.id;
  state.next_submit_index = std::max(state.next_submit_index, job.record.submit_index() + 1);
  job.current.progress_at = now;
  if (job.state() == v1::JOB_STATE_RUNNING) job.current.running_since = now;
  for (const v1::AvoidedHost& avoided : job.record.avoided()) {
    // How long a host is avoided is not recorded; a shorter time costs at most one more try.
    job.avoid_until[HostName(avoided.host())] = avoided.lasts() ? absl::InfiniteFuture() : now + kMinAvoidTime;
  }
  state.durable_bytes += job.history.durable_bytes();
  CountDroppedEvents(job);
  job.longest_s = job.record.longest_s();
  job.loaded_generation = job.head().generation();
  job.head().set_unreachable(false);  // as far as this coordinator knows
  if (IsFinal(job_state)) state.finished.push_back(job.id);
  if (IsFinal(job_state)) return absl::OkStatus();
  v1::GoodputRecord& ledger = *job.record.mutable_goodput();
  if (job_state == v1::JOB_STATE_RUNNING) {
    CountRecordedStep(job.published.step_unix_ms(), job.world_size(), ledger);
  }
  if (job.published.step_unix_ms() != 0) {
    job.published.clear_step_unix_ms();  // it is a time of the earlier coordinator's clock
    job.published_changed = true;
  }
  FollowWallClock(ledger);
  IndexQueue(job, now, state);
  for (const auto& [name, ranks] : job.ranks_on) {
    // A host that was forgotten after its ranks ended stays forgotten.
    bool has_live_rank =
        std::any_of(ranks.begin(), ranks.end(), [&](uint32_t rank) { return !job.ranks[rank].ended(); });
    if (!has_live_rank && !state.hosts.contains(name)) continue;
    Host& host = state.hosts[name];
    host.name = name;
    host.jobs.insert(job.id);
  }
  if (!HasTrainers(job_state)) return absl::OkStatus();

  state.active.insert(job.id);
  bool formed = std::all_of(job.ranks.begin(), job.ranks.end(), [](const Rank& rank) { return rank.record.ready(); });
  job.current.store.sealed = formed;
  // A stop that was requested while the group trained is requested again, so that the group can save; otherwise the
  // trainers of a STOPPING job are ended. Those of a command are ended in any case: they make no step to stop at.
  bool requested = job.record.cancelled() || job.record.ending() != v1::JobRecord::ENDING_UNSPECIFIED;
  job.current.stop = job_state == v1::JOB_STATE_STOPPING && formed && requested && !job.record.has_failure() &&
                     !job.head().spec().has_command();
  // A stop of this generation was undone. Its ranks may carry it out after all.
  job.current.stop_overdue = job_state == v1::JOB_STATE_RUNNING && job.record.stop_requests() > 0;
  job.current.nothing_desired =
      job_state == v1::JOB_STATE_RECOVERING || (job_state == v1::JOB_STATE_STOPPING && !job.current.stop);
  for (const Rank& rank : job.ranks) {
    if (!rank.ended()) job.current.unconfirmed.insert(rank.host());
  }
  return absl::OkStatus();
}

}  // namespace

std::string RankPartKey(const JobId& job, uint64_t generation, uint32_t part) {
  return absl::StrCat(kRankPrefix, job.value(), "/", generation, "/", part);
}
std::string JobKey(const JobId& job) { return absl::StrCat(kJobPrefix, job.value()); }
std::string PublishedKey(const JobId& job) { return absl::StrCat(kPublishedPrefix, job.value()); }

// Serializes a v1::RankPart without making one: this runs for every fact, and copying the ranks would take most of the
// time.
Record RankPartRecord(const Job& job, uint32_t part) {
  namespace pb = google::protobuf;
  constexpr uint32_t kTag = pb::internal::WireFormatLite::MakeTag(
      v1::RankPart::kRanksFieldNumber, pb::internal::WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  std::string value;
  size_t end = std::min<size_t>(job.ranks.size(), size_t{part + 1} * kRanksPerPart);
  {
    pb::io::StringOutputStream out(&value);
    pb::io::CodedOutputStream coded(&out);
    for (size_t rank = size_t{part} * kRanksPerPart; rank < end; ++rank) {
      const v1::RankRecord& record = job.ranks[rank].record;
      coded.WriteVarint32(kTag);
      coded.WriteVarint32(static_cast<uint32_t>(record.ByteSizeLong()));
      record.SerializeWithCachedSizes(&coded);
    }
  }
  return {RankPartKey(job.id, job.head().generation(), part), std::move(value)};
}

Record MakeJobRecord(Job& job) {
  job.record.set_longest_s(job.longest_s);
  return {JobKey(job.id), job.record.SerializeAsString()};
}
Record MakePublishedRecord(const Job& job) { return {PublishedKey(job.id), job.published.SerializeAsString()}; }

std::string ReportPartKey(const JobId& job, uint64_t part) {
  return absl::StrCat(kReportPrefix, job.value(), "/", absl::Dec(part, absl::kZeroPad20));
}
std::string EventKey(const JobId& job, uint64_t sequence) {
  // Padded to a fixed width, so that the order of keys is the order of events.
  return absl::StrCat(kEventPrefix, job.value(), "/", absl::Dec(sequence, absl::kZeroPad20));
}

std::optional<uint64_t> ReportPartOf(const v1::Event& event) {
  if (event.has_step()) return event.step().step() / kStepsPerReportPart;
  if (event.has_eval()) return event.eval().step() / kStepsPerReportPart;
  return std::nullopt;
}

Record MakeReportPart(const Job& job, uint64_t part) {
  v1::ReportPart message;
  for (const EventPtr& event : job.history.reports()) {
    if (ReportPartOf(*event) == part) *message.add_events() = *event;
  }
  return {ReportPartKey(job.id, part), message.SerializeAsString()};
}

std::string ForgottenKey(uint64_t number) {
  return absl::StrCat(kForgottenPrefix, absl::Dec(number, absl::kZeroPad20));
}

std::string HostKey(const HostName& host) { return absl::StrCat(kHostPrefix, host.value()); }

Record MakeHostRecord(const Host& host) { return {HostKey(host.name), host.record.SerializeAsString()}; }

void CountDeleted(Job& job, const std::vector<uint64_t>& sequences) {
  job.record.set_events_dropped(job.record.events_dropped() + sequences.size());
  for (uint64_t sequence : sequences) {
    job.record.set_deleted_sequence(std::max(job.record.deleted_sequence(), sequence));
  }
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
      if (job.record.rank_count() > 1'000'000) return Unreadable(key);  // no job has so many ranks
      job.ranks.resize(job.record.rank_count());
      job.last_sequence = job.record.sequence_limit();
      state.jobs.emplace(job.id, std::move(job));
    } else if (absl::ConsumePrefix(&rest, kHostPrefix)) {
      Host& host = state.hosts[HostName(rest)];
      host.name = HostName(rest);
      if (!host.record.ParseFromString(value)) return Unreadable(key);
    } else if (absl::ConsumePrefix(&rest, kForgottenPrefix)) {
      RETURN_IF_ERROR(LoadForgotten(rest, key, value, state));
    }
  }
  for (const auto& [key, value] : records) {
    absl::string_view rest = key;
    if (absl::StartsWith(key, kRankPrefix)) {
      RETURN_IF_ERROR(LoadRankPart(key, value, state));
    } else if (absl::ConsumePrefix(&rest, kPublishedPrefix)) {
      auto it = state.jobs.find(JobId(rest));
      if (it != state.jobs.end() && !it->second.published.ParseFromString(value)) return Unreadable(key);
      if (it == state.jobs.end()) state.orphans.push_back(key);
    } else if (absl::StartsWith(key, kEventPrefix)) {
      RETURN_IF_ERROR(LoadEvent(key, value, state));
    } else if (absl::StartsWith(key, kReportPrefix)) {
      RETURN_IF_ERROR(LoadReports(key, value, state));
    }
  }
  for (auto& [id, job] : state.jobs) RETURN_IF_ERROR(IndexJob(job, now, state));
  std::sort(state.finished.begin(), state.finished.end(), [&](const JobId& a, const JobId& b) {
    return state.jobs.at(a).head().finished_unix_ms() < state.jobs.at(b).head().finished_unix_ms();
  });
  for (auto& [name, host] : state.hosts) {
    host.last_contact = now;
    host.applied_fact = host.record.acked_fact();
    host.reachable = true;  // until its lease, counted from now, has expired
    if (host.record.incarnation() != 0) state.incarnations[host.incarnation()] = name;
  }
  return absl::OkStatus();
}

}  // namespace trainyard
