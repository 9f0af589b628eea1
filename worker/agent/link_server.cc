#include "worker/agent/link_server.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/limits.h"
#include "common/rpc_credentials.h"
#include "common/rpc_status.h"
#include "trainyard/v1/trainer.grpc.pb.h"

namespace trainyard::agent {
namespace {

constexpr uint32_t kWaitMsMax = 60'000;

class Server;

// One trainer's connection. Deletes itself when gRPC has finished with it.
class Connection final : public grpc::ServerBidiReactor<v1::TrainerMessage, v1::LinkMessage> {
 public:
  Connection(Server& server, LinkId link) : server_(server), link_(link) { StartRead(&incoming_); }

  void Send(v1::LinkMessage message) {
    absl::MutexLock lock(&mu_);
    if (closing_) return;
    outgoing_.push_back(std::move(message));
    WriteNext();
  }

  // Messages sent before are still delivered.
  void Close(absl::Status status) {
    absl::MutexLock lock(&mu_);
    if (closing_) return;
    closing_ = true;
    status_ = std::move(status);
    WriteNext();
  }

  void ReadMore() {
    absl::MutexLock lock(&mu_);
    if (!closing_) StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    outgoing_.pop_front();
    if (!ok) outgoing_.clear();
    WriteNext();
  }

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || finished_) return;
    if (!outgoing_.empty()) {
      writing_ = true;
      StartWrite(&outgoing_.front());
    } else if (closing_) {
      finished_ = true;
      Finish(ToGrpcStatus(status_));
    }
  }

  Server& server_;
  const LinkId link_;
  v1::TrainerMessage incoming_;
  bool registered_ = false;  // used by OnReadDone only

  absl::Mutex mu_;
  std::deque<v1::LinkMessage> outgoing_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

// Refuses a connection above the limit. Deletes itself when gRPC has finished with it.
class Refusal final : public grpc::ServerBidiReactor<v1::TrainerMessage, v1::LinkMessage> {
 public:
  Refusal() {
    Finish(ToGrpcStatus(
        absl::ResourceExhaustedError(absl::StrCat("this daemon has ", limits::kLinks, " links, which is the limit"))));
  }
  void OnDone() override { delete this; }
};

// A get that may wait. Deletes itself when gRPC has finished with it.
class PendingGet final : public grpc::ServerUnaryReactor {
 public:
  PendingGet(ValueCache& cache, v1::TrainerGetResponse* response) : cache_(cache), response_(response) {}

  void Begin(const GroupId& group, const std::string& name, absl::Time deadline) {
    // The answer and a cancellation may come at the same time, from two threads: the first one finishes the call. The
    // second must not touch this object, which may be deleted already.
    std::shared_ptr<Shared> shared = shared_;
    ValueCache::WaitId wait = cache_.Get(group, name, deadline, [this, shared](absl::StatusOr<std::string> value) {
      if (shared->finished.exchange(true)) return;
      const absl::Status status = value.status();
      if (value.ok()) response_->set_value(*std::move(value));
      Finish(ToGrpcStatus(status));
    });
    shared->wait = wait.value();
  }

  void Refuse(const absl::Status& status) {
    shared_->finished = true;
    Finish(ToGrpcStatus(status));
  }

  void OnCancel() override {
    cache_.Cancel(ValueCache::WaitId(shared_->wait));
    if (!shared_->finished.exchange(true)) Finish(grpc::Status::CANCELLED);
  }

  void OnDone() override { delete this; }

 private:
  struct Shared {
    std::atomic<bool> finished = false;
    std::atomic<uint64_t> wait = 0;
  };

  ValueCache& cache_;
  v1::TrainerGetResponse* const response_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
};

class Server final : public LinkServer, public v1::TrainerLink::CallbackService {
 public:
  explicit Server(Options options) : options_(std::move(options)) {}

  ~Server() override {
    if (server_ == nullptr) return;
    options_.listener->Stop();
    // Cancels all calls under way, and waits for them.
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  absl::Status Listen() {
    grpc::ServerBuilder builder;
    builder.SetMaxReceiveMessageSize(limits::kGrpcMessageBytes);
    builder.SetMaxSendMessageSize(limits::kGrpcMessageBytes);
    accepted_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, MakeServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return absl::InternalError("gRPC did not start the trainers' server, and has logged why");
    options_.listener->Start([this](int listener_fd, int fd) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.listener_fd = listener_fd;
      connection.fd = fd;
      accepted_->HandleNewConnection(&connection);
    });
    return absl::OkStatus();
  }

