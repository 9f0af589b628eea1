// Detects that the other end of a connection has disappeared without closing it: a host that loses power or its network
// sends no FIN, and TCP alone would wait 15 minutes with unacknowledged data, and forever without.
//
// [Note: silence] A slow peer is not a silent one. A process that computes, saves or is stopped for minutes reads
// nothing, but its kernel still answers. So the group's own timeout may be long (GlooOptions::timeout), while a dead
// host is detected quickly:
//   - An idle connection is checked by keepalive probes, after 3 s and then every second. It counts as dead after 14
//     probes in a row without an answer.
//   - A connection with unacknowledged data is checked every second, and probed from the second resend on
//     (reach_probe.h). It counts as dead after at least 5 resends, 12 s without any answer, and 12 unanswered probes.
//     The resends alone are not enough, because their interval doubles each time: in a network that loses one packet in
//     ten in each direction, they would end a connection up to 4.5 times per hour. With the probes this happens 1e-8
//     times per hour, which is once in ten thousand years (docs/decisions/0002-control-plane.md).
//   - If the probes of reach_probe.h are never answered, because the network drops them, 8 resends are required (51 s).
// TCP_USER_TIMEOUT is unsuitable: it also ends the connection to a peer whose kernel reports a full receive window.
//
//   SilenceWatch watch(connections, [&](const std::string& what) { ... });
//
// Threads: starts its own thread, which calls `on_silence` at most once. The destructor waits for that call.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/steady_cond_var.h"
#include "worker/collectives/reach_probe.h"

namespace trainyard {

// A connection to watch.
struct WatchedConnection {
  int fd = -1;
  uint16_t probe_port = 0;  // on the host at the other end; no process listens there. 0: the host cannot be probed
};

// The state of a connection, from the kernel and the probes.
struct ConnectionState {
  uint32_t unacknowledged = 0;   // segments that were sent and not acknowledged
  uint32_t retransmissions = 0;  // of the oldest of them, in a row
  absl::Duration since_answer;   // since the last acknowledgement
  bool answers_probes = false;   // at least one probe was answered
  uint32_t probes_lost = 0;      // in a row, since IsInDoubt became true
};

// Pure: whether the other end counts as dead.
bool IsSilent(const ConnectionState& state);
// Pure: whether the other end should be probed.
bool IsInDoubt(const ConnectionState& state);

class SilenceWatch {
 public:
  // Does not own the descriptors, which must stay open; ignores those that are not TCP. Enables keepalive.
  SilenceWatch(const std::vector<WatchedConnection>& connections,
               std::function<void(const std::string& what)> on_silence);
  ~SilenceWatch();
  SilenceWatch(const SilenceWatch&) = delete;
  SilenceWatch& operator=(const SilenceWatch&) = delete;

 private:
  void Run();

  struct Watched {
    int fd;
    ReachProbe probe;
  };
  std::vector<Watched> watched_;  // used only by the thread once it runs
  const std::function<void(const std::string&)> on_silence_;
  absl::Mutex mu_;
  SteadyCondVar stop_requested_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace trainyard
