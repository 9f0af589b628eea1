#include "worker/agent/value_relay.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/limits.h"

namespace trainyard::agent {
namespace {

// A coordinator answers in milliseconds; one that takes longer than this counts as away.
constexpr absl::Duration kPutWait = absl::Seconds(5);
// After each new attachment, all values are sent again, in messages of about this size.
constexpr size_t kPutBytes = 1 << 20;

void SetGroup(const GroupId& id, v1::PutValues& put) {
  put.set_job_id(id.first.value());
  put.set_generation(id.second.value());
}

void AddTo(v1::PutValues& put, const std::string& name, const std::string& value) {
  v1::StoreValue& added = *put.add_values();
  added.set_name(name);
  added.set_value(value);
}

absl::Status CoordinatorAway() {
  return absl::UnavailableError("the coordinator is away; the value will be put when it is back");
}

}  // namespace

void ValueRelay::Attach() {
  absl::MutexLock lock(&mu_);
  attached_ = true;
  for (const auto& [id, group] : groups_) Send(id, group);
}

// Sends all puts of a group, including those that an earlier coordinator has accepted.
void ValueRelay::Send(const GroupId& id, const Group& group) {
  v1::AgentMessage message;
  size_t bytes = 0;
  for (const auto& [name, put] : group.puts) {
    AddTo(*message.mutable_put(), name, put.value);
    bytes += name.size() + put.value.size();
    if (bytes < kPutBytes) continue;
    SetGroup(id, *message.mutable_put());
    send_(std::exchange(message, {}));
    bytes = 0;
  }
  if (!message.has_put()) return;
  SetGroup(id, *message.mutable_put());
  send_(std::move(message));
}

void ValueRelay::Detach() {
  EndedWaits ended;
  {
    absl::MutexLock lock(&mu_);
    attached_ = false;
    for (auto& [id, group] : groups_) {
      for (auto& [name, put] : group.puts) {
        put.known = false;
        EndWaits(put, CoordinatorAway(), ended);
      }
    }
  }
  CallDone(std::move(ended));
}

void ValueRelay::EndWaits(Value& value, const absl::Status& status, EndedWaits& ended) {
  for (Wait& wait : value.waits) ended.emplace_back(std::move(wait.done), status);
  value.waits.clear();
}

void ValueRelay::CallDone(EndedWaits ended) {
  for (auto& [done, status] : ended) done(std::move(status));
}

void ValueRelay::Receive(const v1::StoreValues& values) {
  GroupId id(JobId(values.job_id()), Generation(values.generation()));
  v1::StoreValueList list;
  if (!list.ParseFromString(values.values())) return;  // not from a Trainyard coordinator
  for (const v1::StoreValue& value : list.values()) cache_.Add(id, value.name(), value.value());
  EndedWaits ended;
  {
    absl::MutexLock lock(&mu_);
    auto at = groups_.find(id);
    if (at == groups_.end()) return;
    for (const v1::StoreValue& value : list.values()) {
      auto put = at->second.puts.find(value.name());
      if (put == at->second.puts.end()) continue;
      bool same = put->second.value == value.value();
      put->second.known = same;
      EndWaits(
          put->second,
          same ? absl::OkStatus()
               : absl::AlreadyExistsError(absl::StrCat("value '", value.name(), "' was already put with other bytes")),
          ended);
      if (!same) ErasePut(at->second, put);
    }
    for (const v1::RefusedValue& refused : values.refused()) {
      auto put = at->second.puts.find(refused.name());
      if (put == at->second.puts.end() || put->second.known) continue;
      EndWaits(put->second, absl::Status(static_cast<absl::StatusCode>(refused.code()), refused.message()), ended);
      ErasePut(at->second, put);
    }
  }
  CallDone(std::move(ended));
}

void ValueRelay::ErasePut(Group& group, std::map<std::string, Value>::iterator put) {
  group.bytes -= put->first.size() + put->second.value.size();
  group.puts.erase(put);
}

void ValueRelay::Follow(const GroupId& group) {
  absl::MutexLock lock(&mu_);
  groups_.try_emplace(group);
}

void ValueRelay::Seal(const GroupId& group) {
  cache_.Seal(group);
  EndedWaits ended;
  {
    absl::MutexLock lock(&mu_);
    auto at = groups_.find(group);
    if (at == groups_.end() || std::exchange(at->second.sealed, true)) return;
    for (auto& [name, put] : at->second.puts) {
      EndWaits(put, absl::FailedPreconditionError("the store is sealed: the group has formed"), ended);
    }
    at->second.puts.clear();
    at->second.bytes = 0;
  }
  CallDone(std::move(ended));
}

void ValueRelay::Forget(const GroupId& group) {
  EndedWaits ended;
  {
    absl::MutexLock lock(&mu_);
    auto at = groups_.find(group);
    if (at == groups_.end()) return;
    for (auto& [name, put] : at->second.puts) EndWaits(put, absl::AbortedError("the generation is over"), ended);
    groups_.erase(at);
  }
  CallDone(std::move(ended));
}

void ValueRelay::Put(const TrainerId& id, const std::string& name, const std::string& value, Done done) {
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    status = PutLocked(id, name, value, done);
  }
  if (done != nullptr) done(std::move(status));
}

