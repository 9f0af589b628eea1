// HostValuesReceived: values that ranks exchange to connect. Each is written once and sent to every host of its
// generation, until the value store of the generation is sealed or the generation has ended. Checks which hosts may use
// the store.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/handlers.h"

namespace trainyard {
namespace {

constexpr size_t kValueNameBytes = 1'024;

// Returns OK, or why this host may not use the store of this generation.
absl::Status CheckAccess(const State& state, const Host& host, const JobId& id, uint64_t generation) {
  auto it = state.jobs.find(id);
  if (it == state.jobs.end()) return absl::AbortedError(absl::StrCat("there is no job ", id.value()));
  const Job& job = it->second;
  if (generation != job.head().generation() || IsFinal(job.state()) || job.current.nothing_desired) {
    return absl::AbortedError(absl::StrCat("generation ", generation, " of job ", id.value(), " is over; the job is ",
                                           StateName(job.state()), " at generation ", job.head().generation()));
  }
  if (job.ranks_on.contains(host.name)) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("job ", id.value(), " has no ranks on host ", host.name.value()));
}

// Returns OK if the value may be added; sets `known` if the same value is there already.
absl::Status CheckPut(const ValueStore& store, const v1::StoreValue& value, bool& known) {
  known = false;
  if (value.name().empty() || value.name().size() > kValueNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name of a value must have 1 to ", kValueNameBytes, " bytes, found ", value.name().size()));
  }
  if (value.value().size() > limits::kStoreValueBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("value '", value.name(), "' has ", value.value().size(),
                                                     " bytes; the limit is ", limits::kStoreValueBytes));
  }
  if (auto it = store.values.find(value.name()); it != store.values.end()) {
    known = it->second->value() == value.value();
    if (known) return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrCat("value '", value.name(), "' was already put with other bytes; a value is written once"));
  }
  if (store.sealed) return absl::FailedPreconditionError("the store is sealed: the group has formed");
  if (store.bytes + value.name().size() + value.value().size() > limits::kStoreGenerationBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("value '", value.name(),
                                                     "' would exceed the limit for the values of a generation, ",
                                                     limits::kStoreGenerationBytes, " bytes"));
  }
  return absl::OkStatus();
}

// Returns the sessions of the job's attached hosts. A thousand ranks put values for a thousand hosts, so the list is
// made again only after a stream has opened or ended, not for each put.
SessionList SessionsOf(const State& state, Job& job) {
  if (job.current.store.sessions == nullptr || job.current.store.session_changes_seen != state.session_changes) {
    auto list = std::make_shared<std::vector<SessionId>>();
    list->reserve(job.ranks_on.size());
    for (const auto& [name, ranks] : job.ranks_on) {
      const Host& host = state.hosts.at(name);
      if (host.attached()) list->push_back(host.session);
    }
    job.current.store.sessions = std::move(list);
    job.current.store.session_changes_seen = state.session_changes;
  }
  return job.current.store.sessions;
}

void Refuse(v1::StoreValues& answer, const v1::StoreValue& value, const absl::Status& status) {
  v1::RefusedValue& refused = *answer.add_refused();
  refused.set_name(value.name());
  refused.set_code(static_cast<uint32_t>(status.code()));
  refused.set_message(std::string(status.message()));
}

// Returns whether the store has grown.
bool Add(Job& job, v1::StoreValue& value, v1::StoreValues& answer) {
  bool known = false;
  absl::Status status = CheckPut(job.current.store, value, known);
  if (!status.ok()) Refuse(answer, value, status);
  if (!status.ok() || known) return false;
  auto shared = std::make_shared<const v1::StoreValue>(std::move(value));
  job.current.store.bytes += shared->name().size() + shared->value().size();
  job.current.store.values[shared->name()] = shared;
  if (job.current.store.log == nullptr)
    job.current.store.log = std::make_shared<ValueLog>(job.id, job.head().generation());
  job.current.store.log->values.push_back(std::move(shared));
  return true;
}

}  // namespace

void Run(Turn& turn, HostValuesReceived& event) {
  auto session = turn.state.sessions.find(event.session);
  if (session == turn.state.sessions.end()) return;  // an old stream: the daemon puts the values again on its new one
  const Host& host = turn.state.hosts.at(session->second);
  v1::PutValues& put = event.put;
  SendToHost answer{event.session, {}};
  v1::StoreValues& values = *answer.message.mutable_values();
  JobId id(put.job_id());
  absl::Status status = CheckAccess(turn.state, host, id, put.generation());
  if (status.ok()) {
    Job& job = turn.state.jobs.at(id);
    bool grown = false;
    for (v1::StoreValue& value : *put.mutable_values()) grown = Add(job, value, values) || grown;
    if (grown) {
      job.current.progress_at = turn.now;
      turn.Emit(SendValues{job.current.store.log, SessionsOf(turn.state, job)});
    }
  } else {
    for (const v1::StoreValue& value : put.values()) Refuse(values, value, status);
  }
  if (values.refused().empty()) return;
  values.set_job_id(put.job_id());
  values.set_generation(put.generation());
  turn.Emit(std::move(answer));
}

}  // namespace trainyard
