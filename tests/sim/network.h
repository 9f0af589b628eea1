// The streams between daemons and the coordinator. A stream delivers its messages in order and with delays; it can be
// cut or half-open. Messages that were on their way when a daemon gave up a stream may still arrive, even after the
// first messages of the daemon's next stream.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/event.h"
#include "tests/sim/engine.h"
#include "trainyard/v1/agent.pb.h"

namespace trainyard::sim {

class World;
class Machine;

struct Stream {
  SessionId session;
  Machine* machine = nullptr;
  uint64_t daemon_incarnation = 0;
  uint64_t coordinator_incarnation = 0;
  std::shared_ptr<Channel> up;
  std::shared_ptr<Channel> down;
  bool silent = false;  // half-open
  bool over_at_daemon = false;
  bool over_at_coordinator = false;
  uint64_t applied_revision = 0;
  bool draining = false;
  std::string trouble;
};

class Network {
 public:
  explicit Network(World& world) : world_(world) {}
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // ---- called by the daemon ----
  void Dial(Machine& machine, const v1::Hello& hello);
  void SendToCoordinator(Machine& machine, v1::AgentMessage message);
  void HangUp(Machine& machine, const std::string& reason);
  void DaemonDied(Machine& machine);

  // ---- called by the coordinator ----
  void SendToDaemon(SessionId session, v1::CoordinatorMessage message);
  void EndByCoordinator(SessionId session, const absl::Status& status);
  void CoordinatorDied();

  // ---- faults ----
  void Drop(Machine& machine);     // its connection breaks
  void Silence(Machine& machine);  // nothing is delivered, and neither end is notified
  void Cut(Machine& machine);      // nothing is delivered while the machine is cut
  void PumpAll();                  // delivers what was blocked; called after a fault has ended

  absl::Duration Delay();
  // The delay that lost and resent packets add to a message of the host.
  absl::Duration ResendDelay(const Machine& machine, absl::Duration max_delay);
  // When the coordinator's process last received a message, other than a hello, on a stream that the daemon still uses.
  absl::Time LastContact(const std::string& host) const;

 private:
  using StreamPtr = std::shared_ptr<Stream>;
  bool Blocked(const Stream& stream) const;
  void EndAtDaemon(const StreamPtr& stream, const absl::Status& status);
  void EndAtCoordinator(const StreamPtr& stream);
  // Both ends notice after a while that nothing arrives; each ends the stream if it is still blocked then.
  void GiveUpLater(const StreamPtr& stream);
  void Arrive(const StreamPtr& stream, v1::AgentMessage message);
  void HandleHeartbeat(const StreamPtr& stream, const v1::Heartbeat& beat);

  World& world_;
  std::map<std::string, absl::Time> last_contacts_;
  std::vector<StreamPtr> all_streams_;  // streams that have not ended at both ends
  std::map<SessionId, StreamPtr> streams_;
  std::map<const Machine*, StreamPtr> current_;  // the newest stream, as the daemon sees it
};

}  // namespace trainyard::sim
