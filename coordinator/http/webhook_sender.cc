#include "coordinator/http/webhook_sender.h"

// Debian's library is compiled with these macros, which change the layout of its classes.
#define CPPHTTPLIB_OPENSSL_SUPPORT
#define CPPHTTPLIB_ZLIB_SUPPORT
#define CPPHTTPLIB_BROTLI_SUPPORT
#include <fcntl.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/version.h"
#include "coordinator/policy/lifecycle.h"

namespace trainyard {
namespace {

constexpr char kCertificates[] = "/etc/ssl/certs/ca-certificates.crt";
constexpr int kConnectSeconds = 3;
constexpr int kTransferSeconds = 5;  // for each read or write
constexpr absl::Duration kRequestTime = absl::Seconds(10);
constexpr absl::Duration kLookInterval = absl::Milliseconds(100);

double Seconds(int64_t unix_ms) { return static_cast<double>(unix_ms) / 1000; }

// Shuts down the connection of a request after kRequestTime, or when `stop` is requested. httplib limits each read
// alone, so a server that sends a byte every few seconds would hold a request for ever. Its function to stop a client
// waits until a TLS handshake is over. Thread-safe.
class RequestLimit {
 public:
  explicit RequestLimit(const std::stop_token& stop)
      : stop_(stop), end_(Clock::GetSteadyClock().TimeNow() + kRequestTime), thread_([this] { Run(); }) {}
  ~RequestLimit() {
    {
      absl::MutexLock lock(&mu_);
      done_ = true;
      changed_.SignalAll();
    }
    thread_.join();
    if (fd_ >= 0) close(fd_);
  }
  RequestLimit(const RequestLimit&) = delete;
  RequestLimit& operator=(const RequestLimit&) = delete;

  // Applies the limit to the socket `fd` instead of an earlier one. It keeps a duplicate, because httplib may close
  // `fd` at any time.
  void Watch(int fd) {
    absl::MutexLock lock(&mu_);
    if (fd_ >= 0) close(fd_);
    fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  }

 private:
  void Run() {
    absl::MutexLock lock(&mu_);
    while (!done_) {
      const bool is_over = stop_.stop_requested() || Clock::GetSteadyClock().TimeNow() >= end_;
      // Repeated, because a socket that begins to connect meanwhile is not shut down yet.
      if (is_over && fd_ >= 0) shutdown(fd_, SHUT_RDWR);
      changed_.WaitFor(&mu_, kLookInterval);
    }
  }