  // LinkServer.
  void Send(LinkId link, v1::LinkMessage message) override {
    absl::MutexLock lock(&mu_);
    if (auto at = connections_.find(link); at != connections_.end()) at->second->Send(std::move(message));
  }
  void Close(LinkId link, absl::Status status) override {
    absl::MutexLock lock(&mu_);
    if (auto at = connections_.find(link); at != connections_.end()) at->second->Close(std::move(status));
  }
  void ReadMore(LinkId link) override {
    absl::MutexLock lock(&mu_);
    if (auto at = connections_.find(link); at != connections_.end()) at->second->ReadMore();
  }

  // TrainerLink.
  grpc::ServerBidiReactor<v1::TrainerMessage, v1::LinkMessage>* Connect(grpc::CallbackServerContext*) override {
    absl::MutexLock lock(&mu_);
    if (connections_.size() >= limits::kLinks) return new Refusal;  // deletes itself in OnDone
    LinkId link(++last_link_);
    Connection* connection = new Connection(*this, link);
    connections_[link] = connection;
    return connection;
  }

  grpc::ServerUnaryReactor* PutValue(grpc::CallbackServerContext* context, const v1::TrainerPutRequest* request,
                                     v1::TrainerPutResponse*) override {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    TrainerId id = FromProto(request->key());
    absl::Status allowed = options_.cache.Check(id, request->token());
    if (!allowed.ok()) {
      reactor->Finish(ToGrpcStatus(allowed));
      return reactor;
    }
    options_.relay.Put(id, request->name(), request->value(),
                       [reactor](absl::Status status) { reactor->Finish(ToGrpcStatus(status)); });
    return reactor;
  }

  grpc::ServerUnaryReactor* GetValue(grpc::CallbackServerContext*, const v1::TrainerGetRequest* request,
                                     v1::TrainerGetResponse* response) override {
    PendingGet* get = new PendingGet(options_.cache, response);  // deletes itself in OnDone
    TrainerId id = FromProto(request->key());
    absl::Status allowed = options_.cache.Check(id, request->token());
    if (!allowed.ok()) {
      get->Refuse(allowed);
      return get;
    }
    absl::Duration wait = absl::Milliseconds(std::min(request->wait_ms(), kWaitMsMax));
    get->Begin(GroupOf(id), request->name(), options_.clock.TimeNow() + wait);
    options_.wake();
    return get;
  }

  void Post(Event event) { options_.post(std::move(event)); }

  void Remove(LinkId link) {
    absl::MutexLock lock(&mu_);
    connections_.erase(link);
  }

 private:
  const Options options_;
  absl::Mutex mu_;
  std::map<LinkId, Connection*> connections_ ABSL_GUARDED_BY(mu_);
  uint64_t last_link_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> accepted_;
  std::unique_ptr<grpc::Server> server_;
};

void Connection::OnReadDone(bool ok) {
  if (!ok) return Close(absl::OkStatus());
  if (!registered_) {
    if (!incoming_.has_register_()) return Close(absl::InvalidArgumentError("the first message must be `register`"));
    registered_ = true;
    return server_.Post(LinkOpened{link_, std::move(*incoming_.mutable_register_())});
  }
  if (incoming_.has_fact()) return server_.Post(LinkFact{link_, std::move(*incoming_.mutable_fact())});
  if (incoming_.has_report()) return server_.Post(LinkReport{link_, std::move(*incoming_.mutable_report())});
  // Perhaps a message of a newer trainer: unknown messages are ignored.
  ReadMore();
}

void Connection::OnCancel() { Close(absl::CancelledError("the connection has ended")); }

void Connection::OnDone() {
  server_.Remove(link_);
  server_.Post(LinkClosed{link_});
  delete this;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinkServer>> LinkServer::Start(Options options) {
  auto server = std::make_unique<Server>(std::move(options));
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  return server;
}

}  // namespace trainyard::agent
