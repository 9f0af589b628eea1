// A simulated daemon for tests that drive the coordinator's core with Harness (core_driver.h).
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/core_driver.h"

namespace trainyard {

// A daemon as the core sees it: attaches, carries out the desired state, reports facts.
class FakeHost {
 public:
  FakeHost(Harness& harness, std::string name, uint32_t slots, uint64_t incarnation)
      : harness(harness), name(std::move(name)), slots(slots), incarnation(incarnation) {}

  void Attach() {
    session = harness.NewSession();
    AttachHost attach{session, {}, "ipv4:127.0.0.1:1"};
    attach.hello.set_protocol(protocol);
    attach.hello.set_host(name);
    attach.hello.set_incarnation(incarnation);
    attach.hello.set_slots(slots);
    *attach.hello.mutable_inventory() = inventory;
    attach.hello.mutable_inventory()->set_cores(4);
    attach.hello.mutable_inventory()->set_data_address("10.0.0.1");
    attach.hello.set_applied_revision(applied);
    attach.hello.set_cluster_id(cluster);
    for (const auto& [id, key] : running) {
      v1::RunningTrainer& trainer = *attach.hello.add_trainers();
      *trainer.mutable_key() = key;
      if (!waiting.contains(id)) trainer.set_pid(100 + key.rank());
      trainer.set_ended(ended.contains(id));
    }
    attach.hello.set_outbox_id(outbox_id);
    harness.alive.push_back(session);
    harness.Handle(std::move(attach));
    if (resends_facts && harness.welcomes.contains(session)) ResendFacts();
  }
  // The stream breaks; the daemon and its trainers continue.
  void Detach() {
    std::erase(harness.alive, session);
    harness.Handle(DetachHost{session});
  }
  // Another daemon process takes the place of this one, with a new outbox. It finds the trainers in `running`.
  void ReplaceDaemon() {
    Detach();
    ++incarnation;
    sequence = 0;
    Attach();
  }
  // The coordinator receives nothing from this host any more, and is not notified.
  void Disconnect() { std::erase(harness.alive, session); }
  bool refused() const { return harness.ended_sessions.contains(session); }
  absl::Status refusal() const { return harness.ended_sessions.at(session); }

  // Starts the desired trainers and ends the others. `start` false: the daemon starts none of them yet.
  void Apply(bool start = true) {
    const v1::DesiredState& state = harness.desired[session];
    std::map<std::string, v1::TrainerKey> wanted;
    for (const v1::DesiredTrainer& trainer : state.trainers()) wanted[Name(trainer.key())] = trainer.key();
    for (auto it = running.begin(); it != running.end();) {
      const auto& unknown = state.unknown_jobs();
      if (wanted.contains(it->first) || std::count(unknown.begin(), unknown.end(), it->second.job_id()) > 0) {
        ++it;
        continue;
      }
      v1::TrainerKey key = it->second;
      it = running.erase(it);
      v1::Fact fact;
      fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_STOPPED);
      ReportFact(key, std::move(fact));
    }
    for (const auto& [id, key] : wanted) {
      if (!start || running.contains(id)) continue;
      running[id] = key;
      v1::Fact fact;
      fact.mutable_started()->set_pid(100 + key.rank());
      ReportFact(key, std::move(fact));
    }
    applied = state.revision();
    harness.Handle(RevisionApplied{session, applied});
  }

