// The start of a command: first the check of this host (command.check), once for all ranks of the group here, then
// CPUs for each rank (command.cpus), then the address of rank 0.
#include <signal.h>

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/agent/core.h"

namespace trainyard::agent {
namespace {

// The end of a sentence about the check; empty: it has passed.
std::string WhyRefused(const v1::TrainerExited& exited) {
  std::string why;
  switch (exited.cause()) {
    case v1::TrainerExited::CAUSE_EXIT:
      if (exited.code() == 0) return "";
      why = absl::StrCat("exited with code ", exited.code());
      break;
    case v1::TrainerExited::CAUSE_SIGNAL:
      why = absl::StrCat("was killed by signal ", exited.signal());
      break;
    case v1::TrainerExited::CAUSE_START_FAILED:
      return absl::StrCat("could not be started: ", exited.message());
    default:
      return absl::StrCat("is lost: ", exited.message());
  }
  for (int i = exited.last_lines_size() - 1; i >= 0; --i) {
    if (!exited.last_lines(i).empty()) return absl::StrCat(why, ": ", exited.last_lines(i));
  }
  return why;
}

}  // namespace

void Core::StartCommand(Trainer& trainer) {
  if (trainer.check_limit.has_value() && !PassCheck(trainer)) return;
  if (trainer.needs_cpus > 0 && !TakeCpus(trainer)) return;
  trainer.awaits_master = true;
  Emit(FindMaster{trainer.id, trainer.desired->data_address()});
}

// Gives the rank CPUs that no other rank with command.cpus has. Returns false if there are too few: the coordinator
// counts free CPUs before it places ranks, but may not know of a generation that still uses CPUs here.
bool Core::TakeCpus(Trainer& trainer) {
  std::set<uint32_t> taken;
  for (const auto& [id, other] : trainers_) {
    if (other.process != Process::kEnded) taken.insert(other.cpus.begin(), other.cpus.end());
  }
  for (uint32_t cpu : options_.cpus) {
    if (trainer.cpus.size() < trainer.needs_cpus && !taken.contains(cpu)) trainer.cpus.push_back(cpu);
  }
  if (trainer.cpus.size() == trainer.needs_cpus) return true;
  v1::TrainerExited exited;
  exited.set_cause(v1::TrainerExited::CAUSE_START_FAILED);
  exited.set_message(absl::StrCat("only ", trainer.cpus.size(), " of the host's ", options_.cpus.size(),
                                  " CPUs are free, and command.cpus is ", trainer.needs_cpus));
  exited.set_may_pass(true);
  trainer.cpus.clear();
  On(ProcessEnded{trainer.id, std::move(exited)});
  return false;
}

// Returns whether the check has passed. If not, the rank waits for the end of the check, or has been refused.
bool Core::PassCheck(Trainer& trainer) {
  const auto [at, is_new] = checks_.try_emplace(GroupOf(trainer.id));
  HostCheck& check = at->second;
  if (check.passed) return true;
  if (check.refusal.has_value()) {
    On(ProcessEnded{trainer.id, *check.refusal});
    return false;
  }
  trainer.awaits_check = true;
  if (!is_new) return false;
  check.kill_at = now_ + *trainer.check_limit;
  StartProcess start{.desired = *trainer.desired, .threads = 0, .token = ""};
  start.desired.mutable_key()->set_rank(kCheckRank);
  if (IsCheckEnding(trainer.id.job)) {
    check.waiting = std::move(start);
    return false;
  }
  LogInfo(absl::StrCat("checking this host for ", Describe(trainer.id)));
  Emit(std::move(start));
  return false;
}

bool Core::IsCheckEnding(const JobId& job) const {
  const auto at = ending_checks_.lower_bound(GroupId{job, Generation()});
  return at != ending_checks_.end() && at->first == job;
}

void Core::CheckEnded(const ProcessEnded& event) {
  ending_checks_.erase(GroupOf(event.id));
  SettleCheck(event);
  if (IsCheckEnding(event.id.job)) return;
  for (auto& [group, check] : checks_) {
    if (group.first != event.id.job || !check.waiting.has_value() || check.refusal.has_value()) continue;
    LogInfo(absl::StrCat("checking this host for generation ", group.second.value(), " of job ", group.first.value()));
    Emit(*std::exchange(check.waiting, std::nullopt));
  }
}

// Starts or refuses the ranks that wait for this check.
void Core::SettleCheck(const ProcessEnded& event) {
  const auto at = checks_.find(GroupOf(event.id));
  if (at == checks_.end() || at->second.refusal.has_value()) return;  // the group is over, or the check took too long
  HostCheck& check = at->second;
  const std::string why = check.waiting.has_value() ? "did not start, because the killed check of an earlier "
                                                      "generation has not ended within command.check.time_limit_s"
                          : check.timed_out
                              ? "did not end within its time limit and was killed (command.check.time_limit_s)"
                              : WhyRefused(event.exited);
  check.passed = why.empty();
  check.kill_at = absl::InfiniteFuture();
  if (!check.passed) {
    const bool is_lost = event.exited.cause() == v1::TrainerExited::CAUSE_LOST && !check.timed_out;
    v1::TrainerExited refusal;
    refusal.set_cause(v1::TrainerExited::CAUSE_START_FAILED);
    refusal.set_message(absl::StrCat("the check of this host (command.check) ", why));
    refusal.set_may_pass(is_lost || event.exited.may_pass());
    refusal.set_check_failed(!refusal.may_pass());
    check.refusal = std::move(refusal);
  }
  for (auto& [id, trainer] : trainers_) {
    if (GroupOf(id) != at->first || !std::exchange(trainer.awaits_check, false)) continue;
    StartCommand(trainer);
  }
}

void Core::KillCheck(const GroupId& group) {
  const auto at = checks_.find(group);
  if (at == checks_.end()) return;
  if (!at->second.passed && !at->second.refusal.has_value() && !at->second.waiting.has_value()) {
    ending_checks_.insert(group);
    Emit(SignalProcess{{group.first, group.second, kCheckRank}, SIGKILL});
  }
  checks_.erase(at);
}

void Core::KillChecksWhenDue() {
  for (auto& [group, check] : checks_) {
    if (check.kill_at > now_) {
      WakeBy(check.kill_at);
      continue;
    }
    check.timed_out = true;
    const TrainerId id = {group.first, group.second, kCheckRank};
    if (!check.waiting.has_value()) {
      ending_checks_.insert(group);
      Emit(SignalProcess{id, SIGKILL});
    }
    // The ranks do not wait until the check has ended: a process that hangs in the kernel cannot be killed.
    SettleCheck({.id = id, .exited = {}});
  }
}

}  // namespace trainyard::agent
