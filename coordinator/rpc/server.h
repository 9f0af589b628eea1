// The gRPC server: both services, health and reflection on one port, and the delivery of effects to them.
//
//   RpcServer server({.listen = "127.0.0.1:0", .allow_plaintext = false}, queue, clock, count);
//   RETURN_IF_ERROR(server.Start());
//   ... server.address() ...
//   server.Stop();   // streams end with UNAVAILABLE
//
// Start and Stop must be called on one thread, and Release, Flush and TakeContacts on the loop's thread. The other
// functions are thread-safe. The handlers of calls run on gRPC's threads.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/server.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
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
  std::string listen;            // host:port (port 0: any free port) or unix:PATH
  bool allow_plaintext = false;  // allows addresses other than loopback
  // Allows every user of this machine. Otherwise callers present a token (common/tokens.h) or connect to a Unix socket.
  bool allow_local_users = false;
  // The file with the token that callers must present, on any address; created if it does not exist. Empty: a new token
  // at each start.
  std::string token_file = {};
  std::string viewer_token_file = {};  // the same for viewers; empty: there are none
  std::string tokens = {};             // folder for the new token; empty: the user's token folder
  std::string state_token = {};        // file for the new token if that folder cannot be used; empty: an error
  std::function<void(const std::string&)> warn = nullptr;                               // logs a warning
  std::function<void(const char* method, absl::Duration duration)> answered = nullptr;  // see RpcContext
};

// Returns OK, or InvalidArgument if `listen` is neither host:port nor unix: with an absolute path, or if it is not a
// loopback address and `allow_plaintext` is not set.
absl::Status CheckListenAddress(const RpcServerOptions& options);

class RpcServer final : public EffectSink {
 public:
  // Does not own `queue` and `clock`. `count` may be empty; see RpcContext.
  RpcServer(RpcServerOptions options, EventQueue* queue, Clock* clock,
            std::function<void(const char*, absl::StatusCode)> count);
  ~RpcServer() override;

  // If the port is in use, retries for limits::kTakeOverWait, because the previous coordinator may be exiting. Possible
  // errors: InvalidArgument for the address or the tokens; Unavailable if the port is in use; Internal: gRPC failed.
  absl::Status Start();
  // The actual host:port, or unix:PATH. REQUIRES: started.
  const std::string& address() const { return address_; }
  // Describes who may call. REQUIRES: started.
  const std::string& callers() const { return callers_; }

  // The role of a caller of the HTTP port with this `authorization` header. Never allows more than the API. A caller
  // without a token is a viewer at most, because its request may come from the page of another web site in the browser
  // of the caller. `only_this_host`: the port can be reached from this host only. Possible errors: Unauthenticated;
  // PermissionDenied if the API needs no token and the port can be reached by more callers than the API.
  // REQUIRES: started.
  absl::StatusOr<Role> RoleOfHttpCaller(absl::optional<absl::string_view> authorization, bool only_this_host) const;
  // Whether callers of the HTTP port need no token. REQUIRES: started.
  bool is_open() const { return access_.is_open(); }
  // A channel to this server within the process; Vouch marks a call on it (see Access). REQUIRES: started.
  std::shared_ptr<grpc::Channel> MakeInProcessChannel();
  void Vouch(const Caller& caller, grpc::ClientContext& context) const { access_.Vouch(caller, context); }
  // Asks the core and waits for its reply, for at most kAskWait. Thread-safe; must not be called on the loop's thread.
  // Possible errors: those of the call; Unavailable if there is no reply in time.
  static constexpr absl::Duration kAskWait = absl::Seconds(1);
  absl::StatusOr<Reply> AskCore(const std::function<Event(CallId)>& make_event);

  // Ends every stream with UNAVAILABLE, then the server. The caller must close the queue first, so that no new events
  // are accepted.
  void Stop();

  void Release(Effect effect) override;
  // See JobServiceImpl.
  void SetStalled(const std::string& why) { jobs_.SetStalled(why); }
  // See CallTable.
  absl::Status CheckWaiting(CallId call) { return calls_.CheckWaiting(call); }
  absl::Duration Flush() override { return agents_.Flush(); }
  std::vector<Tick::Contact> TakeContacts() { return agents_.TakeContacts(); }

 private:
  absl::Status Listen();
  absl::Status SetAccess();
  absl::Status SetTokens(const std::string& token, std::string instructions);
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
  std::string own_token_;   // the token that this start has generated; empty: token_file has it, or none is needed
  std::string own_folder_;  // the token folder with the files of own_token_; empty: none was written there
  std::unique_ptr<Acceptor> acceptor_;
  std::unique_ptr<grpc::Server> server_;  // last: its threads use all of the above
};

}  // namespace trainyard
