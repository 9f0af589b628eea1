// Asks the kernel of a peer's host whether it is there, by connections that carry nothing: refused is an answer as good
// as accepted. What becomes of one question says nothing of the next, whereas a connection with data under way waits
// twice as long for each answer: in 12 s it has asked six times, a probe twelve.
//
//   ReachProbe probe(address_of, port);
//   once a second: probe.Poll();  if (in_doubt) probe.Send();  ... probe.unanswered() ...
//
// Threads: one at a time. Nothing blocks.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <vector>

namespace trainyard {

class ReachProbe {
 public:
  // Asks the host at the other end of `connection`, a TCP socket, at `port`, where nobody needs to listen. A port of 0,
  // or a socket that is not TCP, leaves nobody to ask.
  ReachProbe(int connection, uint16_t port);
  ~ReachProbe();
  ReachProbe(ReachProbe&& other) noexcept;
  ReachProbe(const ReachProbe&) = delete;
  ReachProbe& operator=(const ReachProbe&) = delete;

  // One question more; at most kMaxOpen wait for their answers.
  void Send();
  // Takes what has come. A question that was there at the look before counts as unanswered from this one on.
  void Poll();
  // There is no doubt any more.
  void Clear() { unanswered_ = 0; }

  // Ever: a network that drops what belongs to no connection answers nothing.
  bool answers() const { return answers_; }
  // Questions in a row.
  uint32_t unanswered() const { return unanswered_; }

 private:
  struct Probe {
    int fd;
    int polls = 0;
  };
  void HandleAnswer();

  sockaddr_storage peer_{};
  socklen_t peer_length_ = 0;  // 0: nobody to ask
  std::vector<Probe> open_;
  bool answers_ = false;
  uint32_t unanswered_ = 0;
};

}  // namespace trainyard
