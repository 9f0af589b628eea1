// Connects trainctl and the worker daemons to a coordinator, and authenticates their calls.
//
// While the coordinator is not running, any user of this machine could listen on its port, receive the token and give
// orders to a daemon. Connections within this machine are therefore made here, and their peer is checked before gRPC
// gets the socket: the listening socket must belong to a trusted user before and after connecting (for Unix sockets the
// kernel names the peer). The trusted users are the user of this program, root, and the owner of the token file in the
// options. Of the addresses of a name such as localhost, one where a trusted user listens is preferred. The channel
// never reconnects on its own; after it has failed, the caller dials again.
//
//   ASSIGN_OR_RETURN(CoordinatorChannel dialed, DialCoordinator({.address = "127.0.0.1:7070"}, arguments));
//   auto stub = v1::JobService::NewStub(dialed.channel);
//   grpc::ClientContext context;
//   dialed.Authorize(context);
//
// Control tier: uses gRPC, never torch. Thread-safe: keeps no state. May block for name resolution and for
// `greeting_wait`.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace trainyard {

struct DialOptions {
  std::string address;          // host:port, or unix:PATH
  std::string token_file = {};  // empty: the file that a coordinator of this user writes
  // True: the peer must be a trusted user even if no token is sent, because the caller executes what it receives.
  bool requires_trusted_peer = false;
  // For a coordinator on this machine: how long to wait for the first bytes, which a healthy coordinator sends
  // immediately. Zero: no wait.
  absl::Duration greeting_wait = absl::ZeroDuration();
};

struct CoordinatorChannel {
  std::shared_ptr<grpc::Channel> channel;
  std::string token = {};    // empty: none
  std::string address = {};  // numeric, if the channel leads to this machine

  // Must be called before every RPC on the channel.
  void Authorize(grpc::ClientContext& context) const;
};

// A channel to another machine connects when it is used; a channel to this machine is connected already. Possible
// errors:
//   Unavailable                no process accepts connections there, or it sends nothing within `greeting_wait`, or the
//                              process that listens there has just changed.
//   PermissionDenied           the listening process belongs to a user who is not trusted; nothing was sent.
//   NotFound, InvalidArgument  the token file is missing or invalid, for example readable by others, or the address is
//                              invalid.
absl::StatusOr<CoordinatorChannel> DialCoordinator(const DialOptions& options, const grpc::ChannelArguments& arguments);

// Whether the token has changed since `dialed` was made with `options`: a coordinator that has just started rejects the
// token of the previous one.
bool TokenHasChanged(const DialOptions& options, const CoordinatorChannel& dialed);

}  // namespace trainyard
