// JobService: the API for trainctl and other programs. Each call becomes an event, and each answer is a reply of the
// core. Watch and Logs are streams with ids, which the core's effects name. No decisions are made here.
//
// Thread-safe: gRPC calls from many threads; effects come from the loop's thread.
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/core/effect.h"
#include "coordinator/rpc/call_table.h"
#include "coordinator/rpc/log_bridge.h"
#include "coordinator/rpc/registry.h"
#include "coordinator/rpc/stream_quota.h"
#include "trainyard/v1/service.grpc.pb.h"

namespace trainyard {

class WatchStream;
class LogsStream;

class JobServiceImpl final : public v1::JobService::CallbackService {
 public:
  JobServiceImpl(const RpcContext& context, CallTable& calls, LogBridge& bridge);
  ~JobServiceImpl() override;

  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext* context, const v1::SubmitRequest* request,
                                   v1::SubmitResponse* response) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const v1::GetRequest* request,
                                v1::Job* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context, const v1::ListRequest* request,
                                 v1::ListResponse* response) override;
  grpc::ServerUnaryReactor* FindJobs(grpc::CallbackServerContext* context, const v1::FindJobsRequest* request,
                                     v1::FindJobsResponse* response) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context, const v1::CancelRequest* request,
                                   v1::Job* response) override;
  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context, const v1::GetServerInfoRequest* request,
                                          v1::ServerInfo* response) override;
  grpc::ServerUnaryReactor* ListHosts(grpc::CallbackServerContext* context, const v1::ListHostsRequest* request,
                                      v1::ListHostsResponse* response) override;
  grpc::ServerUnaryReactor* Restart(grpc::CallbackServerContext* context, const v1::RestartRequest* request,
                                    v1::Job* response) override;
  grpc::ServerUnaryReactor* Save(grpc::CallbackServerContext* context, const v1::SaveRequest* request,
                                 v1::Job* response) override;
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context, const v1::PauseRequest* request,
                                  v1::Job* response) override;
  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* context, const v1::ResumeRequest* request,
                                   v1::Job* response) override;
  grpc::ServerUnaryReactor* SetPriority(grpc::CallbackServerContext* context, const v1::SetPriorityRequest* request,
                                        v1::Job* response) override;
  grpc::ServerUnaryReactor* GetQueue(grpc::CallbackServerContext* context, const v1::GetQueueRequest* request,
                                     v1::GetQueueResponse* response) override;
  grpc::ServerUnaryReactor* SetHost(grpc::CallbackServerContext* context, const v1::SetHostRequest* request,
                                    v1::HostStatus* response) override;
  grpc::ServerUnaryReactor* ListEvents(grpc::CallbackServerContext* context, const v1::ListEventsRequest* request,
                                       v1::ListEventsResponse* response) override;
  grpc::ServerWriteReactor<v1::Event>* Watch(grpc::CallbackServerContext* context,
                                             const v1::WatchRequest* request) override;
  grpc::ServerWriteReactor<v1::LogLine>* Logs(grpc::CallbackServerContext* context,
                                              const v1::LogsRequest* request) override;

  // Effects, on the loop's thread.
  void Release(WatchBatch batch);
  void Release(EndWatch end);
  // Sends all watchers a notice that the store accepts no writes, with the reason, or, if `why` is empty, that it
  // accepts writes again. In between, watchers get no events of their jobs. These notices are not stored and have the
  // sequence number 0.
  void SetStalled(const std::string& why);
  void Release(LogsOpened opened);
  void Release(EndLogs end);
  // Ends every stream with `status`. The event queue must be closed by then, so that no new streams begin.
  void EndAll(const absl::Status& status);

 private:
  const RpcContext& context_;
  CallTable& calls_;
  LogBridge& bridge_;
  StreamQuota quota_;
  Registry<WatchId, WatchStream> watches_;
  Registry<ReaderId, LogsStream> readers_;
  absl::Mutex stalled_mu_;
  EventPtr stalled_ ABSL_GUARDED_BY(stalled_mu_);  // sent to each new watcher; null: nothing
};

}  // namespace trainyard
