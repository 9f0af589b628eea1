// Listens, and hands what it accepts to a gRPC server. gRPC could do both, but its listener (1.51) that once finds no
// descriptor left accepts nobody any more, for good: then a crowd of clients that has gone again leaves a coordinator
// that serves whom it has and is deaf to everybody else. This one waits for descriptors, and before that keeps some of
// them for the store and what else opens files: who comes beyond is hung up on at once, and may come again.
//
//   ASSIGN_OR_RETURN(auto acceptor, Acceptor::Listen({.host = "127.0.0.1", .port = 0}, options));
//   acceptor->Start(builder.experimental().AddExternalConnectionAcceptor(...));   // once the server has been started
//   acceptor->Stop();                                                             // before it is shut down
//
// Threads: one of its own accepts; the rest on one.
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

// Kept for the store, its watchers and all that is no connection; of a limit below four times this, a quarter.
inline constexpr rlim_t kDescriptorsKept = 256;

// How many descriptors connections may have, of `limit` that the process may open. Pure.
rlim_t DescriptorsForConnections(rlim_t limit);

class Acceptor {
 public:
  struct Options {
    absl::Duration user_timeout;                   // data unacknowledged for so long ends a connection
    bool any_user = false;                         // over a Unix socket; else this one and root alone
    std::function<void(const std::string&)> warn;  // who was turned away, at most once a minute; may be empty
  };

  // On every address of the host's name. Nobody else may listen there meanwhile; port 0 takes a free one.
  // Possible errors: InvalidArgument: no such address. Unavailable: the port is taken.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const HostPort& address, Options options);
  // On a Unix socket; one that was left there by a process that is gone is replaced. Possible errors: InvalidArgument:
  // the path cannot take one. Unavailable: somebody listens there.
  static absl::StatusOr<std::unique_ptr<Acceptor>> ListenUnix(const std::string& path, Options options);
  // Stops.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  uint16_t port() const { return port_; }
  // Where it listens, numeric: "127.0.0.1:7070"; none for a Unix socket.
  std::vector<std::string> addresses() const;

  void Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> to);
  // The port is free afterwards; what was accepted stays.
  void Stop();

 private:
  explicit Acceptor(Options options) : options_(std::move(options)) {}
  void Run();
  // False: there is no descriptor left now.
  bool AcceptFrom(int listener);
  // Whether a connection that was accepted is wanted; says so where it is not.
  bool Admit(int fd);
  void TurnAway(const std::string& why);

  const Options options_;
  std::vector<int> listeners_;
  uint16_t port_ = 0;
  std::string path_;  // of a Unix socket, which goes with this; empty: none
  int stop_fd_ = -1;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> to_;
  uint64_t turned_away_ = 0;  // the thread's
  absl::Time warned_at_ = absl::InfinitePast();
  std::thread thread_;
};

}  // namespace trainyard
