// Checks whether a peer's host is alive, with connection attempts that carry no data: a refusal is as good an answer as
// an acceptance. Probes are independent of each other, whereas a connection with unacknowledged data doubles its wait
// with each resend: in 12 s it has resent five times, while twelve probes were sent.
//
//   ReachProbe probe(connection, port);
//   once a second: probe.Poll();  if (needs_probes) probe.Send();  ... probe.unanswered() ...
//
// Not thread-safe. No call blocks.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <vector>

namespace trainyard {

class ReachProbe {
 public:
  // Probes the host at the other end of `connection`, a TCP socket, at `port`, where no process needs to listen. With
  // port 0, or if the socket is not TCP, nothing is probed.
  ReachProbe(int connection, uint16_t port);
  ~ReachProbe();
  ReachProbe(ReachProbe&& other) noexcept;
  ReachProbe(const ReachProbe&) = delete;
  ReachProbe& operator=(const ReachProbe&) = delete;

  // Sends one probe, or none if too many probes are still open.
  void Send();
  // Collects the answers that have arrived. A probe without an answer counts as unanswered from the next Poll after its
  // Send on.
  void Poll();
  // Forgets the unanswered probes. Call it when the connection no longer needs probes.
  void Clear() { unanswered_ = 0; }

  // Whether any probe was ever answered. Some networks drop packets that belong to no connection, and with them every
  // probe.
  bool answers() const { return answers_; }
  // The number of unanswered probes in a row.
  uint32_t unanswered() const { return unanswered_; }

 private:
  struct Probe {
    int fd;
    int polls = 0;
  };
  void HandleAnswer();

  sockaddr_storage peer_{};
  socklen_t peer_length_ = 0;  // 0: nothing to probe
  std::vector<Probe> open_;
  bool answers_ = false;
  uint32_t unanswered_ = 0;
};

}  // namespace trainyard
