#include "worker/agent/value_relay.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/rpc_status.h"

namespace trainyard::agent {
namespace {

// A coordinator commits in milliseconds; one that does not answer for so long is as good as away.
constexpr std::chrono::seconds kPutDeadline(5);
// A stream that breaks while the session stands is the network's or the coordinator's trouble of a moment.
constexpr absl::Duration kRetryWait = absl::Milliseconds(200);

}  // namespace

// One WatchValues stream. Deletes itself when it is done.
class ValueRelay::Watch final : public grpc::ClientReadReactor<v1::StoreValues> {
 public:
  Watch(ValueRelay& relay, GroupId group) : relay_(relay), group_(std::move(group)) {}

  void Start(v1::AgentService::Stub& stub, uint64_t incarnation) {
    request_.set_job_id(group_.first.value());
    request_.set_generation(group_.second.value());
    request_.set_host_incarnation(incarnation);
    stub.async()->WatchValues(&context_, &request_, this);
    StartRead(&values_);
    StartCall();
  }

  grpc::ClientContext* context() { return &context_; }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    for (const v1::StoreValue& value : values_.values()) relay_.cache_.Add(group_, value.name(), value.value());
    StartRead(&values_);
  }

  void OnDone(const grpc::Status& status) override {
    relay_.EndWatch(this, group_, FromGrpcStatus(status));
    ValueRelay& relay = relay_;
    delete this;
    relay.CallDeleted();
  }

 private:
  ValueRelay& relay_;
  const GroupId group_;
  grpc::ClientContext context_;
  v1::WatchValuesRequest request_;
  v1::StoreValues values_;
};

struct ValueRelay::PutCall {
  grpc::ClientContext context;
  v1::PutValueRequest request;
  v1::PutValueResponse response;
  Done done;
};

void ValueRelay::Shutdown() {
  Detach();
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(
      +[](int* undeleted) { return *undeleted == 0; }, &undeleted_calls_));
}

void ValueRelay::Attach(std::shared_ptr<grpc::Channel> channel) {
  absl::MutexLock lock(&mu_);
  stub_ = v1::AgentService::NewStub(channel);
  for (auto& [id, group] : groups_) {
    if (group.sealed) continue;
    for (const auto& [name, request] : group.puts) StartPut(request, [](absl::Status) {});
    StartWatch(id);
  }
}

void ValueRelay::RetryWhenDue(absl::Time now) {
  absl::MutexLock lock(&mu_);
  now_ = now;
  for (auto& [id, group] : groups_) {
    if (group.retry_at > now) continue;
    group.retry_at = absl::InfiniteFuture();
    if (stub_ != nullptr && !group.sealed && !watches_.contains(id)) StartWatch(id);
  }
}

absl::Time ValueRelay::NextRetry() const {
  absl::MutexLock lock(&mu_);
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, group] : groups_) next = std::min(next, group.retry_at);
  return next;
}

void ValueRelay::Detach() {
  absl::MutexLock lock(&mu_);
  stub_ = nullptr;
  watches_.clear();
  for (grpc::ClientContext* context : calls_) context->TryCancel();
}

void ValueRelay::Follow(const GroupId& group) {
  absl::MutexLock lock(&mu_);
  if (groups_.try_emplace(group).second && stub_ != nullptr) StartWatch(group);
}

void ValueRelay::Forget(const GroupId& group) {
  absl::MutexLock lock(&mu_);
  groups_.erase(group);
  auto at = watches_.find(group);
  if (at == watches_.end()) return;
  at->second->context()->TryCancel();
  watches_.erase(at);
}

void ValueRelay::StartWatch(const GroupId& group) {
  Watch* watch = new Watch(*this, group);  // until OnDone
  watches_[group] = watch;
  calls_.insert(watch->context());
  ++undeleted_calls_;
  watch->Start(*stub_, incarnation_.value());
}

void ValueRelay::EndWatch(Watch* watch, const GroupId& group, const absl::Status& status) {
  bool current;
  {
    absl::MutexLock lock(&mu_);
    auto at = watches_.find(group);
    current = at != watches_.end() && at->second == watch;
    if (current) watches_.erase(at);
    auto followed = groups_.find(group);
    if (current && followed != groups_.end()) {
      followed->second.sealed = status.ok();
      // Nobody needs them any more: the group has formed.
      if (status.ok()) followed->second.puts.clear();
      bool over = status.ok() || absl::IsAborted(status) || absl::IsNotFound(status);
      if (!over) followed->second.retry_at = now_ + kRetryWait;
    }
  }
  wake_();
  // A stream that was given up says nothing about the group; a broken one is opened again, here or after re-attaching.
  if (current && status.ok()) cache_.Seal(group);
  if (current && (absl::IsAborted(status) || absl::IsNotFound(status))) {
    cache_.End(group, std::string(status.message()));
  }
  ForgetCall(watch->context());
}

void ValueRelay::ForgetCall(grpc::ClientContext* context) {
  absl::MutexLock lock(&mu_);
  calls_.erase(context);
}

void ValueRelay::CallDeleted() {
  absl::MutexLock lock(&mu_);
  --undeleted_calls_;
}

void ValueRelay::Put(const TrainerId& id, const std::string& name, const std::string& value, Done done) {
  if (value.size() > limits::kStoreValueBytes) {
    done(absl::ResourceExhaustedError(
        absl::StrCat("value '", name, "' of ", value.size(), " bytes is larger than ", limits::kStoreValueBytes)));
    return;
  }
  v1::PutValueRequest request;
  *request.mutable_key() = ToProto(id);
  request.set_host_incarnation(incarnation_.value());
  request.set_name(name);
  request.set_value(value);
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    auto at = groups_.find(GroupOf(id));
    if (at == groups_.end()) {
      refused = absl::AbortedError(absl::StrCat(Describe(id), " is over"));
    } else {
      auto& puts = at->second.puts;
      // A sealed store knows by itself what it has.
      auto put = at->second.sealed ? puts.end() : puts.try_emplace(name, request).first;
      if (put != puts.end() && put->second.value() != value) {
        refused = absl::AlreadyExistsError(absl::StrCat("'", name, "' was put with another value"));
      } else if (stub_ == nullptr) {
        refused = absl::UnavailableError("the coordinator is away; the value will be put when it is back");
      } else {
        return StartPut(request, std::move(done));
      }
    }
  }
  done(std::move(refused));
}

void ValueRelay::StartPut(const v1::PutValueRequest& request, Done done) {
  PutCall* call = new PutCall;  // until its callback
  call->request = request;
  call->done = std::move(done);
  call->context.set_deadline(std::chrono::system_clock::now() + kPutDeadline);
  calls_.insert(&call->context);
  ++undeleted_calls_;
  stub_->async()->PutValue(&call->context, &call->request, &call->response, [this, call](grpc::Status status) {
    std::unique_ptr<PutCall> owned(call);
    const v1::PutValueRequest& put = call->request;
    // Ranks of this host need not wait for the coordinator to send it back.
    if (status.ok()) cache_.Add(GroupOf(FromProto(put.key())), put.name(), put.value());
    absl::Status result = FromGrpcStatus(status);
    if (absl::IsDeadlineExceeded(result) || absl::IsCancelled(result)) {
      result = absl::UnavailableError("the coordinator did not answer; the value will be put when it is back");
    }
    call->done(std::move(result));
    ForgetCall(&call->context);
    owned.reset();
    CallDeleted();
  });
}

}  // namespace trainyard::agent
