// What the daemon observes of its trainers' processes. The daemon reports for trainers that cannot report themselves
// (stopped, or hanging as a whole), and examines a process when the coordinator requests that.
#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/agent/core.h"

namespace trainyard::agent {
namespace {

// Trainers report at the same interval.
constexpr absl::Duration kSampleInterval = absl::Milliseconds(500);
// Two intervals: a trainer whose link is open and that has not reported for this long counts as silent.
constexpr absl::Duration kSilentAfter = absl::Seconds(1);
// The interval of the daemon's own reports about the program of a command that has reported nothing. They may be
// rare, because no decision depends on them.
constexpr absl::Duration kObservedInterval = absl::Seconds(4);

}  // namespace

void Core::SampleWhenDue() {
  // Reports are useless without the coordinator, but a limit of memory must be kept at all times.
  const bool any_limit =
      std::any_of(trainers_.begin(), trainers_.end(), [](const auto& entry) { return entry.second.memory_limit > 0; });
  if (stream_ != Stream::kUp && !any_limit) return;
  if (sample_at_ > now_) return WakeBy(sample_at_);
  if (now_ - sample_at_ > kSilentAfter) {
    // No sample was taken for a while. Perhaps this daemon was stopped or suspended, and reports of trainers still wait
    // to be read, so no trainer counts as silent yet.
    for (auto& [id, trainer] : trainers_) trainer.last_message_at = now_;
  }
  SampleProcesses sample;
  for (const auto& [id, trainer] : trainers_) {
    if (trainer.process == Process::kRunning && trainer.pid > 0) {
      sample.processes.push_back({id, trainer.pid, trainer.memory_limit});
    }
  }
  if (sample.processes.empty()) return;
  Emit(std::move(sample));
  sample_at_ = now_ + kSampleInterval;
  // One wake-up serves both the samples and the heartbeat.
  if (heartbeat_at_ > now_ + kSampleInterval / 2) sample_at_ = std::min(sample_at_, heartbeat_at_);
  WakeBy(sample_at_);
}

void Core::On(ProcessesSampled event) {
  for (const ProcessSample& sample : event.samples) {
    auto at = trainers_.find(sample.id);
    if (at == trainers_.end() || at->second.process != Process::kRunning) continue;
    Trainer& trainer = at->second;
    trainer.reports.SetProcess(sample.state, sample.cpu_s);
    LimitMemory(trainer, sample.memory_bytes);
    // Silence means nothing in two cases: a trainer without a link cannot report, and the program of a command reports
    // only when it has made a step.
    bool silent = !trainer.command_grace.has_value() && trainer.link != LinkId() &&
                  now_ - trainer.last_message_at >= kSilentAfter;
    bool cannot_report = silent || trainer.link == LinkId();
    if (!cannot_report) continue;
    const bool was_stopped = std::exchange(trainer.is_stopped, sample.state == "T" || sample.state == "t");
    const bool never_reported = trainer.command_grace.has_value() && trainer.link_pid == 0;
    const bool is_known = trainer.is_stopped == was_stopped && now_ - trainer.observed_at < kObservedInterval;
    if (never_reported && is_known) continue;
    trainer.observed_at = now_;
    trainer.reports.RepeatLast(ToProto(trainer.id), silent, now_);
  }
}

// Kills the rank of a command that uses more memory than its job allows; its exit then says why.
void Core::LimitMemory(Trainer& trainer, uint64_t bytes) {
  if (trainer.memory_limit == 0 || bytes <= trainer.memory_limit || !trainer.over_memory.empty()) return;
  trainer.over_memory = absl::StrCat("its processes used ", bytes, " bytes of memory, more than command.memory_bytes (",
                                     trainer.memory_limit, "); use less, or raise the limit");
  LogWarning(absl::StrCat("killing ", Describe(trainer.id), ": ", trainer.over_memory));
  Emit(SignalProcess{trainer.id, SIGKILL});
}

void Core::ApplyExaminations(const v1::DesiredState& desired) {
  std::set<std::string> wanted;
  for (const v1::ExamineRequest& request : desired.examine()) {
    wanted.insert(request.request_id());
    if (!examined_.insert(request.request_id()).second) continue;
    auto at = trainers_.find(FromProto(request.key()));
    // A trainer that has ended is not examined: its exit will be reported soon and says more.
    if (at == trainers_.end() || at->second.process != Process::kRunning) continue;
    Emit(ExamineProcess{at->first, at->second.pid, request.request_id(), request.with_stack()});
  }
  std::erase_if(examined_, [&](const std::string& id) { return !wanted.contains(id); });
}

void Core::On(ProcessExamined event) {
  auto at = trainers_.find(event.id);
  if (at == trainers_.end() || at->second.process == Process::kEnded) return;
  v1::Fact fact;
  *fact.mutable_examined() = std::move(event.examination);
  AddFact(at->second, std::move(fact), {.trainer = at->first});
}

void Core::ApplyPathRequests(const v1::DesiredState& desired) {
  std::set<std::string> wanted;
  for (const v1::PathRequest& request : desired.look_for()) {
    wanted.insert(request.request_id());
    if (paths_.try_emplace(request.request_id()).second) Emit(CheckPath{request.request_id(), request.path()});
  }
  std::erase_if(paths_, [&](const auto& path) { return !wanted.contains(path.first); });
}

void Core::On(PathChecked event) {
  auto at = paths_.find(event.answer.request_id());
  if (at == paths_.end()) return;
  at->second = std::move(event.answer);
  SendPaths();
}

// Answers are not stored in the outbox: they are sent again with each heartbeat as long as the path is requested.
void Core::SendPaths() {
  if (stream_ != Stream::kUp) return;
  v1::AgentMessage message;
  for (const auto& [id, answer] : paths_) {
    if (answer.has_value()) *message.mutable_reports()->add_paths() = *answer;
  }
  if (message.has_reports()) Emit(SendToCoordinator{std::move(message)});
}

}  // namespace trainyard::agent
