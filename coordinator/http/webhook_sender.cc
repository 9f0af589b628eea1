#include "coordinator/http/webhook_sender.h"

// Debian's library is compiled with these macros, which change the layout of its classes.
#define CPPHTTPLIB_OPENSSL_SUPPORT
#define CPPHTTPLIB_ZLIB_SUPPORT
#define CPPHTTPLIB_BROTLI_SUPPORT
#include <httplib.h>

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/version.h"
#include "coordinator/policy/lifecycle.h"

namespace trainyard {
namespace {

constexpr char kCertificates[] = "/etc/ssl/certs/ca-certificates.crt";
constexpr int kConnectSeconds = 3;
constexpr int kAnswerSeconds = 5;

double Seconds(int64_t unix_ms) { return static_cast<double>(unix_ms) / 1000; }

// Throws the exceptions of httplib, for example for a port that is no 32-bit number.
WebhookAnswer PostOrThrow(const std::string& url, const std::string& body) {
  const size_t host = url.find("://");
  if (host == std::string::npos) return {.status = 0, .problem = "the URL has no scheme"};
  const size_t path = url.find_first_of("/?#", host + 3);
  httplib::Client client(url.substr(0, path));
  if (!client.is_valid()) return {.status = 0, .problem = "the URL cannot be used"};
  // OpenSSL's default may be another path, where Debian's package ca-certificates has no file.
  if (FileExists(kCertificates)) client.set_ca_cert_path(kCertificates);
  client.set_connection_timeout(kConnectSeconds);
  client.set_read_timeout(kAnswerSeconds);
  client.set_write_timeout(kAnswerSeconds);
  std::string target = path == std::string::npos ? "/" : url.substr(path, url.find('#', path) - path);
  if (target.empty() || target[0] != '/') target.insert(0, "/");
  const httplib::Headers headers = {{"User-Agent", absl::StrCat("trainyard/", kVersion)}};
  const httplib::Result result = client.Post(target, headers, body, "application/json");
  if (!result) return {.status = 0, .problem = absl::StrCat("no answer: ", httplib::to_string(result.error()))};
  return {.status = result->status, .problem = ""};
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

WebhookAnswer PostJson(const std::string& url, const std::string& body) {
  // The check of job files refuses such URLs, but the store may contain jobs of a version without that check.
  try {
    return PostOrThrow(url, body);
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
  if (thread_.joinable()) thread_.join();
}

bool WebhookSender::TakeNext(Pending* next) {
  absl::MutexLock lock(&mu_);
  while (!stopping_) {
    const auto first = std::min_element(pending_.begin(), pending_.end(),
                                        [](const Pending& a, const Pending& b) { return a.at < b.at; });
    const absl::Duration wait = first == pending_.end() ? absl::InfiniteDuration() : first->at - clock_.TimeNow();
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
    const WebhookAnswer answer = deliver_(next.due.url, WebhookBody(next.due.job));
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