  void ReportFact(const v1::TrainerKey& key, v1::Fact fact) {
    fact.set_sequence(++sequence);
    *fact.mutable_key() = key;
    if (resends_facts) outbox.push_back(fact);
    HostFactsReceived received{session, {}};
    *received.batch.add_facts() = std::move(fact);
    harness.Handle(std::move(received));
  }
  // Sends the facts that were not acknowledged, and all reports of steps that this host has stored.
  void ResendFacts() {
    uint64_t acked = harness.welcomes.at(session).acked_fact();
    if (harness.acks.contains(session)) acked = std::max(acked, harness.acks.at(session));
    std::erase_if(outbox, [&](const v1::Fact& fact) { return fact.sequence() <= acked; });
    RankReportsReceived reports{session, {}};
    for (const auto& [name, report] : step_reports) *reports.reports.add_reports() = report;
    harness.Handle(std::move(reports));
    HostFactsReceived facts{session, {}};
    for (const v1::Fact& fact : outbox) *facts.batch.add_facts() = fact;
    harness.Handle(std::move(facts));
  }
  void Register(const v1::TrainerKey& key, const std::string& digest = "") {
    v1::Fact fact;
    fact.mutable_registered()->set_spec_digest(digest.empty() ? harness.Get(key.job_id()).spec_digest() : digest);
    ReportFact(key, std::move(fact));
  }
  void Ready(const v1::TrainerKey& key, uint64_t first_step = 1) {
    v1::Fact fact;
    fact.mutable_ready()->set_first_step(first_step);
    ReportFact(key, std::move(fact));
  }
  void Save(const v1::TrainerKey& key, uint64_t step) {
    v1::Fact fact;
    fact.mutable_saved()->set_step(step);
    fact.mutable_saved()->set_path(absl::StrCat("/runs/x/step-", step));
    fact.mutable_saved()->set_manifest_hash(absl::StrCat("hash-", step, "-", key.generation()));
    ReportFact(key, std::move(fact));
  }
  // Reports that a partial save is complete, which requests a grant for it.
  void ReadySave(const v1::TrainerKey& key, uint64_t step, const std::string& hash) {
    v1::Fact fact;
    fact.mutable_save_ready()->set_step(step);
    fact.mutable_save_ready()->set_path(absl::StrCat("/runs/x/step-", step));
    fact.mutable_save_ready()->set_manifest_hash(hash);
    ReportFact(key, std::move(fact));
  }
  void Restored(const v1::TrainerKey& key, uint64_t step, const std::string& hash,
                const std::vector<std::string>& passed_over = {}) {
    v1::Fact fact;
    for (const std::string& sentence : passed_over) fact.mutable_restored()->add_passed_over(sentence);
    fact.mutable_restored()->set_step(step);
    fact.mutable_restored()->set_path(absl::StrCat("/runs/x/step-", step));
    fact.mutable_restored()->set_manifest_hash(hash);
    ReportFact(key, std::move(fact));
  }
  // As in a trainer, the last step is saved before it is reported, unless `unsaved` gives the reason why it is not
  // saved. If `stopped`, this function saves nothing.
  void Finish(const v1::TrainerKey& key, uint64_t step, bool stopped = false, const std::string& unsaved = "") {
    if (key.rank() == 0 && !stopped && unsaved.empty()) Save(key, step);
    FinishOnly(key, step, stopped, unsaved);
  }
  void FinishOnly(const v1::TrainerKey& key, uint64_t step, bool stopped = false, const std::string& unsaved = "") {
    v1::Fact fact;
    fact.mutable_finished()->set_step(step);
    fact.mutable_finished()->set_stopped(stopped);
    fact.mutable_finished()->set_unsaved(unsaved);
    ReportFact(key, std::move(fact));
    Exit(key, 0);
  }
  // The job ends early, because the evaluation loss does not fall any more. Saves nothing: call Save before.
  void EndEarly(const v1::TrainerKey& key, uint64_t step, const std::string& why) {
    v1::Fact fact;
    fact.mutable_finished()->set_step(step);
    fact.mutable_finished()->set_ended_early(why);
    ReportFact(key, std::move(fact));
    Exit(key, 0);
  }
  void Exit(const v1::TrainerKey& key, int code) {
    running.erase(Name(key));
    v1::Fact fact;
    fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_EXIT);
    fact.mutable_exited()->set_code(code);
    ReportFact(key, std::move(fact));
  }
  void Kill(const v1::TrainerKey& key, int signal) {
    running.erase(Name(key));
    v1::Fact fact;
    fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_SIGNAL);
    fact.mutable_exited()->set_signal(signal);
    fact.mutable_exited()->add_last_lines("the last line");
    ReportFact(key, std::move(fact));
  }
  void ReportBroken(const v1::TrainerKey& key, uint64_t step) {
    v1::Fact fact;
    fact.mutable_broken()->set_step(step);
    fact.mutable_broken()->set_message("connection reset by peer");
    ReportFact(key, std::move(fact));
  }
  void Report(const v1::TrainerKey& key, uint64_t from, uint64_t to) {
    RankReportsReceived received{session, {}};
    v1::RankReport& report = *received.reports.add_reports();
    *report.mutable_key() = key;
    report.set_phase("train");
    report.set_last_step(to);
    report.add_phase_times()->set_phase("train");
    report.mutable_phase_times(0)->set_longest_s(0.01);
    for (uint64_t step = from; step <= to; ++step) {
      v1::StepReport& step_report = *report.add_steps();
      step_report.set_step(step);
      step_report.set_loss(5.0 / static_cast<double>(step));
      step_report.set_tokens(64);
      step_report.set_step_s(0.01);
      if (resends_facts) {
        *step_reports[Name(key)].mutable_key() = key;
        *step_reports[Name(key)].add_steps() = step_report;
      }
    }
    harness.Handle(std::move(received));
  }

  // Reports the position of one rank: its phase, and the operation in which it waits.
  void ReportPosition(const v1::TrainerKey& key, const std::string& phase, uint64_t last_step,
                      const std::string& waits_in) {
    RankReportsReceived received{session, {}};
    v1::RankReport& report = *received.reports.add_reports();
    *report.mutable_key() = key;
    report.set_phase(phase);
    report.set_last_step(last_step);
    v1::CommunicatorReport& world = *report.add_communicators();
    world.set_name("world");
    world.set_started(17);
    world.set_completed(16);
    world.set_waits_in(waits_in);
    world.set_last_started(waits_in);
    harness.Handle(std::move(received));
  }
  // `stop_request`: the stop for which the save was made, and which is now cancelled.
  void SaveFails(const v1::TrainerKey& key, uint64_t step, uint64_t stop_request = 0) {
    v1::Fact fact;
    fact.mutable_save_failed()->set_stop_request(stop_request);
    fact.mutable_save_failed()->set_step(step);
    fact.mutable_save_failed()->set_message("No space left on device");
    ReportFact(key, std::move(fact));
  }

  // The save of the last step fails, and the ranks retry.
  void LastSaveFails(const v1::TrainerKey& key, uint64_t step, const std::string& message) {
    v1::Fact fact;
    fact.mutable_save_failed()->set_step(step);
    fact.mutable_save_failed()->set_message(message);
    fact.mutable_save_failed()->set_will_retry(true);
    ReportFact(key, std::move(fact));
  }

  // Answers all requests to look for a path.
  void AnswerPathRequests(bool there) {
    RankReportsReceived received{session, {}};
    for (const v1::PathRequest& request : desired().look_for()) {
      v1::PathAnswer& answer = *received.reports.add_paths();
      answer.set_request_id(request.request_id());
      answer.set_there(there);
      if (!there) answer.set_note("No such file or directory");
    }
    harness.Handle(std::move(received));
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
  uint32_t protocol = limits::kProtocol;
  std::string outbox_id;
  // Whether the host stores unacknowledged facts and rank 0's steps, and sends both again whenever it attaches.
  bool resends_facts = false;
  std::vector<v1::Fact> outbox;
  std::map<std::string, v1::RankReport> step_reports;
  SessionId session;
  v1::Inventory inventory;  // in addition to the cores and the address that all hosts have
  uint64_t sequence = 0;
  uint64_t applied = 0;
  std::map<std::string, v1::TrainerKey> running;
  std::set<std::string> waiting;  // the names of those trainers in `running` that have no process yet
  std::set<std::string> ended;    // the names of those trainers in `running` whose processes have ended
};

