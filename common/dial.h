// The way to a coordinator, for trainctl and for worker daemons: one connection, and what shows the coordinator who
// calls over it.
//
// Any user of this machine may take a port while the coordinator is away, be sent the token and, by a daemon, be
// obeyed. So a connection to this machine is made here and its other end looked at before gRPC gets it: the listening
// socket must be of a trusted user before and after connecting (Unix sockets: the kernel names the other end). Trusted
// are the user of this program, root, and the owner of the token file that was named. The channel never connects again
// by itself: what has ended is dialed anew.
//
//   ASSIGN_OR_RETURN(CoordinatorChannel dialed, DialCoordinator({.address = "127.0.0.1:7070"}, arguments));
//   auto stub = v1::JobService::NewStub(dialed.channel);
//   grpc::ClientContext context;
//   dialed.Authorize(context);
//
// Control tier. Thread-safe in that it keeps no state; waits for the resolver of names, and as `greeting_wait` says.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trainyard {

struct DialOptions {
  std::string address;          // host:port, or unix:PATH
  std::string token_file = {};  // empty: where a coordinator of this user writes its own
  // The caller does what it is told over this connection: only a trusted user may be there, token or not.
  bool obey = false;
  // On this machine: how long to wait for the first bytes, which a coordinator that is well sends at once. Zero: not.
  absl::Duration greeting_wait = absl::ZeroDuration();
};

struct CoordinatorChannel {
  std::shared_ptr<grpc::Channel> channel;
  std::string token = {};    // empty: none
  std::string address = {};  // of this machine, numeric, where the channel leads to it

  // To be called before every call over the channel.
  void Authorize(grpc::ClientContext& context) const;
};

// A channel to another machine connects when it is used; one to this machine is connected. Possible errors:
//   Unavailable       nobody takes connections there.
//   PermissionDenied  a user who is not trusted does; nothing was sent.
//   NotFound, InvalidArgument  the token file, which others can read perhaps; or the address is none.
absl::StatusOr<CoordinatorChannel> DialCoordinator(const DialOptions& options, const grpc::ChannelArguments& arguments);

// Whether there is another token now than `dialed` has: a coordinator that was just started may have refused the one
// before it. `options` are those that it was dialed with.
bool TokenHasChanged(const DialOptions& options, const CoordinatorChannel& dialed);

}  // namespace trainyard
