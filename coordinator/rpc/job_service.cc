#include "coordinator/rpc/job_service.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/ids.h"
#include "coordinator/handlers/check_request.h"
#include "coordinator/rpc/log_flow.h"
#include "coordinator/rpc/stream_writer.h"

namespace trainyard {
namespace {

constexpr int kJobIdLength = 12;  // 60 bits: practically unique within a cluster

}  // namespace

// One Watch stream. It requests a batch from the core, writes it, and requests the next; so it holds only one batch,
// however slow its reader is.
class WatchStream final : public grpc::ServerWriteReactor<v1::Event> {
 public:
  WatchStream(const RpcContext& context, Registry<WatchId, WatchStream>& registry, StreamQuota::Slot slot,
              const v1::WatchRequest& request)
      : context_(context),
        registry_(registry),
        id_(registry.NewId()),
        job_(request.job_id()),
        position_{
            .sequence = request.after_sequence(), .step = request.after_step(), .eval_step = request.after_eval_step()},
        allow_gap_(request.allow_gap()),
        slot_(std::move(slot)),
        writer_(this) {}

  void Start(std::shared_ptr<WatchStream> self, const v1::WatchRequest& request) {
    registry_.Add(id_, std::move(self));
    StartSendInitialMetadata();  // the client learns our version before the first event
    absl::Status status = CheckRequest(request);
    status.ok() ? RequestBatch(true) : End(status);
  }

  void Deliver(WatchBatch batch) {
    // The count added by RequestBatch remains until all events are queued, so that an immediately completed write does
    // not request the next batch too early.
    unwritten_.fetch_add(batch.events.size());
    last_ = batch.last;
    position_ = batch.position;  // read after the last event of the batch has been written, which happens later
    for (EventPtr& event : batch.events) writer_.Push(std::move(event));
    if (batch.last) writer_.End(grpc::Status::OK);
    Written();
  }

  // Sends an event in addition to those of the core.
  void Send(EventPtr event) {
    unwritten_.fetch_add(1);
    writer_.Push(std::move(event));
  }

  void End(const absl::Status& status) {
    code_.store(status.code());
    writer_.Abort(ToGrpcAnswer(status));
  }

  void OnWriteDone(bool ok) override {
    writer_.OnWriteDone(ok);
    Written();
  }
  void OnCancel() override {
    code_.store(absl::StatusCode::kCancelled);
    context_.queue->Post(WatchClosed{id_, job_});
    writer_.Abort(ToGrpcAnswer(absl::CancelledError("cancelled")));
  }
  void OnDone() override {
    context_.queue->Post(WatchClosed{id_, job_});
    context_.Count("Watch", code_.load());
    registry_.Remove(id_);  // may be the last reference: must come last
  }

 private:
  // Counts as one unwritten event until the core has answered.
  void RequestBatch(bool first) {
    unwritten_.fetch_add(1);
    if (!context_.queue->TryPost(WatchJob{id_, job_, position_, first, allow_gap_})) End(OverloadedStatus());
  }
  void Written() {
    if (unwritten_.fetch_sub(1) == 1 && !last_) RequestBatch(false);
  }

  const RpcContext& context_;
  Registry<WatchId, WatchStream>& registry_;
  const WatchId id_;
  const JobId job_;
  WatchPosition position_;
  const bool allow_gap_;
  const StreamQuota::Slot slot_;
  std::atomic<size_t> unwritten_{0};
  std::atomic<bool> last_{false};
  std::atomic<absl::StatusCode> code_{absl::StatusCode::kOk};
  StreamWriter<WatchStream, v1::Event> writer_;
};

// One Logs stream. Lines arrive through the bridge; if too many wait, the hosts that push them must wait.
class LogsStream final : public grpc::ServerWriteReactor<v1::LogLine>, public LogSink {
 public:
  LogsStream(const RpcContext& context, Registry<ReaderId, LogsStream>& registry, StreamQuota::Slot slot,
             LogBridge& bridge)
      : context_(context),
        registry_(registry),
        bridge_(bridge),
        id_(registry.NewId()),
        slot_(std::move(slot)),
        writer_(this),
        flow_([this] { return writer_.waiting(); }) {}

  void Start(std::shared_ptr<LogsStream> self, const v1::LogsRequest& request) {
    registry_.Add(id_, std::move(self));
    StartSendInitialMetadata();
    if (absl::Status status = CheckRequest(request); !status.ok()) return End(status);
    if (!context_.queue->TryPost(OpenLogs{id_, request})) End(OverloadedStatus());
  }

