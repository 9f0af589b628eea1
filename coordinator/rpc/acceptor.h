// Listens, and passes accepted connections to a gRPC server. gRPC's own listener (1.51) stops accepting when it has run
// out of file descriptors once: after a burst of clients the coordinator would serve only its old connections. This
// acceptor waits for free descriptors, and reserves some of them for the store and other files: connections beyond the
// limit are closed immediately and may be retried.
//
//   ASSIGN_OR_RETURN(auto acceptor, Acceptor::Listen({.host = "127.0.0.1", .port = 0}, options));
//   acceptor->Start(builder.experimental().AddExternalConnectionAcceptor(...));   // once the server has been started
//   acceptor->Stop();                                                             // before it is shut down
//
// Threads: it starts one thread, which accepts; all other calls must come from one thread.
#pragma once

#include <grpcpp/server_builder.h>
#include <sys/resource.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/network.h"

namespace trainyard {

// The number of descriptors reserved for the store, the log, the HTTP port and everything else that is not a connection
// of this acceptor. If the limit is below four times this number, a quarter of the limit is reserved.
inline constexpr rlim_t kDescriptorsReserved = 256;

// The number of descriptors for connections if the process may open `limit`. Pure.
rlim_t DescriptorsForConnections(rlim_t limit);

class Acceptor {
 public:
  struct Options {
    absl::Duration user_timeout;  // a connection ends when data is unacknowledged for this long
    bool any_user = false;        // for a Unix socket: all users may connect, not only this user and root
    std::function<void(const std::string&)> warn;  // reports refused connections, at most once a minute; may be empty
  };

  // Listens on every address of the host name. No other process can listen there at the same time; port 0 chooses a
  // free port. Possible errors: InvalidArgument if there is no such address; Unavailable if the port is in use.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const HostPort& address, Options options);
  // Listens on a Unix socket; replaces a socket left by a process that has exited. Possible errors: InvalidArgument if
  // a socket cannot be created at the path; Unavailable if another process listens there.
  static absl::StatusOr<std::unique_ptr<Acceptor>> ListenUnix(const std::string& path, Options options);
  // Calls Stop.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  uint16_t port() const { return port_; }
  // The numeric addresses on which it listens: "127.0.0.1:7070"; empty for a Unix socket.
  std::vector<std::string> addresses() const;

  void Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> to);
  // Frees the port or removes the Unix socket; accepted connections remain open.
  void Stop();

 private:
  explicit Acceptor(Options options) : options_(std::move(options)) {}
  void Run();
  // Returns false if no descriptor is free.
  bool AcceptFrom(int listener);
  // Whether an accepted connection is allowed; reports it if not.
  bool Admit(int fd);
  void ReportRefusal(const std::string& why);

  const Options options_;
  std::vector<int> listeners_;
  uint16_t port_ = 0;
  std::string path_;  // of a Unix socket, which Stop removes; empty: none
  int stop_fd_ = -1;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc_acceptor_;
  uint64_t unreported_refusals_ = 0;  // used only by its thread
  absl::Time warned_at_ = absl::InfinitePast();
  std::thread thread_;
};

}  // namespace trainyard
