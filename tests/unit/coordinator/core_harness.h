// Drives the production core in one thread on a held clock: no socket, no disk. Plays people (submit, watch, cancel),
// the store (records are kept, so that a coordinator can be restarted from them) and daemons (FakeHost). Every
// invariant of the core is checked after each event.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/limits.h"
#include "coordinator/core/commits.h"
#include "coordinator/core/core.h"
#include "coordinator/policy/lifecycle.h"

namespace trainyard {

inline v1::JobSpec MakeSpec(uint32_t ranks, uint32_t max_restarts = 10) {
  v1::JobSpec spec;
  spec.set_name("test-job");
  v1::Train& train = *spec.mutable_train();
  train.mutable_model()->set_layers(1);
  train.mutable_model()->set_heads(1);
  train.mutable_model()->set_width(8);
  train.mutable_model()->set_context(8);
  train.mutable_data()->add_text("/data");
  train.mutable_batch()->set_global(ranks * 2);
  train.set_steps(10);
  spec.mutable_resources()->set_ranks(ranks);
  spec.mutable_resources()->set_device(v1::DEVICE_CPU);
  spec.mutable_recovery()->set_max_restarts(max_restarts);
  return spec;
}

class Harness {
 public:
  explicit Harness(absl::Duration lease = absl::Seconds(3)) : lease_(lease) { Restart(); }

  // A new life of the coordinator on the same records.
  void Restart() {
    std::vector<std::pair<std::string, std::string>> all(records.begin(), records.end());
    CoreOptions options{
        .cluster_id = "cluster", .incarnation = Incarnation(++life_), .lease = lease_, .finished_jobs = 20};
    auto made = Core::New(options, all, now);
    ASSERT_TRUE(made.ok()) << made.status();
    core = *std::move(made);
    crashed = false;
    commits_left = -1;
    desired.clear();
    ended_sessions.clear();
    Take(core->Start(now));
  }

  void Handle(Event event) { Handle(std::move(event), now); }
  void Handle(Event event, CoreTime time) {
    if (crashed) return;
    Take(core->Handle(std::move(event), time));
    absl::Status status = core->Check();
    ASSERT_TRUE(status.ok()) << status;
  }

  // Time passes; sessions in `alive` are heard of all along.
  void Advance(absl::Duration by) {
    const absl::Duration step = absl::Milliseconds(100);
    for (absl::Time end = now + by; now < end;) {
      now += std::min(step, end - now);
      Tick tick;
      for (SessionId session : alive) tick.heard.push_back({session, now});
      Handle(std::move(tick));
    }
  }

  // ---- people ------------------------------------------------------------------------------------------------------

