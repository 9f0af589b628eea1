#include "coordinator/handlers/avoid_hosts.h"

#include <algorithm>
#include <map>
#include <string>

#include "coordinator/core/history.h"
#include "coordinator/core/turn.h"
#include "coordinator/policy/recovery.h"

namespace trainyard {
namespace {

constexpr int kAvoidedMax = 64;
constexpr size_t kAvoidReasonBytes = 512;

bool IsHostFailure(v1::FailureRecord::Kind kind) {
  return kind == v1::FailureRecord::KIND_CHECKPOINT || kind == v1::FailureRecord::KIND_START ||
         kind == v1::FailureRecord::KIND_NO_ROOM || kind == v1::FailureRecord::KIND_CHECK;
}

v1::AvoidedHost& AvoidedRecord(Job& job, const std::string& host) {
  auto* avoided = job.record.mutable_avoided();
  for (v1::AvoidedHost& known : *avoided) {
    if (known.host() == host) return known;
  }
  if (avoided->size() >= kAvoidedMax) {
    job.avoid_until.erase(HostName(avoided->begin()->host()));
    avoided->erase(avoided->begin());
  }
  v1::AvoidedHost& added = *avoided->Add();
  added.set_host(host);
  return added;
}

}  // namespace

void AvoidFailedHost(Turn& turn, Job& job) {
  const v1::FailureRecord& failure = job.record.failure();
  if (!IsHostFailure(failure.kind()) || failure.host().empty()) return;
  v1::AvoidedHost& avoided = AvoidedRecord(job, failure.host());
  avoided.set_reason(CutText(failure.text(), kAvoidReasonBytes));
  avoided.set_times(avoided.times() + 1);
  avoided.set_last_resort(failure.kind() == v1::FailureRecord::KIND_NO_ROOM);
  absl::Duration time = std::min(kMinAvoidTime * (1 << std::min(avoided.times() - 1, 10u)), kMaxAvoidTime);
  // Time does not help a host that lacks a program or a network interface, or that command.check has refused, so only a
  // new daemon or an operator ends the avoidance.
  const bool lasts = failure.kind() == v1::FailureRecord::KIND_START || failure.kind() == v1::FailureRecord::KIND_CHECK;
  avoided.set_lasts(lasts);
  if (lasts) time = absl::InfiniteDuration();
  job.avoid_until[HostName(failure.host())] = turn.now + time;
  turn.Save(job);
}

void StopAvoiding(Turn& turn, Job& job, const HostName& host) {
  if (job.avoid_until.erase(host) == 0) return;
  auto* avoided = job.record.mutable_avoided();
  for (int i = avoided->size() - 1; i >= 0; --i) {
    if (avoided->Get(i).host() == host.value()) avoided->DeleteSubrange(i, 1);
  }
  turn.Save(job);
}

void StopAvoidingAll(Turn& turn, Job& job) {
  if (job.avoid_until.empty()) return;
  job.avoid_until.clear();
  job.record.clear_avoided();
  turn.Save(job);
  turn.Schedule(job);
}

void ScheduleIfAvoidanceEnded(Turn& turn, Job& job) {
  bool ended = false;
  for (auto& [host, until] : job.avoid_until) {
    if (until == absl::InfinitePast() || turn.now < until) continue;
    until = absl::InfinitePast();  // the host may be used; the entry keeps how many times the host was avoided
    ended = true;
  }
  if (ended) turn.Schedule(job);
}

std::map<std::string, std::string> AvoidedNow(absl::Time now, const Job& job, bool with_last_resorts) {
  std::map<std::string, std::string> avoided;
  for (const v1::AvoidedHost& host : job.record.avoided()) {
    auto until = job.avoid_until.find(HostName(host.host()));
    if (until == job.avoid_until.end() || now >= until->second) continue;
    if (with_last_resorts || !host.last_resort()) avoided[host.host()] = host.reason();
  }
  return avoided;
}

}  // namespace trainyard
