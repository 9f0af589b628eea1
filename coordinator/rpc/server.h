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
  std::string listen;            // host:port, port 0: a free one; or unix:PATH
  bool allow_plaintext = false;  // on an address other than loopback
  // On this machine: let every user call. Else callers show a token (common/tokens.h), or reach a Unix socket.
  bool allow_local_users = false;
  std::string token_file = {};   // that callers show, whatever the address; made if it is missing; empty: our own
  std::string tokens = {};       // folder that our own goes into; empty: the user's
  std::string state_token = {};  // where our own goes if that folder cannot be had; empty: that is an error
  std::function<void(const std::string&)> warn = nullptr;  // of connections turned away
};

// OK, or InvalidArgument: neither host:port nor unix: with an absolute path, or an address other than loopback without
// `allow_plaintext`.
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
  // host:port as it is, or unix:PATH. REQUIRES: started.
  const std::string& address() const { return address_; }
  // Who may call, in words. REQUIRES: started.
  const std::string& callers() const { return callers_; }

  // Every stream ends with UNAVAILABLE, then the server. The queue is to be closed before, so that nothing new comes
  // in.
  void Stop();

  void Release(Effect effect) override;
  // See JobServiceImpl.
  void SetStalled(const std::string& why) { jobs_.SetStalled(why); }
  absl::Duration Flush() override { return agents_.Flush(); }
  std::vector<Tick::Contact> TakeContacts() { return agents_.TakeContacts(); }

 private:
  absl::Status Listen();
  absl::Status SetAccess();
  absl::Status WriteOwnToken(const std::string& token, std::string* path);
  void RemoveOwnToken();
  absl::Status Serve();

  const RpcServerOptions options_;
  Access access_;
  RpcContext context_;
  CallTable calls_;
  LogBridge bridge_;
  JobServiceImpl jobs_;
  AgentServiceImpl agents_;
  std::string address_;
  std::string callers_;
  std::string own_token_, own_folder_;  // what was written, and where; empty: nothing
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;  // last: its threads use all of the above
};

}  // namespace trainyard
