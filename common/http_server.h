// A small web server that clients cannot block. One thread owns the sockets: it reads requests, decides whether to
// admit them, and sends what handlers have answered. Two other threads run the handlers, which may answer later
// (http_exchange.h), so a slow answer delays no byte of another answer. Limits (limits.h, http_limits.h): connections
// (a new one replaces the oldest that is not a stream), streams, the size of a head, of a body and of all bodies
// together, and the time of each part of a request and of a response. A client that is silent, or that sends or reads
// one byte at a time, uses a descriptor until its deadline and delays no other client.
//
//   ASSIGN_OR_RETURN(Listener listener, ListenOn("127.0.0.1:7071", absl::ZeroDuration()));
//   HttpServer server(listener.fd, {.handle = [](HttpRequest, std::shared_ptr<HttpExchange> exchange) {
//     exchange->Respond(HttpText(200, "hello\n"));
//   }});
#pragma once

#include <poll.h>

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/http_exchange.h"
#include "common/http_message.h"
#include "common/steady_cond_var.h"

namespace trainyard {

struct HttpServerOptions {
  // Called with the head of a request, before its body is read, on the thread of the sockets. A request for which it
  // returns a response is refused with that response. May be empty.
  std::function<absl::optional<HttpResponse>(const HttpRequest& head)> admit = nullptr;
  // Called on two threads.
  std::function<void(HttpRequest request, std::shared_ptr<HttpExchange> exchange)> handle;
  size_t body_bytes_max = 0;
  std::string headers = {};  // of all responses, each with its line end
  HttpObserver observer = {};
  HttpRefusal refusal = nullptr;  // may be empty: refusals are in plain text
};

class HttpServer {
 public:
  // Takes ownership of `listener`, a non-blocking listening socket.
  HttpServer(int listener, HttpServerOptions options);
  // Closes all connections. The handlers that run have returned when this returns.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

 private:
  enum class Phase { kHead, kBody, kAnswer, kLinger };
  struct Connection {
    int fd;
    std::string peer;
    Phase phase = Phase::kHead;
    absl::Time deadline;
    std::string input = {};
    HttpRequest request = {};
    std::shared_ptr<HttpExchange> exchange = nullptr;  // from kAnswer on
    size_t reserved = 0;                               // its share of reserved_
    bool blocked = false;                              // the socket accepts no more
    bool unread = false;                               // the client may still be sending a refused body
    bool half_closed = false;                          // the client sends nothing more
    bool probed = false;                               // a response was sent to learn whether the client has gone
  };
  using Connections = std::list<Connection>;

  void Run();
  absl::Time AddPolled(std::vector<pollfd>& polled) const;
  void Accept();
  // These return false if the connection can be closed.
  bool Serve(Connection& connection, short events);
  bool Read(Connection& connection);
  bool TakeHead(Connection& connection);
  bool TakeBody(Connection& connection);
  bool Send(Connection& connection);
  bool Linger(Connection& connection);
  bool CheckTime(Connection& connection);
  static void ProbeClient(Connection& connection);
  void Refuse(Connection& connection, const char* reason, const HttpResponse& response);
  void Close(Connections::iterator connection);
  // Closes the oldest connection without a complete request, else the oldest that is no stream.
  void CloseOldest();
  void Answer();

  const int listener_;
  const HttpServerOptions options_;
  const std::shared_ptr<HttpShared> shared_;
  Connections connections_;  // oldest first
  size_t reserved_ = 0;      // bytes of bodies
  // When to poll the listener again after the descriptors have run out; earlier, poll would report it as ready all the
  // time.
  absl::Time accept_at_ = absl::InfinitePast();

  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::pair<HttpRequest, std::shared_ptr<HttpExchange>>> requests_ ABSL_GUARDED_BY(mu_);
  // Last: they use all of the above.
  std::thread sockets_;
  std::vector<std::thread> handlers_;
};

}  // namespace trainyard