  Reply Submit(const v1::JobSpec& spec, const std::string& job_id, bool resume = false) {
    v1::SubmitRequest request;
    *request.mutable_spec() = spec;
    request.set_job_id(job_id);
    request.set_default_run_root("/runs");
    request.set_resume(resume);
    CallId call(++calls_);
    Handle(SubmitJob{call, request, JobId("fallback0001")});
    return replies[call];
  }
  Reply Cancel(const std::string& job_id) {
    CallId call(++calls_);
    Handle(CancelJob{call, JobId(job_id), "enough"});
    return replies[call];
  }
  Reply RestartAsked(const std::string& job_id, bool at_once = false) {
    CallId call(++calls_);
    RestartJob event{call, {}};
    event.request.set_job_id(job_id);
    event.request.set_now(at_once);
    Handle(std::move(event));
    return replies[call];
  }
  Reply Pause(const std::string& job_id, bool at_once = false) {
    CallId call(++calls_);
    PauseJob event{call, {}};
    event.request.set_job_id(job_id);
    event.request.set_reason("night");
    event.request.set_now(at_once);
    Handle(std::move(event));
    return replies[call];
  }
  Reply Resume(const std::string& job_id, bool from_start = false) {
    CallId call(++calls_);
    ResumeJob event{call, {}};
    event.request.set_job_id(job_id);
    event.request.set_from_start(from_start);
    Handle(std::move(event));
    return replies[call];
  }
  Reply Set(const std::string& host, v1::SetHostRequest::Action action, const std::string& reason = "",
            bool at_once = false) {
    CallId call(++calls_);
    SetHost event{call, {}};
    event.request.set_name(host);
    event.request.set_action(action);
    event.request.set_reason(reason);
    event.request.set_now(at_once);
    Handle(std::move(event));
    return replies[call];
  }
  // The texts of all notices of a job.
  std::vector<std::string> Notices(const std::string& job_id) {
    std::vector<std::string> notices;
    for (const EventPtr& event : WatchFrom(job_id, 0)) {
      if (event->has_notice()) notices.push_back(event->notice().text());
    }
    return notices;
  }
  // The decisions that were told of a job, "rule: text" each.
  std::vector<std::string> Decisions(const std::string& job_id) {
    std::vector<std::string> decisions;
    for (const EventPtr& event : WatchFrom(job_id, 0)) {
      if (event->has_notice() && !event->notice().rule().empty()) {
        decisions.push_back(absl::StrCat(event->notice().rule(), ": ", event->notice().text()));
      }
    }
    return decisions;
  }
  v1::Job Get(const std::string& job_id) {
    CallId call(++calls_);
    Handle(GetJob{call, JobId(job_id)});
    const Reply& reply = replies[call];
    return reply.status.ok() ? std::get<v1::Job>(reply.response) : v1::Job();
  }
  v1::JobState StateOf(const std::string& job_id) { return Get(job_id).state(); }
  // Why a value that a host puts is refused; OK: it is not.
  absl::Status Put(SessionId session, uint64_t generation, const std::string& job, const std::string& name,
                   const std::string& value) {
    HostValuesTold put{session, {}};
    put.put.set_job_id(job);
    put.put.set_generation(generation);
    put.put.add_values()->set_name(name);
    put.put.mutable_values(0)->set_value(value);
    refused.Clear();
    Handle(std::move(put));
    if (refused.refused().empty()) return absl::OkStatus();
    EXPECT_EQ(refused.refused(0).name(), name);
    EXPECT_EQ(refused.generation(), generation);
    return absl::Status(static_cast<absl::StatusCode>(refused.refused(0).code()), refused.refused(0).message());
  }
  // Everything a watcher that asks from `after` on is told now.
  std::vector<EventPtr> WatchFrom(const std::string& job_id, uint64_t after) {
    return WatchFrom(job_id, WatchPosition{.sequence = after});
  }
  std::vector<EventPtr> WatchFrom(const std::string& job_id, WatchPosition after) {
    std::vector<EventPtr> events;
    WatchId watch(++watches_);
    bool first = true;
    while (true) {
      watched.erase(watch);
      Handle(WatchJob{watch, JobId(job_id), after, std::exchange(first, false)});
      if (!watched.contains(watch) || watched[watch].events.empty()) break;
      for (const EventPtr& event : watched[watch].events) events.push_back(event);
      after = watched[watch].position;
      if (watched[watch].last) break;
    }
    Handle(WatchClosed{watch, JobId(job_id)});
    return events;
  }
  uint64_t CountSteps(const std::string& job_id) {
    uint64_t count = 0;
    for (const EventPtr& event : WatchFrom(job_id, 0)) count += event->has_step() ? 1 : 0;
    return count;
  }

  absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  std::unique_ptr<Core> core;
  std::map<std::string, std::string> records;
  std::vector<SessionId> alive;
  std::map<SessionId, v1::DesiredState> desired;
  std::map<SessionId, v1::Welcome> welcomes;
  std::map<SessionId, uint64_t> acks;
  std::map<SessionId, absl::Status> ended_sessions;
  std::map<CallId, Reply> replies;
  std::map<WatchId, WatchBatch> watched;
  std::map<WatchId, absl::Status> ended_watches;
  std::map<SessionId, std::vector<ValuePtr>> values;
  v1::StoreValues refused;  // the newest
  std::map<ReaderId, std::vector<std::string>> log_requests;
  std::map<ReaderId, absl::Status> ended_logs;
  std::vector<std::string> log;
  // The coordinator is gone once it has made so many commits more, each of at most `commit_entries`, with whatever it
  // had not released; it stays gone until Restart. -1: it stays.
  int commits_left = -1;
  size_t commit_entries = Store::kEntriesMax;
  bool crashed = false;
  std::vector<JobTold> told;
  std::map<std::string, uint64_t> events_dropped;