  bool Write(v1::LogChunk chunk, std::function<void()> resume) override {
    for (v1::LogLine& line : *chunk.mutable_lines()) {
      writer_.Push(std::make_shared<const v1::LogLine>(std::move(line)));
    }
    return flow_.MayContinue(std::move(resume));
  }

  void End(const absl::Status& status) {
    code_.store(status.code());
    writer_.End(ToGrpcAnswer(status));
  }

  void OnWriteDone(bool ok) override {
    writer_.OnWriteDone(ok);
    flow_.Continue();
  }
  void OnCancel() override {
    code_.store(absl::StatusCode::kCancelled);
    writer_.Abort(ToGrpcAnswer(absl::CancelledError("cancelled")));
  }
  void OnDone() override {
    context_.queue->Post(LogsClosed{id_});
    context_.Count("Logs", code_.load());
    std::shared_ptr<LogsStream> self = registry_.Remove(id_);
    bridge_.Close(self);
    flow_.Continue();
  }

 private:
  const RpcContext& context_;
  Registry<ReaderId, LogsStream>& registry_;
  LogBridge& bridge_;
  const ReaderId id_;
  const StreamQuota::Slot slot_;
  std::atomic<absl::StatusCode> code_{absl::StatusCode::kOk};
  StreamWriter<LogsStream, v1::LogLine> writer_;
  LogFlow flow_;  // uses writer_
};

JobServiceImpl::JobServiceImpl(const RpcContext& context, CallTable& calls, LogBridge& bridge)
    : context_(context), calls_(calls), bridge_(bridge) {}
JobServiceImpl::~JobServiceImpl() = default;

grpc::ServerUnaryReactor* JobServiceImpl::Submit(grpc::CallbackServerContext* context, const v1::SubmitRequest* request,
                                                 v1::SubmitResponse* response) {
  return calls_.Start("Submit", context, *request, response, [request](CallId call) {
    return SubmitJob{call, *request, JobId(RandomId(kJobIdLength))};
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::Get(grpc::CallbackServerContext* context, const v1::GetRequest* request,
                                              v1::Job* response) {
  return calls_.Start("Get", context, *request, response, [request](CallId call) {
    return GetJob{call, JobId(request->job_id())};
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::List(grpc::CallbackServerContext* context, const v1::ListRequest* request,
                                               v1::ListResponse* response) {
  return calls_.Start("List", context, *request, response, [request](CallId call) { return ListJobs{call, *request}; });
}

grpc::ServerUnaryReactor* JobServiceImpl::FindJobs(grpc::CallbackServerContext* context,
                                                   const v1::FindJobsRequest* request, v1::FindJobsResponse* response) {
  return calls_.Start("FindJobs", context, *request, response, [request](CallId call) {
    return trainyard::FindJobs{call, *request};
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::Cancel(grpc::CallbackServerContext* context, const v1::CancelRequest* request,
                                                 v1::Job* response) {
  return calls_.Start("Cancel", context, *request, response, [request](CallId call) {
    return CancelJob{call, JobId(request->job_id()), request->reason(), request->save(), request->expected_version()};
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::GetServerInfo(grpc::CallbackServerContext* context,
                                                        const v1::GetServerInfoRequest* request,
                                                        v1::ServerInfo* response) {
  return calls_.Start("GetServerInfo", context, *request, response,
                      [](CallId call) { return trainyard::GetServerInfo{call}; });
}

grpc::ServerUnaryReactor* JobServiceImpl::ListHosts(grpc::CallbackServerContext* context,
                                                    const v1::ListHostsRequest* request,
                                                    v1::ListHostsResponse* response) {
  return calls_.Start("ListHosts", context, *request, response, [request](CallId call) {
    return trainyard::ListHosts{call, *request};
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::Restart(grpc::CallbackServerContext* context,
                                                  const v1::RestartRequest* request, v1::Job* response) {
  return calls_.Start("Restart", context, *request, response, [request](CallId call) {
    return RestartJob{call, *request};
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::Save(grpc::CallbackServerContext* context, const v1::SaveRequest* request,
                                               v1::Job* response) {
  return calls_.Start("Save", context, *request, response, [request](CallId call) { return SaveJob{call, *request}; });
}

grpc::ServerUnaryReactor* JobServiceImpl::Pause(grpc::CallbackServerContext* context, const v1::PauseRequest* request,
                                                v1::Job* response) {
  return calls_.Start("Pause", context, *request, response, [request](CallId call) {
    return PauseJob{call, *request};
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::Resume(grpc::CallbackServerContext* context, const v1::ResumeRequest* request,
                                                 v1::Job* response) {
  return calls_.Start("Resume", context, *request, response, [request](CallId call) {
    return ResumeJob{call, *request};
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::SetPriority(grpc::CallbackServerContext* context,
                                                      const v1::SetPriorityRequest* request, v1::Job* response) {
  return calls_.Start("SetPriority", context, *request, response, [request](CallId call) {
    return trainyard::SetPriority{call, *request};
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::GetQueue(grpc::CallbackServerContext* context,
                                                   const v1::GetQueueRequest* request, v1::GetQueueResponse* response) {
  return calls_.Start("GetQueue", context, *request, response, [request](CallId call) {
    return trainyard::GetQueue{call, *request};
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::SetHost(grpc::CallbackServerContext* context,
                                                  const v1::SetHostRequest* request, v1::HostStatus* response) {
  return calls_.Start("SetHost", context, *request, response, [request](CallId call) {
    return trainyard::SetHost{call, *request};
  });
}

grpc::ServerUnaryReactor* JobServiceImpl::ListEvents(grpc::CallbackServerContext* context,
                                                     const v1::ListEventsRequest* request,
                                                     v1::ListEventsResponse* response) {
  return calls_.Start("ListEvents", context, *request, response, [request](CallId call) {
    return trainyard::ListEvents{call, *request};
  });
}

grpc::ServerWriteReactor<v1::Event>* JobServiceImpl::Watch(grpc::CallbackServerContext* context,
                                                           const v1::WatchRequest* request) {
  if (auto* refused =
          context_.Refuse<grpc::ServerWriteReactor<v1::Event>>("Watch", *context, NeedOfJobMethod("Watch"))) {
    return refused;
  }
  absl::StatusOr<StreamQuota::Slot> slot = quota_.Open(context->peer());
  if (!slot.ok()) return context_.Refuse<grpc::ServerWriteReactor<v1::Event>>("Watch", slot.status());
  auto stream = std::make_shared<WatchStream>(context_, watches_, *std::move(slot), *request);
  WatchStream* reactor = stream.get();
  absl::MutexLock lock(&stalled_mu_);
  reactor->Start(stream, *request);
  if (stalled_ != nullptr) stream->Send(stalled_);
  return reactor;
}

grpc::ServerWriteReactor<v1::LogLine>* JobServiceImpl::Logs(grpc::CallbackServerContext* context,
                                                            const v1::LogsRequest* request) {
  if (auto* refused =
          context_.Refuse<grpc::ServerWriteReactor<v1::LogLine>>("Logs", *context, NeedOfJobMethod("Logs"))) {
    return refused;
  }
  absl::StatusOr<StreamQuota::Slot> slot = quota_.Open(context->peer());
  if (!slot.ok()) return context_.Refuse<grpc::ServerWriteReactor<v1::LogLine>>("Logs", slot.status());
  auto stream = std::make_shared<LogsStream>(context_, readers_, *std::move(slot), bridge_);
  LogsStream* reactor = stream.get();
  reactor->Start(std::move(stream), *request);
  return reactor;
}

void JobServiceImpl::Release(WatchBatch batch) {
  if (auto stream = watches_.Find(batch.watch)) stream->Deliver(std::move(batch));
}

void JobServiceImpl::Release(EndWatch end) {
  if (auto stream = watches_.Find(end.watch)) stream->End(end.status);
}

void JobServiceImpl::SetStalled(const std::string& why) {
  auto event = std::make_shared<v1::Event>();
  event->set_time_unix_ms(absl::ToUnixMillis(absl::Now()));
  event->mutable_notice()->set_level(why.empty() ? "info" : "warning");
  event->mutable_notice()->set_text(
      why.empty()
          ? "the coordinator can write to its store again"
          : absl::StrCat("the coordinator cannot write to its store (", why,
                         "): free space on its disk. Training continues meanwhile, but its steps are shown and its "
                         "end is recorded only when there is space"));
  absl::MutexLock lock(&stalled_mu_);
  for (auto& [id, stream] : watches_.All()) stream->Send(event);
  stalled_ = why.empty() ? nullptr : std::move(event);
}

void JobServiceImpl::Release(LogsOpened opened) {
  auto stream = readers_.Find(opened.reader);
  if (stream == nullptr) return;
  bridge_.Open(opened.request_ids, stream);
  // If the stream has ended in between, its OnDone may have closed its requests before they were opened.
  if (readers_.Find(opened.reader) == nullptr) bridge_.Close(stream);
}

void JobServiceImpl::Release(EndLogs end) {
  if (auto stream = readers_.Find(end.reader)) {
    bridge_.Close(stream);
    stream->End(end.status);
  }
}

void JobServiceImpl::EndAll(const absl::Status& status) {
  for (auto& [id, stream] : watches_.All()) stream->End(status);
  for (auto& [id, stream] : readers_.All()) stream->End(status);
}

}  // namespace trainyard
