// Drives the production core in one thread on a manual clock, without sockets and disks. Acts for the users, who
// submit, watch and cancel jobs, and for the store: records are stored, so that a coordinator can be restarted from
// them. Checks every invariant of the core after each event.
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
#include "coordinator/store/store.h"

namespace trainyard {

// The job of most tests.
inline constexpr char kJob[] = "job00000001";

inline v1::JobSpec MakeSpec(uint32_t ranks, uint32_t max_restarts = 10) {
  v1::JobSpec spec;
  spec.set_name("test-job");
  v1::Train& train = *spec.mutable_train();
  train.mutable_model()->set_layers(1);
  train.mutable_model()->set_heads(1);
  train.mutable_model()->set_width(8);
  train.mutable_model()->set_context(8);
  train.mutable_data()->add_text("/data");
  train.mutable_batch()->set_global_size(ranks * 2);
  train.set_steps(10);
  spec.mutable_resources()->set_ranks(ranks);
  spec.mutable_resources()->set_device(v1::DEVICE_CPU);
  spec.mutable_recovery()->set_max_restarts(max_restarts);
  return spec;
}

class Harness {
 public:
  explicit Harness(absl::Duration lease = absl::Seconds(3), QueueRules queue = {})
      : queue(std::move(queue)), lease_(lease) {
    Restart();
  }

  // Replaces the coordinator by a new one that reads the same records.
  void Restart() {
    std::vector<std::pair<std::string, std::string>> all(records.begin(), records.end());
    CoreOptions options{.cluster_id = "cluster",
                        .incarnation = Incarnation(++incarnation_),
                        .lease = lease_,
                        .finished_jobs = finished_jobs,
                        .webhooks = sends_webhooks,
                        .queue = queue};
    auto made = Core::New(options, all, now);
    ASSERT_TRUE(made.ok()) << made.status();
    core = *std::move(made);
    crashed = false;
    commits_left = -1;
    desired.clear();
    ended_sessions.clear();
    HandleOutput(core->Start(now));
  }

  void Handle(Event event) { Handle(std::move(event), now); }
  void Handle(Event event, CoreTime time) {
    if (crashed) return;
    HandleOutput(core->Handle(std::move(event), time));
    absl::Status status = core->Check();
    ASSERT_TRUE(status.ok()) << status;
  }

  // Lets time pass; sessions in `alive` stay in contact.
  void Advance(absl::Duration by) {
    const absl::Duration step = absl::Milliseconds(100);
    for (absl::Time end = now + by; now < end;) {
      now += std::min(step, end - now);
      Tick tick;
      for (SessionId session : alive) tick.contacts.push_back({session, now});
      Handle(std::move(tick));
    }
  }

