// Notices that the other end of a connection is gone without a word: a host cut off or without power sends no FIN, and
// TCP by itself would go on for a quarter of an hour with data under way, and for ever with none.
//
// [Note: silence] Slow is not silent. A peer that computes, saves or is stopped for minutes reads nothing, but its
// kernel goes on answering, so the group's own timeout may be long (GlooOptions::timeout) and still a dead host is
// found soon:
//   - with nothing under way, by keepalive probes: after 3 s, then a second apart; 14 in a row without an answer;
//   - with data under way, by looking once a second: unacknowledged, sent again at least 5 times, no answer of any kind
//     for 12 s, and none to 12 probes (reach_probe.h) of the last seconds. What is sent again waits twice as long each
//     time: of a network that loses one packet in ten that alone would end a connection every few hours. With the
//     probes it is once in ten thousand years (docs/decisions/0002-control-plane.md has the sum).
//   - Where probes are never answered because something on the way drops them, it must have been sent again 8 times,
//     which takes 51 s.
// TCP_USER_TIMEOUT would do neither: it also ends the connection to a peer whose kernel says "not now".
//
//   SilenceWatch watch(connections, [&](const std::string& what) { ... });
//
// Threads: one of its own, which calls `on_silence`, at most once. Destroying it waits for that call.
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

// A connection to be watched.
struct WatchedConnection {
  int fd = -1;
  uint16_t probe_port = 0;  // of the host at its other end; nobody listens there. 0: it cannot be probed
};

// What the kernel, and the probes, know of a connection.
struct ConnectionState {
  uint32_t unacknowledged = 0;   // segments under way
  uint32_t retransmissions = 0;  // of the oldest of them, in a row
  absl::Duration since_answer;   // since anything was acknowledged
  bool answers_probes = false;   // has ever answered one
  uint32_t probes_lost = 0;      // in a row, since there is doubt
};

// Pure: whether the other end counts as gone.
bool IsSilent(const ConnectionState& state);
// Pure: whether it is to be asked.
bool IsInDoubt(const ConnectionState& state);

class SilenceWatch {
 public:
  // Does not own the descriptors, which must stay open; those that are not TCP are passed over. Turns keepalive on.
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
  std::vector<Watched> watched_;  // the thread's alone, once it runs
  const std::function<void(const std::string&)> on_silence_;
  absl::Mutex mu_;
  SteadyCondVar stop_asked_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace trainyard