  const std::stop_token stop_;
  const absl::Time end_;
  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  int fd_ ABSL_GUARDED_BY(mu_) = -1;
  std::thread thread_;  // last: it uses the other members
};

// Throws the exceptions of httplib, for example for a port that is no 32-bit number.
WebhookAnswer PostOrThrow(const std::string& url, const std::string& body, const std::stop_token& stop) {
  const size_t host = url.find("://");
  if (host == std::string::npos) return {.status = 0, .problem = "the URL has no scheme"};
  const size_t path = url.find_first_of("/?#", host + 3);
  RequestLimit limit(stop);
  httplib::Client client(url.substr(0, path));
  if (!client.is_valid()) return {.status = 0, .problem = "the URL cannot be used"};
  // OpenSSL's default may be another path, where Debian's package ca-certificates has no file.
  if (FileExists(kCertificates)) client.set_ca_cert_path(kCertificates);
  client.set_connection_timeout(kConnectSeconds);
  client.set_read_timeout(kTransferSeconds);
  client.set_write_timeout(kTransferSeconds);
  client.set_socket_options([&limit](int fd) { limit.Watch(fd); });
  std::string target = path == std::string::npos ? "/" : url.substr(path, url.find('#', path) - path);
  if (target.empty() || target[0] != '/') target.insert(0, "/");
  httplib::Request request;
  request.method = "POST";
  request.path = target;
  request.headers = {{"User-Agent", absl::StrCat("trainyard/", kVersion)}, {"Content-Type", "application/json"}};
  request.body = body;
  int status = 0;
  // Ends the request before the body of the answer, which is not needed and may be endless. `result` is an error then.
  request.response_handler = [&status](const httplib::Response& response) {
    status = response.status;
    return false;
  };
  const httplib::Result result = client.send(request);
  if (result) status = result->status;  // an answer that cannot have a body
  if (status != 0) return {.status = status, .problem = ""};
  return {.status = 0, .problem = absl::StrCat("no answer: ", httplib::to_string(result.error()))};
}

}  // namespace

std::string WebhookBody(const v1::Job& job) {
  nlohmann::ordered_json body = {{"event", "job_ended"},
                                 {"job_id", job.job_id()},
                                 {"name", job.spec().name()},
                                 {"state", StateName(job.state())},
                                 {"reason", job.reason()},
                                 {"last_step", job.last_step()},
                                 {"last_loss", nullptr},
                                 {"restarts", job.restarts()},
                                 {"submitted_s", Seconds(job.submitted_unix_ms())},
                                 {"started_s", Seconds(job.started_unix_ms())},
                                 {"finished_s", Seconds(job.finished_unix_ms())}};
  if (job.has_last_loss()) body["last_loss"] = job.last_loss();
  return body.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

WebhookAnswer PostJson(const std::string& url, const std::string& body, const std::stop_token& stop) {
  // httplib throws for some URLs, for example with a port out of range. The check of job files refuses them, but the
  // store may contain jobs of a version without that check.
  try {
    return PostOrThrow(url, body, stop);
  } catch (const std::exception& e) {
    return {.status = 0, .problem = absl::StrCat("the URL cannot be used: ", e.what())};
  }
}

WebhookSender::WebhookSender(Clock& clock, std::function<void(WebhookDone)> done, Deliver deliver)
    : clock_(clock), done_(std::move(done)), deliver_(std::move(deliver)), thread_([this] { Run(); }) {}

void WebhookSender::Add(WebhookDue due) {
  absl::MutexLock lock(&mu_);
  pending_.push_back({.due = std::move(due), .attempts = 0, .at = clock_.TimeNow()});
  changed_.SignalAll();
}

void WebhookSender::Stop(absl::Duration limit) {
  {
    absl::MutexLock lock(&mu_);
    changed_.AwaitFor(&mu_, limit, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return !busy_ && std::none_of(pending_.begin(), pending_.end(), [](const Pending& p) { return p.attempts == 0; });
    });
    stopping_ = true;
    changed_.SignalAll();
  }
  stop_.request_stop();
  if (thread_.joinable()) thread_.join();
}

bool WebhookSender::TakeNext(Pending* next) {
  absl::MutexLock lock(&mu_);
  while (!stopping_) {
    const absl::Time now = clock_.TimeNow();
    // Of the webhooks whose time has come, those with the fewest attempts are first: the servers of some users that do
    // not answer must not delay the webhooks of the others.
    const auto order = [now](const Pending& one) {
      const bool is_due = one.at <= now;
      return std::make_tuple(!is_due, is_due ? one.attempts : 0, one.at);
    };
    const auto first = std::min_element(pending_.begin(), pending_.end(),
                                        [&](const Pending& a, const Pending& b) { return order(a) < order(b); });
    const absl::Duration wait = first == pending_.end() ? absl::InfiniteDuration() : first->at - now;
    if (wait <= absl::ZeroDuration()) {
      *next = std::move(*first);
      pending_.erase(first);
      busy_ = true;
      return true;
    }
    changed_.WaitFor(&mu_, wait);
  }
  return false;
}

void WebhookSender::Run() {
  Pending next;
  while (TakeNext(&next)) {
    const WebhookAnswer answer = deliver_(next.due.url, WebhookBody(next.due.job), stop_.get_token());
    const WebhookDecision decision = DecideWebhook(++next.attempts, answer);
    const bool retries = decision.act == WebhookDecision::Act::kRetry;
    if (!retries) done_(WebhookDone{JobId(next.due.job.job_id()), next.attempts, decision.reason});
    absl::MutexLock lock(&mu_);
    if (retries) {
      next.at = clock_.TimeNow() + decision.wait;
      pending_.push_back(std::move(next));
    }
    busy_ = false;
    changed_.SignalAll();
  }
}

}  // namespace trainyard
