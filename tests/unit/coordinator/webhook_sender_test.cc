// The sender of webhooks, with a fake server.
#include "coordinator/http/webhook_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace trainyard {
namespace {

v1::Job EndedJob(const std::string& id) {
  v1::Job job;
  job.set_job_id(id);
  job.mutable_spec()->set_name("small");
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_reason("rank 1 \"failed\"\xff");
  job.set_last_step(7);
  job.set_finished_unix_ms(1500);
  return job;
}

// A server on loopback that sends `answer` to its first client and then leaves the connection open.
class HangingServer {
 public:
  explicit HangingServer(std::string answer) {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    url_ = absl::StrCat("http://127.0.0.1:", ntohs(at.sin_port), "/hook");
    thread_ = std::thread([this, answer = std::move(answer)] {
      client_ = accept(listener_, nullptr, nullptr);
      EXPECT_EQ(send(client_, answer.data(), answer.size(), MSG_NOSIGNAL), static_cast<ssize_t>(answer.size()));
      answered_.Notify();
    });
  }
  ~HangingServer() {
    shutdown(listener_, SHUT_RDWR);  // ends accept
    thread_.join();
    close(client_);
    close(listener_);
  }
  HangingServer(const HangingServer&) = delete;
  HangingServer& operator=(const HangingServer&) = delete;

  const std::string& url() const { return url_; }
  void WaitForClient() { answered_.WaitForNotification(); }

 private:
  const int listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int client_ = -1;
  std::string url_;
  absl::Notification answered_;
  std::thread thread_;
};

TEST(WebhookBody, HasTheEndOfTheJob) {
  v1::Job job = EndedJob("job23456");
  auto body = nlohmann::json::parse(WebhookBody(job));
  EXPECT_EQ(body["event"], "job_ended");
  EXPECT_EQ(body["job_id"], "job23456");
  EXPECT_EQ(body["state"], "FAILED");
  EXPECT_EQ(body["last_step"], 7);
  EXPECT_TRUE(body["last_loss"].is_null());
  EXPECT_EQ(body["finished_s"], 1.5);
  job.set_last_loss(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(nlohmann::json::parse(WebhookBody(job))["last_loss"].is_null());
}

TEST(WebhookSender, RetriesFailedDeliveries_AndReportsTheOutcome) {
  absl::Notification all;
  absl::Mutex mu;
  std::vector<WebhookDone> done;
  int attempts = 0;
  WebhookSender sender(
      Clock::GetSteadyClock(),
      [&](WebhookDone one) {
        absl::MutexLock lock(&mu);
        done.push_back(std::move(one));
        if (done.size() == 2) all.Notify();
      },
      [&](const std::string& url, const std::string&, const std::stop_token&) -> WebhookAnswer {
        if (url == "http://refuses/") return {.status = 404};
        return {.status = ++attempts == 1 ? 503 : 200};
      });

  sender.Add({"http://recovers/", EndedJob("recovers")});
  sender.Add({"http://refuses/", EndedJob("refuses1")});
  all.WaitForNotification();

  absl::MutexLock lock(&mu);
  EXPECT_EQ(done[0].job.value(), "refuses1");
  EXPECT_EQ(done[0].problem, "the server answered with status 404");
  EXPECT_EQ(done[1].job.value(), "recovers");
  EXPECT_EQ(done[1].attempts, 2);
  EXPECT_EQ(done[1].problem, "");
}

TEST(WebhookSender, ServersThatDoNotAnswer_DelayNoFirstAttempt) {
  SimulatedClock clock;
  absl::Notification is_busy, may_end, all;
  std::vector<std::string> tried;
  int done = 0;
  WebhookSender sender(
      clock,
      [&](const WebhookDone&) {
        if (++done == 3) all.Notify();
      },
      [&](const std::string& url, const std::string&, const std::stop_token&) -> WebhookAnswer {
        tried.push_back(url);
        if (url == "http://busy/") {
          is_busy.Notify();
          may_end.WaitForNotification();
        }
        return {.status = tried.size() == 1 ? 503 : 200};
      });
  sender.Add({"http://fails/", EndedJob("fails234")});
  sender.Add({"http://busy/", EndedJob("busy2345")});
  is_busy.WaitForNotification();
  clock.AdvanceTime(absl::Seconds(5));  // the second attempt of the first webhook is due

  sender.Add({"http://new/", EndedJob("new23456")});
  may_end.Notify();
  all.WaitForNotification();

  EXPECT_THAT(tried, testing::ElementsAre("http://fails/", "http://busy/", "http://new/", "http://fails/"));
}

TEST(WebhookSender, StopWaitsForFirstAttempts_ButNotForRetries) {
  std::vector<std::string> tried;
  WebhookSender sender(
      Clock::GetSteadyClock(), [](const WebhookDone&) { FAIL(); },
      [&](const std::string& url, const std::string&, const std::stop_token&) -> WebhookAnswer {
        tried.push_back(url);
        return {.status = 500};
      });
  for (const char* url : {"http://a/", "http://b/", "http://c/"}) sender.Add({url, EndedJob("job23456")});

  sender.Stop(absl::Seconds(30));

  EXPECT_THAT(tried, testing::IsSupersetOf({"http://a/", "http://b/", "http://c/"}));
}

TEST(WebhookSender, StopEndsADeliveryThatHangs) {
  signal(SIGPIPE, SIG_IGN);  // as in coordinator/main.cc
  HangingServer server("HTTP/1.1 200 OK\r\nX-Endless: ");
  WebhookSender sender(Clock::GetSteadyClock(), [](const WebhookDone&) { FAIL(); });
  sender.Add({server.url(), EndedJob("job23456")});
  server.WaitForClient();
  const absl::Time before = Clock::GetSteadyClock().TimeNow();

  sender.Stop(absl::ZeroDuration());

  EXPECT_LT(Clock::GetSteadyClock().TimeNow() - before, absl::Seconds(4)) << "a read may take 5 s";
}

TEST(PostJson, NeedsNoBody_WhichMayBeEndless) {
  HangingServer server("HTTP/1.1 200 OK\r\n\r\n");
  EXPECT_EQ(PostJson(server.url(), "{}").status, 200);
}

TEST(PostJson, SaysWhyThereIsNoAnswer) {
  const WebhookAnswer answer = PostJson("http://127.0.0.1:1/hook?a=b", "{}");
  EXPECT_EQ(answer.status, 0);
  EXPECT_THAT(answer.problem, testing::HasSubstr("no answer"));
}

TEST(PostJson, ReportsAPortThatIsNoNumberOfAPort) {
  const WebhookAnswer answer = PostJson("http://127.0.0.1:99999999999/hook", "{}");
  EXPECT_EQ(answer.status, 0);
  EXPECT_THAT(answer.problem, testing::HasSubstr("the URL cannot be used"));
}

}  // namespace
}  // namespace trainyard
