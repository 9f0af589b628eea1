#include "common/scrape_server.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/limits.h"

namespace trainyard {
namespace {

constexpr char kPath[] = "/metrics";
constexpr absl::Duration kNoDescriptorWait = absl::Milliseconds(100);

// The content type is the one that Prometheus requests.
std::string Response(absl::string_view status, absl::string_view body, bool with_body,
                     absl::string_view extra_headers = "") {
  return absl::StrCat("HTTP/1.1 ", status, "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n",
                      "Content-Length: ", body.size(), "\r\nConnection: close\r\n", extra_headers, "\r\n",
                      with_body ? body : "");
}

bool IsComplete(const std::string& request) {
  return absl::StrContains(request, "\r\n\r\n") || absl::StrContains(request, "\n\n");
}

}  // namespace

ScrapeServer::ScrapeServer(int listener, std::function<std::string()> make_page,
                           std::function<std::string(const std::string& request)> answer_other)
    : listener_(listener),
      stop_fd_(eventfd(0, EFD_CLOEXEC)),
      make_page_(std::move(make_page)),
      answer_other_(std::move(answer_other)),
      thread_([this] { Run(); }) {}

ScrapeServer::~ScrapeServer() {
  eventfd_write(stop_fd_, 1);
  thread_.join();
  while (!connections_.empty()) CloseOldest();
  close(listener_);
  close(stop_fd_);
}

void ScrapeServer::Run() {
  while (true) {
    const bool accepts = absl::Now() >= accept_at_;
    absl::Time wake = accepts ? absl::InfiniteFuture() : accept_at_;
    std::vector<pollfd> fds = {{stop_fd_, POLLIN, 0}, {accepts ? listener_ : -1, POLLIN, 0}};
    for (const Connection& connection : connections_) {
      fds.push_back({connection.fd, static_cast<short>(connection.response.empty() ? POLLIN : POLLOUT), 0});
      wake = std::min(wake, connection.deadline);
    }
    const absl::Duration wait = std::max(absl::ZeroDuration(), wake - absl::Now());
    // One millisecond more than the remaining time, so that the deadline has passed after the wait.
    const int timeout_ms =
        wait == absl::InfiniteDuration() ? -1 : static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1;
    if (poll(fds.data(), fds.size(), timeout_ms) < 0 && errno != EINTR) return;
    if (fds[0].revents != 0) return;
    // Created for the first complete request of this round and shared by the others.
    absl::optional<std::string> page;
    size_t at = 2;
    for (auto it = connections_.begin(); it != connections_.end(); ++at) {
      const bool stays_open = fds[at].revents == 0 ? absl::Now() < it->deadline : Serve(*it, &page);
      if (!stays_open) close(it->fd);
      it = stays_open ? std::next(it) : connections_.erase(it);
    }
    if (fds[1].revents != 0) Accept();
  }
}

void ScrapeServer::Accept() {
  // One connection per round, so that many new connections do not delay the existing ones.
  for (size_t i = 0; i < limits::kScrapeConnections / 4; ++i) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      const bool is_full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (is_full) accept_at_ = absl::Now() + kNoDescriptorWait;
      if (is_full && !connections_.empty()) CloseOldest();
      return;
    }
    if (connections_.size() >= limits::kScrapeConnections) CloseOldest();
    connections_.push_back(
        {.fd = fd, .deadline = absl::Now() + limits::kScrapeWait, .request = "", .response = "", .sent = 0});
  }
}

void ScrapeServer::CloseOldest() {
  auto oldest = std::find_if(connections_.begin(), connections_.end(),
                             [](const Connection& connection) { return connection.response.empty(); });
  if (oldest == connections_.end()) oldest = connections_.begin();
  close(oldest->fd);
  connections_.erase(oldest);
}

bool ScrapeServer::Serve(Connection& connection, absl::optional<std::string>* page) {
  if (connection.response.empty()) {
    if (!Read(connection)) return false;
    const bool too_long = connection.request.size() > limits::kScrapeRequestBytes;
    if (!IsComplete(connection.request) && !too_long) return absl::Now() < connection.deadline;
    connection.response = too_long ? Response("431 Request Header Fields Too Large", "", /*with_body=*/false)
                                   : MakeResponse(connection.request, page);
    connection.deadline = absl::Now() + limits::kScrapeWait;
  }
  return Write(connection) && absl::Now() < connection.deadline;
}

// Reads the available bytes. Returns false if the client has disconnected.
bool ScrapeServer::Read(Connection& connection) const {
  char buffer[4096];
  while (connection.request.size() <= limits::kScrapeRequestBytes) {
    const ssize_t n = recv(connection.fd, buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (n == 0) return IsComplete(connection.request);
    connection.request.append(buffer, static_cast<size_t>(n));
  }
  return true;
}

// Writes what the socket accepts. Returns false if all is written or the client has disconnected.
bool ScrapeServer::Write(Connection& connection) const {
  while (connection.sent < connection.response.size()) {
    const ssize_t n = send(connection.fd, connection.response.data() + connection.sent,
                           connection.response.size() - connection.sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    connection.sent += static_cast<size_t>(n);
  }
  return false;
}

std::string ScrapeServer::MakeResponse(const std::string& request, absl::optional<std::string>* page) const {
  const absl::string_view line = absl::string_view(request).substr(0, request.find_first_of("\r\n"));
  const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
  if (parts.size() != 3 || !absl::StartsWith(parts[2], "HTTP/1.")) {
    return Response("400 Bad Request", "this is not an HTTP/1.1 request\n", /*with_body=*/true);
  }
  const bool with_body = parts[0] != "HEAD";
  if (parts[0] != "GET" && parts[0] != "HEAD") {
    return Response("405 Method Not Allowed", "use GET\n", /*with_body=*/true, "Allow: GET, HEAD\r\n");
  }
  if (parts[1].substr(0, parts[1].find('?')) != kPath) {
    if (answer_other_) return answer_other_(request);
    return Response("404 Not Found", absl::StrCat("the metrics are at ", kPath, "\n"), with_body);
  }
  if (!page->has_value()) *page = make_page_();
  return Response("200 OK", **page, with_body);
}

}  // namespace trainyard
