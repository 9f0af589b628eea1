// Notices that the other end of a connection is gone without a word: a host cut off or without power sends no FIN, and
// TCP by itself would go on for a quarter of an hour with data under way, and for ever with none.
//
// [Note: silence] Slow is not silent. A peer that computes, saves or is stopped for minutes reads nothing, but its
// kernel goes on answering, so the group's own timeout may be long (GlooOptions::timeout) and still a dead host is
// found soon:
//   - with nothing under way, by keepalive probes: 5 s, then 3 probes 2 s apart;
//   - with data under way, by looking once a second: unacknowledged, sent again at least 5 times, and no answer of any
//     kind for 12 s. A network that loses one packet in ten gets there once in a hundred thousand losses.
// TCP_USER_TIMEOUT would do neither: it also ends the connection to a peer whose kernel says "not now".
//
//   SilenceWatch watch(descriptors, [&](const std::string& what) { ... });
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

namespace trainyard {

// What the kernel knows of a connection.
struct ConnectionState {
  uint32_t unacknowledged = 0;   // segments under way
  uint32_t retransmissions = 0;  // of the oldest of them, in a row
  absl::Duration since_answer;   // since anything was acknowledged
};

// Pure: whether the other end counts as gone.
bool IsSilent(const ConnectionState& state);

class SilenceWatch {
 public:
  // Does not own the descriptors, which must stay open; those that are not TCP are passed over. Turns keepalive on.
  SilenceWatch(std::vector<int> descriptors, std::function<void(const std::string& what)> on_silence);
  ~SilenceWatch();
  SilenceWatch(const SilenceWatch&) = delete;
  SilenceWatch& operator=(const SilenceWatch&) = delete;

 private:
  void Run();

  const std::vector<int> descriptors_;
  const std::function<void(const std::string&)> on_silence_;
  absl::Mutex mu_;
  SteadyCondVar stop_asked_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace trainyard