  SessionId NewSession() { return SessionId(++sessions_); }

 private:
  void Take(Output output) {
    std::vector<std::vector<Record>> turns;
    turns.push_back(std::move(output.records));
    for (std::vector<StoreEntry>& commit : MakeCommits(std::move(turns), commit_entries)) {
      if (crashed) return;
      for (StoreEntry& entry : commit) {
        if (entry.value.has_value()) {
          records[entry.key] = *std::move(entry.value);
        } else {
          records.erase(entry.key);
        }
      }
      if (commits_left > 0 && --commits_left == 0) crashed = true;
    }
    if (crashed) return;
    for (Effect& effect : output.effects) std::visit([this](auto& what) { On(what); }, effect);
  }

  void On(Reply& reply) { replies[reply.call] = std::move(reply); }
  void On(WatchBatch& batch) { watched[batch.watch] = std::move(batch); }
  void On(EndWatch& end) { ended_watches[end.watch] = end.status; }
  void On(LogsOpened& opened) {
    for (std::string& id : opened.request_ids) log_requests[opened.reader].push_back(std::move(id));
  }
  void On(EndLogs& end) { ended_logs[end.reader] = end.status; }
  void On(SendToHost& send) {
    if (send.message.has_desired()) desired[send.session] = send.message.desired();
    if (send.message.has_welcome()) welcomes[send.session] = send.message.welcome();
    if (send.message.has_values()) refused = send.message.values();
    if (send.message.has_ack()) acks[send.session] = send.message.ack().sequence();
  }
  void On(EndSession& end) { ended_sessions[end.session] = end.status; }
  void On(SendValues& send) {
    for (SessionId session : *send.sessions) values[session] = send.log->values;
  }
  void On(WriteLog& line) {
    EXPECT_NE(line.level, WriteLog::Level::kError) << line.text;
    log.push_back(std::move(line.text));
  }
  void On(JobTold& told) { this->told.push_back(std::move(told)); }
  void On(EventsDropped& dropped) { events_dropped[dropped.kind] += dropped.count; }
  void On(JobForgotten&) {}
  void On(FailureCounted&) {}
  void On(SaveCounted&) {}
  void On(JobEnded&) {}

  absl::Duration lease_;
  uint64_t life_ = 0, calls_ = 0, watches_ = 1'000, sessions_ = 0;
};

// A daemon as the core sees it: attaches, makes the desired state so, tells facts.
class FakeHost {
 public:
  FakeHost(Harness& harness, std::string name, uint32_t slots, uint64_t incarnation)
      : harness(harness), name(std::move(name)), slots(slots), incarnation(incarnation) {}

  void Attach() {
    session = harness.NewSession();
    AttachHost attach{session, {}, "ipv4:127.0.0.1:1"};
    attach.hello.set_protocol(limits::kProtocol);
    attach.hello.set_host(name);
    attach.hello.set_incarnation(incarnation);
    attach.hello.set_slots(slots);
    *attach.hello.mutable_inventory() = inventory;
    attach.hello.mutable_inventory()->set_cores(4);
    attach.hello.mutable_inventory()->set_data_address("10.0.0.1");
    attach.hello.set_applied_revision(applied);
    attach.hello.set_cluster_id(cluster);
    for (const auto& [key, trainer] : running) *attach.hello.add_trainers()->mutable_key() = trainer;
    attach.hello.set_outbox_id(outbox_id);
    harness.alive.push_back(session);
    harness.Handle(std::move(attach));
    if (remembers && harness.welcomes.contains(session)) TellAgain();
  }
  // The stream breaks; the daemon and its trainers go on.
  void Detach() {
    std::erase(harness.alive, session);
    harness.Handle(DetachHost{session});
  }
  // Nothing is heard any more, and nobody says so.
  void Vanish() { std::erase(harness.alive, session); }
  bool refused() const { return harness.ended_sessions.contains(session); }
  absl::Status refusal() const { return harness.ended_sessions.at(session); }