absl::Status ValueRelay::PutLocked(const TrainerId& id, const std::string& name, const std::string& value, Done& done) {
  if (value.size() > limits::kStoreValueBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("value '", name, "' of ", value.size(), " bytes is larger than ", limits::kStoreValueBytes));
  }
  auto at = groups_.find(GroupOf(id));
  if (at == groups_.end()) return absl::AbortedError(absl::StrCat(Describe(id), " is over"));
  Group& group = at->second;
  if (group.sealed) {
    if (cache_.Holds(at->first, name, value)) return absl::OkStatus();
    return absl::FailedPreconditionError("the store is sealed: the group has formed");
  }
  auto [put, is_new] = group.puts.try_emplace(name);
  if (is_new && group.bytes + name.size() + value.size() > limits::kStoreGenerationBytes) {
    group.puts.erase(put);
    return absl::ResourceExhaustedError(
        absl::StrCat("value '", name, "' would exceed this host's limit for the values of a generation, ",
                     limits::kStoreGenerationBytes, " bytes"));
  }
  if (is_new) {
    put->second.value = value;
    group.bytes += name.size() + value.size();
  }
  if (put->second.value != value) {
    return absl::AlreadyExistsError(absl::StrCat("'", name, "' was put with another value"));
  }
  if (!attached_) return CoordinatorAway();
  if (put->second.known) return absl::OkStatus();
  // Sends the value even if it was sent before: the answer may have been lost with messages that a full stream dropped.
  v1::AgentMessage message;
  SetGroup(at->first, *message.mutable_put());
  AddTo(*message.mutable_put(), name, value);
  send_(std::move(message));
  put->second.waits.push_back({clock_.TimeNow() + kPutWait, std::exchange(done, nullptr)});
  return absl::OkStatus();
}

void ValueRelay::Expire(absl::Time now) {
  EndedWaits ended;
  {
    absl::MutexLock lock(&mu_);
    for (auto& [id, group] : groups_) {
      for (auto& [name, put] : group.puts) {
        for (Wait& wait : put.waits) {
          if (wait.deadline <= now) ended.emplace_back(std::move(wait.done), CoordinatorAway());
        }
        std::erase_if(put.waits, [now](const Wait& wait) { return wait.deadline <= now; });
      }
    }
  }
  CallDone(std::move(ended));
}

absl::Time ValueRelay::NextDeadline() const {
  absl::MutexLock lock(&mu_);
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, group] : groups_) {
    for (const auto& [name, put] : group.puts) {
      for (const Wait& wait : put.waits) next = std::min(next, wait.deadline);
    }
  }
  return next;
}

}  // namespace trainyard::agent
