// Delivers webhooks (on_end.webhook): an HTTP POST with JSON when a job has ended. A thread of its own makes the
// requests, one at a time, and repeats those that fail as policy/webhook.h decides. First attempts come before repeated
// ones. Thread-safe.
#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/steady_cond_var.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"
#include "coordinator/policy/webhook.h"

namespace trainyard {

// The body of the request: {"event": "job_ended", "job_id": ..., "name": ..., "state": "SUCCEEDED", "reason": ...,
// "last_step": ..., "last_loss": number or null, "restarts": ..., "submitted_s": ..., "started_s": ..., "finished_s":
// ...}. Times are seconds since 1970; started_s is 0 if the job did not start.
std::string WebhookBody(const v1::Job& job);

// Makes one request, which takes at most about 10 s after the name of the host is resolved, and ends without an answer
// when `stop` is requested. The body of the answer is not read. Servers of https are verified with the certificates of
// the system; redirects are not followed.
WebhookAnswer PostJson(const std::string& url, const std::string& body,
                       const std::stop_token& stop = std::stop_token());

class WebhookSender {
 public:
  // Returns soon after `stop` is requested.
  using Deliver =
      std::function<WebhookAnswer(const std::string& url, const std::string& body, const std::stop_token& stop)>;

  // `done` is called on the thread of this object. `clock` must be steady.
  WebhookSender(Clock& clock, std::function<void(WebhookDone)> done, Deliver deliver = PostJson);
  ~WebhookSender() { Stop(absl::ZeroDuration()); }
  WebhookSender(const WebhookSender&) = delete;
  WebhookSender& operator=(const WebhookSender&) = delete;

  void Add(WebhookDue due);
  // Waits, at most for `limit`, until each webhook was tried once, then ends the thread and the request that it makes.
  // Can be called again. The next coordinator with this store delivers the webhooks that are left.
  void Stop(absl::Duration limit);

 private:
  struct Pending {
    WebhookDue due;
    int attempts = 0;
    absl::Time at;
  };

  void Run();
  // Waits for the next webhook whose time has come. Returns false if the thread should end.
  bool TakeNext(Pending* next);

  Clock& clock_;
  const std::function<void(WebhookDone)> done_;
  const Deliver deliver_;
  std::stop_source stop_;
  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::vector<Pending> pending_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses the other members
};

}  // namespace trainyard
