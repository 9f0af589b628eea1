#include "common/http_server.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/http_limits.h"
#include "common/listeners.h"

namespace trainyard {
namespace {

constexpr absl::Duration kNoDescriptorWait = absl::Milliseconds(100);
constexpr absl::Duration kLingerWait = absl::Seconds(1);
// While one handler thread waits for the coordinator's core, the other answers requests.
constexpr int kHandlers = 2;
constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";  // an interim response, which clients ignore

// The size of the head with its empty line; npos: it is not complete.
size_t HeadBytes(absl::string_view input) {
  const size_t crlf = input.find("\r\n\r\n");
  const size_t lf = input.find("\n\n");
  if (crlf == absl::string_view::npos && lf == absl::string_view::npos) return absl::string_view::npos;
  return crlf < lf ? crlf + 4 : lf + 2;
}

// The time in which a body of this size must arrive.
absl::Duration TransferLimit(size_t bytes) {
  return limits::kScrapeWait + absl::Seconds(static_cast<double>(bytes) / limits::kHttpBytesPerSecond);
}

// Small writes must not wait for acknowledgements, and the loss of a reader must be noticed even if no FIN arrives.
void Prepare(int fd) {
  const int on = 1;
  const auto timeout_ms = static_cast<unsigned>(absl::ToInt64Milliseconds(limits::kHttpReaderWait));
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

}  // namespace

HttpServer::HttpServer(int listener, HttpServerOptions options)
    : listener_(listener),
      options_(std::move(options)),
      shared_(std::make_shared<HttpShared>(options_.headers, options_.observer, options_.refusal)),
      sockets_([this] { Run(); }) {
  for (int i = 0; i < kHandlers; ++i) handlers_.emplace_back([this] { Answer(); });
}

HttpServer::~HttpServer() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  changed_.SignalAll();
  shared_->Wake();
  sockets_.join();
  for (std::thread& handler : handlers_) handler.join();
  while (!connections_.empty()) Close(connections_.begin());
  close(listener_);
}

void HttpServer::Run() {
  while (true) {
    const bool accepts = HttpNow() >= accept_at_;
    std::vector<pollfd> polled = {{shared_->wake_fd(), POLLIN, 0}, {accepts ? listener_ : -1, POLLIN, 0}};
    const absl::Time wake = std::min(accepts ? absl::InfiniteFuture() : accept_at_, AddPolled(polled));
    const absl::Duration wait = std::max(absl::ZeroDuration(), wake - HttpNow());
    // One millisecond more than the remaining time, so that the deadline has passed after the wait.
    const int timeout_ms =
        wait == absl::InfiniteDuration() ? -1 : static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1;
    if (poll(polled.data(), polled.size(), timeout_ms) < 0 && errno != EINTR) return;
    {
      absl::MutexLock lock(&mu_);
      if (stopping_) return;
    }
    eventfd_t ignored;
    if (polled[0].revents != 0) eventfd_read(shared_->wake_fd(), &ignored);
    size_t at = 2;
    for (auto it = connections_.begin(); it != connections_.end(); ++at) {
      const auto next = std::next(it);
      if (!Serve(*it, polled[at].revents)) Close(it);
      it = next;
    }
    if (polled[1].revents != 0) Accept();
  }
}

// Returns when the next deadline passes.
absl::Time HttpServer::AddPolled(std::vector<pollfd>& polled) const {
  absl::Time wake = absl::InfiniteFuture();
  for (const Connection& connection : connections_) {
    short events = POLLIN;
    if (connection.phase == Phase::kAnswer) {
      // The reader of a stream has gone if it closes its side. The reader of a single response may close its side
      // early.
      const bool detects_end =
          connection.exchange->is_stream() || (!connection.half_closed && connection.exchange->MustDetectDisconnect());
      events = static_cast<short>((connection.blocked ? POLLOUT : 0) | (detects_end ? POLLRDHUP : 0));
      wake = std::min(wake, connection.exchange->wake_at());
    }
    polled.push_back({connection.fd, events, 0});
    wake = std::min(wake, connection.deadline);
  }
  return wake;
}

void HttpServer::Accept() {
  // A few connections per round, so that many new connections do not delay the existing ones.
  for (size_t i = 0; i < limits::kScrapeConnections / 4; ++i) {
    sockaddr_storage address = {};
    socklen_t length = sizeof address;
    const int fd = accept4(listener_, reinterpret_cast<sockaddr*>(&address), &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      const bool is_full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (!is_full) return;
      accept_at_ = HttpNow() + kNoDescriptorWait;
      shared_->Refused("no_descriptors", "");
      return CloseOldest();
    }
    Prepare(fd);
    const auto others = std::count_if(connections_.begin(), connections_.end(), [](const Connection& connection) {
      return connection.exchange == nullptr || !connection.exchange->is_stream();
    });
    if (static_cast<size_t>(others) >= limits::kScrapeConnections) {
      shared_->Refused("too_many_connections", "");
      CloseOldest();
    }
    connections_.push_back({.fd = fd, .peer = NumericAddress(address), .deadline = HttpNow() + limits::kScrapeWait});
  }
}

void HttpServer::CloseOldest() {
  const auto is_reading = [](const Connection& connection) { return connection.phase != Phase::kAnswer; };
  auto oldest = std::find_if(connections_.begin(), connections_.end(), is_reading);
  if (oldest == connections_.end()) {
    oldest = std::find_if(connections_.begin(), connections_.end(),
                          [](const Connection& connection) { return !connection.exchange->is_stream(); });
  }
  if (oldest != connections_.end()) Close(oldest);
}

void HttpServer::Close(Connections::iterator connection) {
  if (connection->exchange != nullptr) connection->exchange->Close();
  reserved_ -= connection->reserved;
  close(connection->fd);
  connections_.erase(connection);
}

bool HttpServer::Serve(Connection& connection, short events) {
  if (connection.phase == Phase::kLinger) return Linger(connection);
  if (connection.phase != Phase::kAnswer) {
    if (events != 0 && !Read(connection)) return false;
    if (connection.phase == Phase::kHead && !TakeHead(connection)) return false;
    if (connection.phase == Phase::kBody && !TakeBody(connection)) return false;
    if (connection.phase != Phase::kAnswer) return CheckTime(connection);
  }
  if ((events & (POLLERR | POLLHUP)) != 0) return false;  // no answer can be sent any more
  if ((events & POLLRDHUP) != 0) {
    if (connection.exchange->is_stream()) return false;
    connection.half_closed = true;
  }
  ProbeClient(connection);
  return Send(connection);
}

// A client that has closed its side of the connection has gone, or waits for its answer. To find out, this sends an
// interim response: a client that waits ignores it, and the host of a client that has gone resets the connection.
void HttpServer::ProbeClient(Connection& connection) {
  if (!connection.half_closed || connection.probed || !connection.exchange->MustDetectDisconnect()) return;
  connection.probed = true;
  send(connection.fd, kContinue, sizeof kContinue - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Reads the available bytes. Returns false if the client has disconnected.
bool HttpServer::Read(Connection& connection) {
  char buffer[16 << 10];
  const size_t wanted =
      connection.phase == Phase::kHead ? limits::kScrapeRequestBytes + 1 : connection.request.content_length;
  while (connection.input.size() < wanted) {
    const ssize_t n = recv(connection.fd, buffer, std::min(sizeof buffer, wanted - connection.input.size()), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    // What has arrived may be a complete request of a client that sends nothing more.
    if (n == 0) return connection.phase == Phase::kHead && HeadBytes(connection.input) != std::string::npos;
    connection.input.append(buffer, static_cast<size_t>(n));
  }
  return true;
}

bool HttpServer::TakeHead(Connection& connection) {
  const size_t head_bytes = HeadBytes(connection.input);
  if (std::min(head_bytes, connection.input.size()) > limits::kScrapeRequestBytes) {
    Refuse(connection, "head_too_large", HttpText(431, "the head of the request is too large\n"));
    return true;
  }
  if (head_bytes == std::string::npos) return true;
  absl::StatusOr<HttpRequest> head = ParseHttpHead(absl::string_view(connection.input).substr(0, head_bytes));
  if (!head.ok()) {
    const bool no_length = absl::IsUnimplemented(head.status());
    Refuse(connection, no_length ? "no_length" : "malformed",
           HttpText(no_length ? 411 : 400, absl::StrCat(head.status().message(), "\n")));
    return true;
  }
  connection.request = *std::move(head);
  connection.request.peer = connection.peer;
  connection.request.arrival = HttpNow();
  connection.input.erase(0, head_bytes);
  if (options_.admit) {
    if (absl::optional<HttpResponse> refusal = options_.admit(connection.request)) {
      Refuse(connection, "", *refusal);
      return true;
    }
  }
  const size_t bytes = connection.request.content_length;
  if (bytes > options_.body_bytes_max) {
    Refuse(connection, "body_too_large",
           HttpText(413, absl::StrCat("the body has ", bytes, " bytes; at most ", options_.body_bytes_max,
                                      " are accepted here\n")));
    return true;
  }
  if (reserved_ + bytes > limits::kHttpBodiesBytes) {
    Refuse(connection, "too_many_bodies", HttpText(503, "too many requests arrive at once\n", "Retry-After: 1\r\n"));
    return true;
  }
  connection.reserved = bytes;
  reserved_ += bytes;
  connection.phase = Phase::kBody;
  connection.deadline = HttpNow() + TransferLimit(bytes);
  const auto expect = connection.request.header("expect");
  if (expect.has_value() && absl::EqualsIgnoreCase(*expect, "100-continue") && connection.input.size() < bytes) {
    send(connection.fd, kContinue, sizeof kContinue - 1, MSG_NOSIGNAL);
  }
  return true;
}

bool HttpServer::TakeBody(Connection& connection) {
  if (connection.input.size() < connection.request.content_length && !Read(connection)) return false;
  if (connection.input.size() < connection.request.content_length) return true;
  connection.input.resize(connection.request.content_length);
  connection.request.body = std::move(connection.input);
  connection.input.clear();
  connection.phase = Phase::kAnswer;
  connection.deadline = HttpNow() + limits::kHttpAnswerWait;
  connection.exchange = std::make_shared<HttpExchange>(shared_, connection.request);
  {
    absl::MutexLock lock(&mu_);
    requests_.emplace_back(std::move(connection.request), connection.exchange);
  }
  changed_.SignalAll();
  return true;
}

// Answers without the handler. The client may still be sending: its bytes are read and dropped for a moment, because
// the kernel would discard the response if they were unread.
void HttpServer::Refuse(Connection& connection, const char* reason, const HttpResponse& response) {
  if (*reason != '\0') shared_->Refused(reason, connection.peer);
  connection.exchange = std::make_shared<HttpExchange>(shared_, connection.request);
  connection.phase = Phase::kAnswer;
  connection.deadline = HttpNow() + limits::kScrapeWait;
  connection.unread = true;
  connection.exchange->Respond(*reason != '\0' ? shared_->MakeRefusal(reason, response) : response);
}

bool HttpServer::Send(Connection& connection) {
  const HttpExchange::Progress progress = connection.exchange->SendTo(connection.fd);
  connection.blocked = progress == HttpExchange::Progress::kBlocked;
  if (progress == HttpExchange::Progress::kGone) return false;
  if (progress == HttpExchange::Progress::kDone) {
    if (!connection.unread) return false;
    shutdown(connection.fd, SHUT_WR);
    connection.phase = Phase::kLinger;
    connection.deadline = HttpNow() + kLingerWait;
    return Linger(connection);
  }
  if (!connection.exchange->Tick(HttpNow())) {
    shared_->Refused("slow_reader", connection.peer);
    return false;
  }
  // A stream has no deadline of its own: Tick limits the time of each of its texts.
  if (connection.exchange->is_stream()) {
    connection.deadline = absl::InfiniteFuture();
    return true;
  }
  if (HttpNow() < connection.deadline) return true;
  shared_->Refused("no_answer", connection.peer);
  return false;
}

bool HttpServer::Linger(Connection& connection) {
  char buffer[16 << 10];
  size_t dropped = 0;
  // At most 1 MiB in each call, so that a fast sender does not delay the other connections.
  while (dropped < limits::kHttpBodiesBytes / 32) {
    const ssize_t n = recv(connection.fd, buffer, sizeof buffer, 0);
    if (n == 0) return false;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return false;
    if (n < 0) break;
    dropped += static_cast<size_t>(n);
  }
  return HttpNow() < connection.deadline;
}

bool HttpServer::CheckTime(Connection& connection) {
  if (HttpNow() < connection.deadline) return true;
  if (connection.phase == Phase::kHead) {
    shared_->Refused("slow_head", connection.peer);
    return false;
  }
  Refuse(connection, "slow_body", HttpText(408, "the body did not arrive in time; nothing was done\n"));
  return Send(connection);
}

void HttpServer::Answer() {
  while (true) {
    std::pair<HttpRequest, std::shared_ptr<HttpExchange>> next;
    {
      absl::MutexLock lock(&mu_);
      changed_.AwaitFor(&mu_, absl::InfiniteDuration(),
                        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !requests_.empty(); });
      if (stopping_) return;
      next = std::move(requests_.front());
      requests_.pop_front();
    }
    if (!next.second->IsClosed()) options_.handle(std::move(next.first), std::move(next.second));
  }
}

}  // namespace trainyard
