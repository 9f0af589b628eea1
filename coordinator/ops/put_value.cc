// PutValue: a rendezvous value, written once. Told to every watcher of the generation's store at once, whole.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/core/turn.h"
#include "coordinator/ops/ops.h"

namespace trainyard {
namespace {

constexpr size_t kNameBytes = 1'024;

// OK where the value is to be added; `known` is set where the same value is there already.
absl::Status CheckPut(const ValueStore& store, const v1::PutValueRequest& request, bool& known) {
  known = false;
  if (request.name().empty() || request.name().size() > kNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a value's name has 1 to ", kNameBytes, " bytes"));
  }
  if (request.value().size() > limits::kStoreValueBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("value '", request.name(), "' has ", request.value().size(),
                                                     " bytes, the limit is ", limits::kStoreValueBytes));
  }
  if (auto it = store.values.find(request.name()); it != store.values.end()) {
    known = it->second->value() == request.value();
    if (known) return absl::OkStatus();
    return absl::AlreadyExistsError(
        absl::StrCat("key '", request.name(), "' holds another value; keys are written once"));
  }
  if (store.sealed) return absl::FailedPreconditionError("the store is sealed: the group has formed");
  if (store.bytes + request.value().size() > limits::kStoreGenerationBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("value '", request.name(), "' would take the generation beyond ",
                                                     limits::kStoreGenerationBytes, " bytes"));
  }
  return absl::OkStatus();
}

// A thousand ranks put while a thousand hosts watch: the list is made once, not once a put.
WatchList WatchersOf(ValueStore& store) {
  if (store.watcher_list == nullptr) {
    auto list = std::make_shared<std::vector<WatchId>>();
    list->reserve(store.watchers.size());
    for (const auto& [watch, incarnation] : store.watchers) list->push_back(watch);
    store.watcher_list = std::move(list);
  }
  return store.watcher_list;
}

}  // namespace

void Run(Turn& turn, PutValue& event) {
  const v1::TrainerKey& key = event.request.key();
  JobId id(key.job_id());
  absl::Status status =
      CheckStoreAccess(turn.state, id, key.generation(), Incarnation(event.request.host_incarnation()));
  if (!status.ok()) {
    turn.Emit(Reply{event.call, std::move(status), {}});
    return;
  }
  Job& job = turn.state.jobs.at(id);
  bool known = false;
  status = CheckPut(job.store, event.request, known);
  if (!status.ok() || known) {
    turn.Emit(Reply{event.call, status, v1::PutValueResponse()});
    return;
  }
  v1::StoreValue value;
  value.set_name(std::move(*event.request.mutable_name()));
  value.set_value(std::move(*event.request.mutable_value()));
  auto shared = std::make_shared<const v1::StoreValue>(std::move(value));
  job.store.bytes += shared->value().size();
  job.store.values[shared->name()] = shared;
  job.store.log->values.push_back(shared);
  job.progress_at = turn.now;
  if (!job.store.watchers.empty()) turn.Emit(SendValues{job.store.log, WatchersOf(job.store)});
  turn.Emit(Reply{event.call, absl::OkStatus(), v1::PutValueResponse()});
}

}  // namespace trainyard
