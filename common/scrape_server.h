// A small web server that serves GET /metrics, and other pages if given, and that clients cannot block: one thread,
// non-blocking sockets, a limit on connections (a new one replaces the oldest), and a deadline for each request and
// each response (common/limits.h). A client that is silent, or that sends or reads one byte at a time, uses a
// descriptor until its deadline and delays no other client.
//
//   ASSIGN_OR_RETURN(Listener listener, ListenOn("127.0.0.1:7071", absl::ZeroDuration()));
//   ScrapeServer server(listener.fd, [] { return "trainyard_jobs 1\n"; });
//
// `make_page` is called on the server's thread, once for all requests that have arrived together. `answer_other` is
// called on the same thread with the text of each other GET or HEAD request, and returns the whole response; without
// it, such requests get 404.
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
  // Takes ownership of `listener`, a non-blocking listening socket.
  ScrapeServer(int listener, std::function<std::string()> make_page,
               std::function<std::string(const std::string& request)> answer_other = nullptr);
  // Closes all connections.
  ~ScrapeServer();
  ScrapeServer(const ScrapeServer&) = delete;
  ScrapeServer& operator=(const ScrapeServer&) = delete;

 private:
  struct Connection {
    int fd;
    absl::Time deadline;
    std::string request;
    std::string response;  // empty: the request is not complete
    size_t sent = 0;
  };

  void Run();
  void Accept();
  // Returns false if the connection can be closed.
  bool Serve(Connection& connection, absl::optional<std::string>* page);
  bool Read(Connection& connection) const;
  bool Write(Connection& connection) const;
  std::string MakeResponse(const std::string& request, absl::optional<std::string>* page) const;
  // Closes the oldest connection without a complete request, else the oldest.
  void CloseOldest();

  const int listener_;
  const int stop_fd_;
  const std::function<std::string()> make_page_;
  const std::function<std::string(const std::string&)> answer_other_;  // may be empty
  std::list<Connection> connections_;                                  // oldest first
  // After running out of descriptors, when to poll the listener again; before, poll would report it as ready all the
  // time.
  absl::Time accept_at_ = absl::InfinitePast();
  std::thread thread_;  // last: uses all of the above
};

}  // namespace trainyard
