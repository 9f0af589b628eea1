// AgentService, which the daemons call. A daemon has one Attach stream at a time. Its messages become events, and the
// core's messages to a host are written to the stream; a newer desired state replaces one that still waits. A heartbeat
// becomes an event only if its drain request, its revision or its trouble (why the host cannot run trainers) has
// changed since the last one; otherwise it only updates the time of the last message, the offset of the host's clock
// and the host's free disk space.
//
// Thread-safe: gRPC calls from many threads; effects come from the loop's thread.
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

// In this base class, Attach writes bytes instead of messages, so that values are encoded once for all hosts.
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
  // Sends the values and acknowledgements that have been collected for long enough. Returns the maximum time until the
  // next call.
  absl::Duration Flush();
  void EndAll(const absl::Status& status);

  // The sessions from which messages arrived since the last call. Called on the loop's thread.
  std::vector<Tick::Contact> TakeContacts();

 private:
  const RpcContext& context_;
  LogBridge& bridge_;
  Registry<SessionId, AttachStream> sessions_;

  // Used only by the loop's thread.
  ValueFanOut values_{sessions_};
  std::map<SessionId, v1::CoordinatorMessage> acks_;  // the newest per host
  absl::Time acks_due_;  // when acks_ are sent; a new acknowledgement defers this, but not beyond acks_by_
  absl::Time acks_by_;   // the latest time to send acks_
};

}  // namespace trainyard
