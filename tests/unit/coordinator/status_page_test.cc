// The status page: what its port answers to whom, and how a long loss curve is reduced.
#include "coordinator/http/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "coordinator/handlers/thin_reports.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(ThinCurve, ShortCurve_IsKept) {
  EXPECT_THAT(ThinCurve({}, 4), SizeIs(0));
  EXPECT_THAT(ThinCurve({3, 2, 1}, 4), ElementsAre(0, 1, 2));
}

TEST(ThinCurve, LongCurve_KeepsItsEndsAndItsPeaks) {
  for (size_t count : {5u, 100u, 2'001u, 65'536u}) {
    std::vector<double> losses(count, 1.0);
    losses[count / 3] = 50;
    losses[count / 2] = std::numeric_limits<double>::quiet_NaN();
    losses[count - 2] = -7;

    const std::vector<size_t> kept = ThinCurve(losses, 64);

    EXPECT_LE(kept.size(), std::min<size_t>(count, 64));
    EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
    EXPECT_EQ(std::adjacent_find(kept.begin(), kept.end()), kept.end()) << "no index occurs twice";
    EXPECT_THAT(kept, testing::IsSupersetOf({size_t{0}, count / 3, count / 2, count - 2, count - 1})) << count;
  }
}

TEST(ThinReports, StepsAndEvaluations_StayInOrderAndBelowTheLimit) {
  std::deque<EventPtr> reports;
  for (uint64_t i = 1; i <= 10'000; ++i) {
    auto event = std::make_shared<v1::Event>();
    event->set_sequence(i);
    if (i % 5 == 0) {
      event->mutable_eval()->set_step(i);
    } else {
      event->mutable_step()->set_step(i);
      event->mutable_step()->set_compute_s(1);
      // A script may report steps without losses.
      if (i != 2) event->mutable_step()->set_loss(1);
    }
    reports.push_back(std::move(event));
  }

  const v1::ListEventsResponse thinned = ThinReports(reports, kPagePoints);

  EXPECT_LE(thinned.events_size(), static_cast<int>(kPagePoints));
  EXPECT_EQ(thinned.events(0).step().step(), 1u);
  EXPECT_EQ(thinned.events(thinned.events_size() - 1).eval().step(), 10'000u);
  int evaluations = 0;
  for (int i = 0; i < thinned.events_size(); ++i) {
    evaluations += thinned.events(i).has_eval() ? 1 : 0;
    EXPECT_NE(thinned.events(i).step().step(), 2u) << "it is no point of the curve";
    EXPECT_EQ(thinned.events(i).step().compute_s(), 0) << "parts of a step are not shown";
    const uint64_t before = i == 0 ? 0 : thinned.events(i - 1).sequence();
    EXPECT_LT(before, thinned.events(i).sequence());
  }
  EXPECT_GT(evaluations, 2);
  EXPECT_LE(evaluations, static_cast<int>(kPagePoints) / 4);
}

class StatusPageTest : public testing::Test {
 protected:
  StatusPage MakePage(bool loopback = true) {
    return StatusPage({.loopback = loopback,
                       .check =
                           [this](absl::optional<absl::string_view> authorization) {
                             if (!requires_token_ || authorization == "Bearer right") return absl::OkStatus();
                             return absl::UnauthenticatedError("no token");
                           },
                       .ask = [this](const std::function<Event(CallId)>& make_event) -> absl::StatusOr<Reply> {
                         asked_.push_back(NameOf(make_event(CallId(1))));
                         if (!answer_.status.ok()) return answer_.status;
                         return answer_;
                       },
                       .count =
                           [this](const char* method, absl::StatusCode code) {
                             counted_.push_back(absl::StrCat(method, " ", absl::StatusCodeToString(code)));
                           }});
  }
  std::string Get(const std::string& target, const std::string& headers = "",
                  const std::string& host = "localhost:7071") {
    return MakePage().Answer(absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: ", host, "\r\n", headers, "\r\n"));
  }
  static std::string BodyOf(const std::string& response) { return response.substr(response.find("\r\n\r\n") + 4); }

  bool requires_token_ = false;
  Reply answer_{CallId(1), absl::OkStatus(), v1::Job()};
  std::vector<std::string> asked_, counted_;
};

TEST_F(StatusPageTest, Page_IsServedWithoutAToken_AndLoadsNothingFromElsewhere) {
  requires_token_ = true;

  const std::string page = Get("/");

  EXPECT_THAT(page, AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Type: text/html; charset=utf-8\r\n"),
                          HasSubstr("default-src 'none'"), HasSubstr("frame-ancestors 'none'"),
                          HasSubstr("X-Content-Type-Options: nosniff\r\n"), HasSubstr("Cache-Control: no-store\r\n"),
                          Not(HasSubstr("unsafe")), HasSubstr("</html>")));
  EXPECT_THAT(BodyOf(page), AllOf(Not(HasSubstr("http:")), Not(HasSubstr("https:")), Not(HasSubstr(" style="))));
  const std::string script = Get("/page.js");
  EXPECT_THAT(script, HasSubstr("Content-Type: text/javascript"));
  EXPECT_THAT(BodyOf(script),
              AllOf(Not(HasSubstr("innerHTML")), Not(HasSubstr("document.write")), Not(HasSubstr("eval("))));
  EXPECT_THAT(Get("/page.css"),
              AllOf(HasSubstr("prefers-color-scheme: dark"), HasSubstr("[hidden] { display: none !important; }")));
  EXPECT_THAT(asked_, SizeIs(0));
}

TEST_F(StatusPageTest, Data_RequiresTheTokenInTheHeader) {
  requires_token_ = true;

  for (const char* path :
       {"info", "jobs", "jobs/abc", "jobs/abc/events", "jobs/abc/steps", "hosts", "events", "nothing"}) {
    const std::string target = absl::StrCat("/api/v1/", path);
    EXPECT_THAT(Get(target), AllOf(StartsWith("HTTP/1.1 401 "), HasSubstr("WWW-Authenticate: Bearer\r\n")));
    EXPECT_THAT(Get(target, "Authorization: Bearer wrong\r\n"), StartsWith("HTTP/1.1 401 "));
    EXPECT_THAT(Get(absl::StrCat(target, "?token=right")), StartsWith("HTTP/1.1 401 "));
  }
  EXPECT_THAT(asked_, SizeIs(0)) << "the core is not asked for callers without the token";

  EXPECT_THAT(Get("/api/v1/jobs/abc", "authorization: Bearer right\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Get("/api/v1/jobs?token=right", "authorization: Bearer right\r\n"),
              AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("Authorization: Bearer TOKEN")));
}

TEST_F(StatusPageTest, OnLoopback_HostMustNameThisMachine) {
  for (const char* host : {"localhost", "LOCALHOST:7071", "127.0.0.1:7071", "[::1]:7071", "[::1]"}) {
    EXPECT_THAT(Get("/", "", host), StartsWith("HTTP/1.1 200 ")) << host;
  }
  for (const char* host :
       {"", "evil.example", "evil.example:7071", "127.0.0.1.evil.example", "localhost.evil.example"}) {
    EXPECT_THAT(Get("/", "", host), StartsWith("HTTP/1.1 421 ")) << host;
    EXPECT_THAT(Get("/api/v1/jobs/abc", "", host), StartsWith("HTTP/1.1 421 ")) << host;
  }
  EXPECT_THAT(MakePage().Answer("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 421 "));
  EXPECT_THAT(MakePage(/*loopback=*/false).Answer("GET / HTTP/1.1\r\nHost: head:7071\r\n\r\n"),
              StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(asked_, SizeIs(0));
}

TEST_F(StatusPageTest, Job_IsTheMessageOfTheApi_WithAReducedSpec) {
  v1::Job job;
  job.set_job_id("abc");
  job.set_reason("</script><script>alert(1)</script>\n\"");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_last_loss(std::numeric_limits<double>::quiet_NaN());
  job.mutable_spec()->set_name("a-name");
  job.mutable_spec()->mutable_command()->add_argv("--password=secret");
  answer_.response = job;

  const std::string response = Get("/api/v1/jobs/abc");

  EXPECT_THAT(response, AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("Content-Type: application/json"),
                              Not(HasSubstr("secret"))));
  const auto json = nlohmann::json::parse(BodyOf(response));
  EXPECT_EQ(json["spec"]["name"], "a-name");
  EXPECT_EQ(json["reason"], job.reason());
  EXPECT_EQ(json["state"], "JOB_STATE_RUNNING");
  EXPECT_EQ(json["last_loss"], "NaN");
  EXPECT_THAT(asked_, ElementsAre("get_job"));
  EXPECT_THAT(counted_, ElementsAre("page_job OK"));
}

TEST_F(StatusPageTest, UnchangedData_Is304) {
  const std::string first = Get("/api/v1/jobs/abc");
  const size_t at = first.find("ETag: ") + 6;
  const std::string header = absl::StrCat("If-None-Match: ", first.substr(at, first.find("\r\n", at) - at), "\r\n");

  const std::string unchanged = Get("/api/v1/jobs/abc", header);
  v1::Job job;
  job.set_last_step(2);
  answer_.response = job;

  EXPECT_THAT(unchanged, StartsWith("HTTP/1.1 304 "));
  EXPECT_EQ(BodyOf(unchanged), "");
  EXPECT_THAT(Get("/api/v1/jobs/abc", header), StartsWith("HTTP/1.1 200 "));
}

TEST_F(StatusPageTest, StatusOfTheCore_BecomesAnHttpCode) {
  answer_.status = absl::NotFoundError("no job abc");
  EXPECT_THAT(Get("/api/v1/jobs/abc"), AllOf(StartsWith("HTTP/1.1 404 "), HasSubstr("no job abc")));
  answer_.status = absl::UnavailableError("busy");
  EXPECT_THAT(Get("/api/v1/hosts"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Retry-After: 1\r\n")));
}

TEST_F(StatusPageTest, WhatItDoesNotKnow_IsRefused) {
  for (const char* target : {"/nothing", "/api/v1/", "/api/v1/jobs/", "/api/v1/jobs/a/b", "/api/v1/jobs/abc/logs",
                             "/api/v1/jobs/..", "/api/v1/jobs/%2e", "/page.html", "//"}) {
    EXPECT_THAT(Get(target), StartsWith("HTTP/1.1 404 ")) << target;
  }
  for (const char* target : {"/api/v1/jobs?page_size=x", "/api/v1/jobs?page_size=1001", "/api/v1/jobs?x=1", "/?a=%00",
                             "/?a=1&a=2", "/api/v1/hosts?page_size=1", "nonsense"}) {
    EXPECT_THAT(Get(target), StartsWith("HTTP/1.1 400 ")) << target;
  }
  EXPECT_THAT(Get("/", "Authorization: a\r\nAuthorization: b\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Get("/", "no header\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(MakePage().Answer("POST / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(asked_, SizeIs(0));
}

}  // namespace
}  // namespace trainyard
