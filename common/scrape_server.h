// A small web server that knows one page, GET /metrics, and cannot be held up: one thread, sockets that never wait, a
// limit on connections of which the oldest gives way to the next, and a deadline for each request and each answer
// (common/limits.h). A client that is silent, or sends or reads a byte at a time, costs a descriptor until then and
// delays nobody.
//
//   ASSIGN_OR_RETURN(Listener listener, ListenOn("127.0.0.1:7071", absl::ZeroDuration()));
//   ScrapeServer server(listener.fd, [] { return "trainyard_jobs 1\n"; });
//
// `make_page` is called on the server's thread, once for all requests that have come together.
#pragma once

#include <functional>
#include <list>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace trainyard {

class ScrapeServer {
 public:
  // Takes `listener`, a listening socket that does not wait.
  ScrapeServer(int listener, std::function<std::string()> make_page);
  // Cuts what is under way.
  ~ScrapeServer();
  ScrapeServer(const ScrapeServer&) = delete;
  ScrapeServer& operator=(const ScrapeServer&) = delete;

 private:
  struct Connection {
    int fd;
    absl::Time deadline;
    std::string request;
    std::string answer;  // empty: the request is not complete
    size_t sent = 0;
  };

  void Run();
  void Accept();
  // False: the connection is done with.
  bool Serve(Connection& connection, absl::optional<std::string>* page);
  bool Read(Connection& connection) const;
  bool Write(Connection& connection) const;
  std::string Answer(const std::string& request, absl::optional<std::string>* page) const;
  // The oldest that has not asked yet; else the oldest.
  void CloseOne();

  const int listener_;
  const int stop_fd_;
  const std::function<std::string()> make_page_;
  std::list<Connection> connections_;  // oldest first
  // No descriptor was left to accept with: the listener, which stays ready, is not looked at before.
  absl::Time accept_at_ = absl::InfinitePast();
  std::thread thread_;  // last: uses all of the above
};

}  // namespace trainyard