  // ---- users -------------------------------------------------------------------------------------------------------

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
  Reply Find(const std::string& text) {
    CallId call(++calls_);
    v1::FindJobsRequest request;
    request.set_text(text);
    Handle(FindJobs{call, request});
    return replies[call];
  }
  // The ids of the jobs that a text matches, in the order of the answer.
  std::vector<std::string> FoundIds(const std::string& text) {
    std::vector<std::string> ids;
    Reply reply = Find(text);
    for (const v1::FoundJob& job : std::get<v1::FindJobsResponse>(reply.response).jobs()) ids.push_back(job.job_id());
    return ids;
  }
  v1::HostStatus HostOf(const std::string& name) {
    CallId call(++calls_);
    Handle(ListHosts{call});
    for (const v1::HostStatus& host : std::get<v1::ListHostsResponse>(replies[call].response).hosts()) {
      if (host.name() == name) return host;
    }
    return v1::HostStatus();
  }
  // The texts of all notices of the cluster.
  std::vector<std::string> ClusterNotices() {
    std::vector<std::string> notices;
    for (const EventPtr& event : core->state().cluster.durable()) {
      if (event->has_notice()) notices.push_back(event->notice().text());
    }
    return notices;
  }
  Reply Cancel(const std::string& job_id) {
    CallId call(++calls_);
    Handle(CancelJob{call, JobId(job_id), "enough"});
    return replies[call];
  }
  Reply CancelSaved(const std::string& job_id) {
    CallId call(++calls_);
    Handle(CancelJob{call, JobId(job_id), "enough", /*save=*/true});
    return replies[call];
  }
  Reply RequestSave(const std::string& job_id) {
    CallId call(++calls_);
    SaveJob event{call, {}};
    event.request.set_job_id(job_id);
    event.request.set_reason("before the night");
    Handle(std::move(event));
    return replies[call];
  }
  Reply RequestRestart(const std::string& job_id, bool immediately = false) {
    CallId call(++calls_);
    RestartJob event{call, {}};
    event.request.set_job_id(job_id);
    event.request.set_now(immediately);
    Handle(std::move(event));
    return replies[call];
  }
  Reply Pause(const std::string& job_id, bool immediately = false) {
    CallId call(++calls_);
    PauseJob event{call, {}};
    event.request.set_job_id(job_id);
    event.request.set_reason("night");
    event.request.set_now(immediately);
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
  Reply SetHostState(const std::string& host, v1::SetHostRequest::Action action, const std::string& reason = "",
                     bool immediately = false) {
    CallId call(++calls_);
    SetHost event{call, {}};
    event.request.set_name(host);
    event.request.set_action(action);
    event.request.set_reason(reason);
    event.request.set_now(immediately);
    Handle(std::move(event));
    return replies[call];
  }
  Reply SetPriority(const std::string& job_id, uint32_t priority, const std::string& by = "") {
    CallId call(++calls_);
    trainyard::SetPriority event{call, {}, by};
    event.request.set_job_id(job_id);
    event.request.set_priority(priority);
    Handle(std::move(event));
    return replies[call];
  }
  v1::GetQueueResponse Queue(const std::string& name = "", uint32_t page_size = 0, const std::string& token = "") {
    CallId call(++calls_);
    GetQueue event{call, {}};
    event.request.set_namespace_(name);
    event.request.set_page_size(page_size);
    event.request.set_page_token(token);
    Handle(std::move(event));
    EXPECT_TRUE(replies[call].status.ok()) << replies[call].status;
    return std::get<v1::GetQueueResponse>(replies[call].response);
  }
  // The texts of all notices of a job.
  std::vector<std::string> Notices(const std::string& job_id) {
    std::vector<std::string> notices;
    for (const EventPtr& event : WatchFrom(job_id, 0)) {
      if (event->has_notice()) notices.push_back(event->notice().text());
    }
    return notices;
  }
  // The published decisions of a job, as "rule: text".
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
  // Puts a value as a host does; returns why it is refused, or OK.
  absl::Status Put(SessionId session, uint64_t generation, const std::string& job, const std::string& name,
                   const std::string& value) {
    HostValuesReceived put{session, {}};
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
  // All events that a watcher gets now if it resumes after this sequence number or position.
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

  QueueRules queue;             // of the next coordinator
  uint32_t finished_jobs = 20;  // kept by the next coordinator
  bool sends_webhooks = true;   // of the next coordinator
  absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  std::unique_ptr<Core> core;
  std::map<std::string, std::string> records;
  std::vector<SessionId> alive;  // sessions in contact
  std::map<SessionId, v1::DesiredState> desired;
  std::map<SessionId, v1::Welcome> welcomes;
  std::map<SessionId, uint64_t> acks;
  std::map<SessionId, absl::Status> ended_sessions;
  std::map<CallId, Reply> replies;
  std::vector<WebhookDue> webhooks;
  std::map<WatchId, WatchBatch> watched;
  std::map<WatchId, absl::Status> ended_watches;
  std::map<SessionId, std::vector<ValuePtr>> values;
  v1::StoreValues refused;  // the newest message with refused values
  std::map<ReaderId, std::vector<std::string>> log_requests;
  std::map<ReaderId, absl::Status> ended_logs;
  std::vector<std::string> log;
  // After this many more commits, each of at most `commit_entries` entries, the coordinator crashes: effects that it
  // has not released are lost, and events are ignored until Restart. -1: never.
  int commits_left = -1;
  size_t commit_entries = Store::kEntriesMax;
  bool crashed = false;
  std::vector<JobPublished> published;
  std::vector<SaveCounted> saves;
  std::vector<std::string> failures;  // the causes of the failed generations that were counted
  std::map<DroppedKind, uint64_t> events_dropped;

  SessionId NewSession() { return SessionId(++sessions_); }

 private:
  void HandleOutput(Output output) {
    std::vector<std::vector<Record>> turns;
    turns.push_back(std::move(output.records));
    for (std::vector<StoreEntry>& commit : MakeCommits(std::move(turns), commit_entries)) {
      if (crashed) return;
      const absl::Status fits = CheckEntries(commit);
      ASSERT_TRUE(fits.ok()) << fits;
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
  void On(JobPublished& event) { published.push_back(std::move(event)); }
  void On(EventsDropped& dropped) { events_dropped[dropped.kind] += dropped.count; }
  void On(JobForgotten&) {}
  void On(FailureCounted& failure) { failures.push_back(failure.cause); }
  void On(SaveCounted& save) { saves.push_back(save); }
  void On(JobEnded&) {}
  void On(WebhookDue& due) { webhooks.push_back(std::move(due)); }

  absl::Duration lease_;
  uint64_t incarnation_ = 0;
  uint64_t calls_ = 0;
  uint64_t watches_ = 1'000;
  uint64_t sessions_ = 0;
};

}  // namespace trainyard
