// The gRPC server: both services, health and reflection on one port, and the way back for effects.
//
//   RpcServer server({.listen = "127.0.0.1:0", .allow_plaintext = false}, queue, clock, count);
//   RETURN_IF_ERROR(server.Start());
//   ... server.address() ...
//   server.Stop();   // streams end with UNAVAILABLE
//
// Start and Stop on one thread; Release on the loop's; everything else on gRPC's.
#pragma once

#include <grpcpp/server.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "coordinator/core/core_loop.h"
#include "coordinator/core/event_queue.h"
#include "coordinator/rpc/acceptor.h"
#include "coordinator/rpc/agent_service.h"
#include "coordinator/rpc/call_table.h"
#include "coordinator/rpc/context.h"
#include "coordinator/rpc/job_service.h"
#include "coordinator/rpc/log_bridge.h"

namespace trainyard {

struct RpcServerOptions {
  std::string listen;                                      // host:port; port 0: a free one
  bool allow_plaintext = false;                            // on an address other than loopback
  std::function<void(const std::string&)> warn = nullptr;  // of connections turned away
};

// OK, or InvalidArgument: not host:port, or an address other than loopback without `allow_plaintext`.
absl::Status CheckListenAddress(const RpcServerOptions& options);

class RpcServer final : public EffectSink {
 public:
  // Borrows `queue` and `clock`. `count` may be empty; see RpcContext.
  RpcServer(RpcServerOptions options, EventQueue* queue, Clock* clock,
            std::function<void(const char*, absl::StatusCode)> count);
  ~RpcServer() override;

  // A port that is taken is tried again for limits::kTakeOverWait: the predecessor may be on its way out.
  // Possible errors: InvalidArgument: the address. Unavailable: the port is taken.
  absl::Status Start();
  // host:port as it is. REQUIRES: started.
  const std::string& address() const { return address_; }

  // Every stream ends with UNAVAILABLE, then the server. The queue is to be closed before, so that nothing new comes
  // in.
  void Stop();

  void Release(Effect effect) override;
  // See JobServiceImpl.
  void SetStalled(const std::string& why) { jobs_.SetStalled(why); }
  absl::Duration Flush() override { return agents_.Flush(); }
  std::vector<Tick::Heard> TakeHeard() { return agents_.TakeHeard(); }

 private:
  absl::Status Serve();

  const RpcServerOptions options_;
  RpcContext context_;
  CallTable calls_;
  LogBridge bridge_;
  JobServiceImpl jobs_;
  AgentServiceImpl agents_;
  std::string address_;
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;  // last: its threads use all of the above
};

}  // namespace trainyard
