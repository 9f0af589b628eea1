// The daemon's end of the trainers' links: the TrainerLink service on a Unix socket. Turns what arrives on connections
// into events for the core, and carries out the core's effects on them; puts and gets go to the value relay and the
// value cache, which answer without the core.
//
// Reads the next message of a connection when the daemon's event thread has handled the previous one (ReadMore), so a
// trainer that sends too much waits, and no queue grows here.
//
// Thread-safe. `post` is called from gRPC's threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "worker/agent/events.h"
#include "worker/agent/link_listener.h"
#include "worker/agent/value_cache.h"
#include "worker/agent/value_relay.h"

namespace trainyard::agent {

class LinkServer {
 public:
  using Post = std::function<void(Event)>;

  struct Options {
    std::shared_ptr<LinkListener> listener;  // from now on, passes its connections to this server
    Clock& clock;
    ValueCache& cache;
    ValueRelay& relay;
    Post post;
    std::function<void()> wake;  // makes the event thread check the cache's deadlines again
  };
  // Possible errors: Internal: gRPC cannot start a server.
  static absl::StatusOr<std::unique_ptr<LinkServer>> Start(Options options);

  // Ends all connections.
  virtual ~LinkServer() = default;

  // Calls for a link that has ended do nothing.
  virtual void Send(LinkId link, v1::LinkMessage message) = 0;
  virtual void Close(LinkId link, absl::Status status) = 0;
  virtual void ReadMore(LinkId link) = 0;
};

}  // namespace trainyard::agent