inline v1::TrainerKey Key(const std::string& job, uint64_t generation, uint32_t rank) {
  v1::TrainerKey key;
  key.set_job_id(job);
  key.set_generation(generation);
  key.set_rank(rank);
  return key;
}

// A job of a program that always succeeds.
inline v1::JobSpec CommandSpec(uint32_t ranks) {
  v1::JobSpec spec;
  spec.set_name("command");
  spec.mutable_command()->add_argv("true");
  spec.mutable_command()->set_workdir("/");
  spec.mutable_resources()->set_ranks(ranks);
  return spec;
}

// Brings a job whose ranks are all on this host to RUNNING.
inline void BringToRunning(Harness& harness, FakeHost& host, const std::string& job, uint64_t first_step = 1) {
  host.Apply();
  uint64_t generation = harness.Get(job).generation();
  for (uint32_t rank = 0; rank < harness.Get(job).spec().resources().ranks(); ++rank) {
    host.Register(Key(job, generation, rank));
    host.Ready(Key(job, generation, rank), first_step);
  }
  ASSERT_EQ(harness.StateOf(job), v1::JOB_STATE_RUNNING) << harness.Get(job).reason();
}

// Attaches the host, submits kJob with a rank for each of its slots, and brings the job to RUNNING.
inline void RunJobOn(FakeHost& host) {
  host.Attach();
  host.harness.Submit(MakeSpec(host.slots), kJob);
  BringToRunning(host.harness, host, kJob);
}

}  // namespace trainyard