  // Starts what is desired, ends what is not; `start` false: what is desired is noted, but nothing is started yet.
  void Apply(bool start = true) {
    const v1::DesiredState& state = harness.desired[session];
    std::map<std::string, v1::TrainerKey> wanted;
    for (const v1::DesiredTrainer& trainer : state.trainers()) wanted[Name(trainer.key())] = trainer.key();
    for (auto it = running.begin(); it != running.end();) {
      if (wanted.contains(it->first)) {
        ++it;
        continue;
      }
      v1::TrainerKey key = it->second;
      it = running.erase(it);
      v1::Fact fact;
      fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_STOPPED);
      Tell(key, std::move(fact));
    }
    for (const auto& [id, key] : wanted) {
      if (!start || running.contains(id)) continue;
      running[id] = key;
      v1::Fact fact;
      fact.mutable_started()->set_pid(100 + key.rank());
      Tell(key, std::move(fact));
    }
    applied = state.revision();
    harness.Handle(RevisionApplied{session, applied});
  }

  void Tell(const v1::TrainerKey& key, v1::Fact fact) {
    fact.set_sequence(++sequence);
    *fact.mutable_key() = key;
    if (remembers) outbox.push_back(fact);
    HostFactsTold told{session, {}};
    *told.batch.add_facts() = std::move(fact);
    harness.Handle(std::move(told));
  }
  // What was not acknowledged, and all reports of steps that it has.
  void TellAgain() {
    uint64_t acked = harness.welcomes.at(session).acked_fact();
    if (harness.acks.contains(session)) acked = std::max(acked, harness.acks.at(session));
    std::erase_if(outbox, [&](const v1::Fact& fact) { return fact.sequence() <= acked; });
    RankReportsTold reports{session, {}};
    for (const auto& [name, report] : kept_reports) *reports.reports.add_reports() = report;
    harness.Handle(std::move(reports));
    HostFactsTold facts{session, {}};
    for (const v1::Fact& fact : outbox) *facts.batch.add_facts() = fact;
    harness.Handle(std::move(facts));
  }
  void Register(const v1::TrainerKey& key, const std::string& digest = "") {
    v1::Fact fact;
    fact.mutable_registered()->set_spec_digest(digest.empty() ? harness.Get(key.job_id()).spec_digest() : digest);
    Tell(key, std::move(fact));
  }
  void Ready(const v1::TrainerKey& key, uint64_t first_step = 1) {
    v1::Fact fact;
    fact.mutable_ready()->set_first_step(first_step);
    Tell(key, std::move(fact));
  }
  void Save(const v1::TrainerKey& key, uint64_t step) {
    v1::Fact fact;
    fact.mutable_saved()->set_step(step);
    fact.mutable_saved()->set_path(absl::StrCat("/runs/x/step-", step));
    fact.mutable_saved()->set_manifest_hash(absl::StrCat("hash-", step, "-", key.generation()));
    Tell(key, std::move(fact));
  }
  void Finish(const v1::TrainerKey& key, uint64_t step, bool stopped = false) {
    v1::Fact fact;
    fact.mutable_finished()->set_step(step);
    fact.mutable_finished()->set_stopped(stopped);
    Tell(key, std::move(fact));
    Exit(key, 0);
  }
  void Exit(const v1::TrainerKey& key, int code) {
    running.erase(Name(key));
    v1::Fact fact;
    fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_EXIT);
    fact.mutable_exited()->set_code(code);
    Tell(key, std::move(fact));
  }
  void Kill(const v1::TrainerKey& key, int signal) {
    running.erase(Name(key));
    v1::Fact fact;
    fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_SIGNAL);
    fact.mutable_exited()->set_signal(signal);
    fact.mutable_exited()->add_last_lines("the last line");
    Tell(key, std::move(fact));
  }
  void Break(const v1::TrainerKey& key, uint64_t step) {
    v1::Fact fact;
    fact.mutable_broken()->set_step(step);
    fact.mutable_broken()->set_message("connection reset by peer");
    Tell(key, std::move(fact));
  }
  void Report(const v1::TrainerKey& key, uint64_t from, uint64_t to) {
    RankReportsTold told{session, {}};
    v1::RankReport& report = *told.reports.add_reports();
    *report.mutable_key() = key;
    report.set_phase("train");
    report.set_last_step(to);
    report.add_phase_times()->set_phase("train");
    report.mutable_phase_times(0)->set_longest_s(0.01);
    for (uint64_t step = from; step <= to; ++step) {
      v1::StepReport& made = *report.add_steps();
      made.set_step(step);
      made.set_loss(5.0 / static_cast<double>(step));
      made.set_tokens(64);
      made.set_step_s(0.01);
      if (remembers) {
        *kept_reports[Name(key)].mutable_key() = key;
        *kept_reports[Name(key)].add_steps() = made;
      }
    }
    harness.Handle(std::move(told));
  }

  // Where one rank stands: its phase, and what it waits in.
  void Stand(const v1::TrainerKey& key, const std::string& phase, uint64_t last_step, const std::string& waits_in) {
    RankReportsTold told{session, {}};
    v1::RankReport& report = *told.reports.add_reports();
    *report.mutable_key() = key;
    report.set_phase(phase);
    report.set_last_step(last_step);
    v1::CommunicatorReport& world = *report.add_communicators();
    world.set_name("world");
    world.set_started(17);
    world.set_completed(16);
    world.set_waits_in(waits_in);
    world.set_last_started(waits_in);
    harness.Handle(std::move(told));
  }
  // `stop_request`: of the stop that it was for, which is off.
  void SaveFails(const v1::TrainerKey& key, uint64_t step, uint64_t stop_request = 0) {
    v1::Fact fact;
    fact.mutable_save_failed()->set_stop_request(stop_request);
    fact.mutable_save_failed()->set_step(step);
    fact.mutable_save_failed()->set_message("No space left on device");
    Tell(key, std::move(fact));
  }

  // Answers all that it is asked for.
  void Look(bool there) {
    RankReportsTold told{session, {}};
    for (const v1::PathRequest& request : desired().look_for()) {
      v1::PathAnswer& answer = *told.reports.add_paths();
      answer.set_request_id(request.request_id());
      answer.set_there(there);
      if (!there) answer.set_note("No such file or directory");
    }
    harness.Handle(std::move(told));
  }

  const v1::DesiredState& desired() { return harness.desired[session]; }

  static std::string Name(const v1::TrainerKey& key) {
    return absl::StrCat(key.job_id(), ".g", key.generation(), ".r", key.rank());
  }

  Harness& harness;
  const std::string name;
  const uint32_t slots;
  uint64_t incarnation;
  std::string cluster;
  std::string outbox_id;
  // Keeps what is not acknowledged, and rank 0's steps, and tells both again whenever it attaches.
  bool remembers = false;
  std::vector<v1::Fact> outbox;
  std::map<std::string, v1::RankReport> kept_reports;
  SessionId session;
  v1::Inventory inventory;  // what it has beside the cores and the address that all have
  uint64_t sequence = 0;
  uint64_t applied = 0;
  std::map<std::string, v1::TrainerKey> running;
};

inline v1::TrainerKey Key(const std::string& job, uint64_t generation, uint32_t rank) {
  v1::TrainerKey key;
  key.set_job_id(job);
  key.set_generation(generation);
  key.set_rank(rank);
  return key;
}

// One job on one host, brought to RUNNING.
inline void BringToRunning(Harness& harness, FakeHost& host, const std::string& job, uint64_t first_step = 1) {
  host.Apply();
  uint64_t generation = harness.Get(job).generation();
  for (uint32_t rank = 0; rank < harness.Get(job).spec().resources().ranks(); ++rank) {
    host.Register(Key(job, generation, rank));
    host.Ready(Key(job, generation, rank), first_step);
  }
  ASSERT_EQ(harness.StateOf(job), v1::JOB_STATE_RUNNING) << harness.Get(job).reason();
}

}  // namespace trainyard
