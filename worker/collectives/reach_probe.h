// Asks the kernel of a peer's host whether it is there, by connections that carry nothing: refused is an answer as good
// as accepted. What becomes of one question says nothing of the next, whereas a connection with data under way waits
// twice as long for each answer: in 12 s it has asked six times, a probe twelve.
//
//   ReachProbe probe(address_of, port);
//   once a second: probe.Look();  if (in_doubt) probe.Ask();  ... probe.unanswered() ...
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

  // One question more; at most kOpenMax wait for their answers.
  void Ask();
  // Takes what has come. A question that was there at the look before counts as unanswered from this one on.
  void Look();
  // There is no doubt any more.
  void Clear() { unanswered_ = 0; }

  // Ever: a network that drops what belongs to no connection answers nothing.
  bool answers() const { return answers_; }
  // Questions in a row.
  uint32_t unanswered() const { return unanswered_; }

 private:
  struct Question {
    int fd;
    int looks = 0;
  };
  void TakeAnswer();

  sockaddr_storage peer_{};
  socklen_t peer_length_ = 0;  // 0: nobody to ask
  std::vector<Question> open_;
  bool answers_ = false;
  uint32_t unanswered_ = 0;
};

}  // namespace trainyard
