// AgentService: the daemons' side. Attach is one stream per daemon life; its messages become events, and the core's
// messages to a host are written to it, the newest desired state only. Heartbeats touch a clock here and skip the
// core's queue.
//
// Thread-safe: gRPC calls from many threads, effects come from the loop's.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "coordinator/core/effect.h"
#include "coordinator/rpc/log_bridge.h"
#include "coordinator/rpc/registry.h"
#include "coordinator/rpc/value_fan_out.h"
#include "trainyard/v1/agent.grpc.pb.h"

namespace trainyard {

class AttachStream;

// Attach writes values that were encoded once for all hosts.
using AgentServiceBase = v1::AgentService::WithRawCallbackMethod_Attach<
    v1::AgentService::WithCallbackMethod_PushLogs<v1::AgentService::Service>>;

class AgentServiceImpl final : public AgentServiceBase {
 public:
  AgentServiceImpl(const RpcContext& context, LogBridge& bridge);
  ~AgentServiceImpl() override;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Attach(grpc::CallbackServerContext* context) override;
  grpc::ServerReadReactor<v1::LogChunk>* PushLogs(grpc::CallbackServerContext* context,
                                                  v1::PushLogsResponse* response) override;

  // Effects, on the loop's thread.
  void Release(SendToHost send);
  void Release(EndSession end);
  void Release(SendValues send) { values_.Add(std::move(send)); }
  // Values and acknowledgements gather for a while before they are sent. Returns in what time this is to be called
  // again, at the latest.
  absl::Duration Flush();
  void EndAll(const absl::Status& status);

  // Sessions that were heard of since this was last asked. On the loop's thread.
  std::vector<Tick::Contact> TakeContacts();

 private:
  const RpcContext& context_;
  LogBridge& bridge_;
  Registry<SessionId, AttachStream> sessions_;

  // The loop's thread's own.
  ValueFanOut values_{sessions_};
  std::map<SessionId, v1::CoordinatorMessage> acks_;  // the newest of each host
  absl::Time acks_due_;
  absl::Time acks_by_;  // at the latest
};

}  // namespace trainyard
