// The status page: which requests its port answers and how, and how a long loss curve is reduced.
#include "coordinator/http/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "coordinator/handlers/thin_reports.h"
#include "coordinator/http/api_status.h"
#include "coordinator/http/http_front.h"
#include "coordinator/http/openapi.h"

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
    EXPECT_NE(thinned.events(i).step().step(), 2u) << "a step without a loss is no point of the curve";
    EXPECT_EQ(thinned.events(i).step().compute_s(), 0) << "parts of a step are not shown";
    const uint64_t before = i == 0 ? 0 : thinned.events(i - 1).sequence();
    EXPECT_LT(before, thinned.events(i).sequence());
  }
  EXPECT_GT(evaluations, 2);
  EXPECT_LE(evaluations, static_cast<int>(kPagePoints) / 4);
}

// What the socket of a client would receive.
std::string SentBy(HttpExchange& exchange) {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  std::string text;
  std::array<char, 4096> buffer;
  while (true) {
    const HttpExchange::Progress progress = exchange.SendTo(fds[0]);
    ssize_t n = 0;
    while ((n = recv(fds[1], buffer.data(), buffer.size(), MSG_DONTWAIT)) > 0) text.append(buffer.data(), size_t(n));
    if (progress != HttpExchange::Progress::kBlocked) break;
  }
  close(fds[0]);
  close(fds[1]);
  return text;
}

class StatusPageTest : public testing::Test {
 protected:
  std::string Answer(const std::string& text, bool loopback = true) {
    const auto ask = [this](const std::function<Event(CallId)>& make_event) -> absl::StatusOr<Reply> {
      asked_.push_back(NameOf(make_event(CallId(1))));
      if (!answer_.status.ok()) return answer_.status;
      return answer_;
    };
    const auto count = [this](const char* method, absl::StatusCode code) {
      counted_.push_back(absl::StrCat(method, " ", absl::StatusCodeToString(code)));
    };
    const StatusPage page({.ask = ask, .count = count});
    const auto role_of = [this](absl::optional<absl::string_view> authorization) -> absl::StatusOr<Role> {
      if (!requires_token_) return Role::kViewer;
      if (authorization == "Bearer right") return Role::kOperator;
      if (authorization == "Bearer viewer") return Role::kViewer;
      return absl::UnauthenticatedError("no token");
    };
    JsonGateway gateway;  // not started: calls are answered with 503
    PageFeed feed([](const std::function<Event(CallId)>&) { return absl::UnavailableError("no core"); });
    const HttpFront front({.loopback = loopback,
                           .allow_plaintext = allow_plaintext_,
                           .role_of = role_of,
                           .is_open = [this] { return !requires_token_; },
                           .count = count},
                          &page, &gateway, &feed);
    absl::StatusOr<HttpRequest> request = ParseHttpHead(text);
    if (!request.ok()) return absl::StrCat("HTTP/1.1 400 ", request.status().message());
    const auto shared = std::make_shared<HttpShared>(kHttpFrontHeaders, HttpObserver());
    const auto exchange = std::make_shared<HttpExchange>(shared, *request);
    if (const auto refusal = front.Admit(*request)) {
      exchange->Respond(*refusal);
    } else {
      front.Handle(*request, exchange);
    }
    return SentBy(*exchange);
  }
  std::string Get(const std::string& target, const std::string& headers = "",
                  const std::string& host = "localhost:7071") {
    return Answer(absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: ", host, "\r\n", headers, "\r\n"));
  }
  std::string Call(const std::string& method, const std::string& headers, bool loopback = true) {
    return Answer(absl::StrCat("POST /api/v1/JobService/", method, " HTTP/1.1\r\nHost: localhost:7071\r\n",
                               "Content-Type: application/json\r\n", headers, "\r\n"),
                  loopback);
  }
  static std::string BodyOf(const std::string& response) { return response.substr(response.find("\r\n\r\n") + 4); }

  bool requires_token_ = false;
  bool allow_plaintext_ = false;
  Reply answer_{CallId(1), absl::OkStatus(), v1::Job()};
  std::vector<std::string> asked_, counted_;
};

TEST_F(StatusPageTest, Page_IsServedWithoutAToken_AndLoadsNothingFromElsewhere) {
  requires_token_ = true;

  const std::string page = Get("/");

  EXPECT_THAT(page, AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("Content-Type: text/html; charset=utf-8\r\n"),
                          HasSubstr("default-src 'none'"), HasSubstr("frame-ancestors 'none'"),
                          HasSubstr("X-Content-Type-Options: nosniff\r\n"),
                          HasSubstr("Cache-Control: no-store, no-transform\r\n"), Not(HasSubstr("unsafe")),
                          HasSubstr("</html>")));
  EXPECT_THAT(BodyOf(page), AllOf(Not(HasSubstr("http:")), Not(HasSubstr("https:")), Not(HasSubstr(" style="))));
  for (const char* name : {"page", "elements", "stream", "charts", "actions", "lists", "logs", "job"}) {
    const std::string script = Get(absl::StrCat("/", name, ".js"));
    EXPECT_THAT(script, HasSubstr("Content-Type: text/javascript")) << name;
    EXPECT_THAT(BodyOf(script), AllOf(Not(HasSubstr("innerHTML")), Not(HasSubstr("document.write")),
                                      Not(HasSubstr("eval(")), Not(HasSubstr("localStorage"))))
        << name;
  }
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
  EXPECT_THAT(Answer("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 421 "));
  EXPECT_THAT(Answer("GET / HTTP/1.1\r\nHost: head:7071\r\n\r\n", /*loopback=*/false), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(asked_, SizeIs(0));
}

TEST_F(StatusPageTest, WithoutAToken_AWebSiteCannotReadByANameOfItsOwn) {
  const auto get = [this](const std::string& host) {
    return Answer(
        absl::StrCat("GET /api/v1/jobs/abc HTTP/1.1\r\nHost: ", host, "\r\nAuthorization: Bearer right\r\n\r\n"),
        /*loopback=*/false);
  };
  for (const char* host : {"10.0.0.1:7071", "10.0.0.1", "[fd00::1]:7071", "head:7071", "head", "localhost:7071"}) {
    EXPECT_THAT(get(host), StartsWith("HTTP/1.1 200 ")) << host;
  }
  for (const char* host : {"evil.example:7071", "evil.example", "10.0.0.1.evil.example:7071"}) {
    EXPECT_THAT(get(host), AllOf(StartsWith("HTTP/1.1 403 "), HasSubstr(reasons::kOtherSite))) << host;
  }
  requires_token_ = true;
  EXPECT_THAT(get("head.example:7071"), StartsWith("HTTP/1.1 200 ")) << "no other web site knows the token";
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

TEST_F(StatusPageTest, UnknownTargetsAndMethods_AreRefused) {
  for (const char* target : {"/nothing", "/api/v1/", "/api/v1/jobs/", "/api/v1/jobs/a/b", "/api/v1/jobs/abc/logs",
                             "/api/v1/jobs/..", "/api/v1/jobs/%2e", "/page.html", "//"}) {
    EXPECT_THAT(Get(target), StartsWith("HTTP/1.1 404 ")) << target;
  }
  for (const char* target : {"/api/v1/jobs?page_size=x", "/api/v1/jobs?page_size=1001", "/api/v1/jobs?x=1", "/?a=%00",
                             "/?a=1&a=2", "/api/v1/hosts?page_size=1001", "/api/v1/info?page_size=1", "nonsense"}) {
    EXPECT_THAT(Get(target), StartsWith("HTTP/1.1 400 ")) << target;
  }
  EXPECT_THAT(Get("/", "Authorization: a\r\nAuthorization: b\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Get("/", "no header\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Get("/", "Content-Length: 1\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Get("/", "Content-Length: 0\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Answer("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Get("/api/v1/JobService/Get"), AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: POST\r\n")));
  EXPECT_THAT(asked_, SizeIs(0));
}

TEST_F(StatusPageTest, EveryRefusal_HasAReason) {
  const auto reason_of = [](const std::string& response) -> std::string {
    const auto json = nlohmann::json::parse(BodyOf(response));
    for (const auto& detail : json["details"]) {  // there may be a RetryInfo, too
      if (detail.contains("reason") && detail["domain"] == kErrorDomain) return detail["reason"];
    }
    ADD_FAILURE() << "no reason: " << response;
    return "";
  };
  EXPECT_EQ(reason_of(Get("/nothing")), reasons::kPathNotFound);
  EXPECT_EQ(reason_of(Get("/api/v1/nothing")), reasons::kPathNotFound);
  EXPECT_EQ(reason_of(Get("/api/v1/jobs/a/b")), reasons::kPathNotFound);
  EXPECT_EQ(reason_of(Get("/api/v1/watch/nothing")), reasons::kPathNotFound);
  EXPECT_EQ(reason_of(Get("/api/v1/jobs?page_size=x")), reasons::kInvalidRequest);
  EXPECT_EQ(reason_of(Get("/api/v1/jobs/abc/watch?after=x")), reasons::kInvalidRequest);
  EXPECT_EQ(reason_of(Get("/api/v1/JobService/Get")), reasons::kHttpMethodNotAllowed);
  EXPECT_EQ(reason_of(Get("/", "", "evil.example")), reasons::kOtherSite);
  EXPECT_EQ(reason_of(Get("/api/v1/jobs", "Origin: null\r\n")), reasons::kOtherSite);
  EXPECT_EQ(reason_of(Get("/", "Content-Length: 1\r\n")), reasons::kHttpRequestInvalid);
  EXPECT_EQ(reason_of(Call("NoSuchMethod", "")), reasons::kMethodUnknown);
  EXPECT_EQ(reason_of(Call("Cancel", "")), reasons::kTokenNotConfigured);
  EXPECT_EQ(reason_of(Call("Get", "")), reasons::kStarting);
  requires_token_ = true;
  EXPECT_EQ(reason_of(Call("Cancel", "Authorization: Bearer viewer\r\n")), reasons::kOperatorRequired);
  EXPECT_EQ(reason_of(Call("Cancel", "Authorization: Bearer right\r\n", /*loopback=*/false)), reasons::kPortNotPrivate);
  for (const auto& [reason, published] : {std::pair{"body_too_large", reasons::kMessageTooLarge},
                                          {"too_many_bodies", reasons::kOverloaded},
                                          {"too_many_streams", reasons::kTooManyStreams},
                                          {"slow_body", reasons::kBodyTooSlow},
                                          {"malformed", reasons::kHttpRequestInvalid}}) {
    const HttpResponse refusal = RefusalResponse(reason, HttpText(499, "no\n", "Retry-After: 7\r\n"));
    EXPECT_EQ(refusal.code, 499) << reason;
    EXPECT_EQ(refusal.headers, "Retry-After: 7\r\n") << reason;
    EXPECT_THAT(refusal.body, AllOf(HasSubstr(published), HasSubstr("\"message\":\"no\""))) << reason;
  }
}

TEST_F(StatusPageTest, RequestsOfOtherSites_AreRefused) {
  EXPECT_THAT(Get("/api/v1/jobs/abc", "Origin: http://localhost:7071\r\nSec-Fetch-Site: same-origin\r\n"),
              StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Get("/api/v1/jobs/abc", "Sec-Fetch-Site: none\r\n"), StartsWith("HTTP/1.1 200 "));
  for (const char* header : {"Origin: http://evil.example", "Origin: null", "Origin: http://localhost:8080",
                             "Origin: ", "Origin: http://localhost:7071.evil.example", "Sec-Fetch-Site: cross-site",
                             "Sec-Fetch-Site: same-site"}) {
    const std::string answer = Get("/api/v1/jobs/abc", absl::StrCat(header, "\r\n"));
    EXPECT_THAT(answer, AllOf(StartsWith("HTTP/1.1 403 "), Not(HasSubstr("Access-Control")))) << header;
  }
}

TEST_F(StatusPageTest, CallsThatChangeAJob_RequireAnOperatorsToken_AndJson) {
  const std::string right = "Authorization: Bearer right\r\n", viewer = "Authorization: Bearer viewer\r\n";
  EXPECT_THAT(Call("Cancel", ""), AllOf(StartsWith("HTTP/1.1 403 "), HasSubstr("--token-file")))
      << "without a token, another web site may have made the request";
  EXPECT_THAT(Call("Get", ""), StartsWith("HTTP/1.1 503 "))
      << "the page accepts the call; only the gateway, which is not started, refuses it";

  requires_token_ = true;
  EXPECT_THAT(Call("Cancel", ""), StartsWith("HTTP/1.1 401 "));
  EXPECT_THAT(Call("Cancel", viewer), AllOf(StartsWith("HTTP/1.1 403 "), HasSubstr("viewers")));
  EXPECT_THAT(Call("Get", viewer), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Call("Cancel", right), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Call("Cancel", right, /*loopback=*/false),
              AllOf(StartsWith("HTTP/1.1 403 "), HasSubstr("--allow-plaintext")));
  allow_plaintext_ = true;
  EXPECT_THAT(Call("Cancel", right, /*loopback=*/false), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Call("Cancel", right + "Trainyard-User: \"quoted\"\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Call("NoSuchMethod", right), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Answer(absl::StrCat("POST /api/v1/JobService/Get HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                                  "text/plain\r\n",
                                  right, "\r\n")),
              StartsWith("HTTP/1.1 415 "));
  EXPECT_THAT(BodyOf(Get("/api/v1/whoami", right)), HasSubstr("\"may_operate\":true"));
  EXPECT_THAT(BodyOf(Get("/api/v1/whoami", viewer)), AllOf(HasSubstr("\"may_operate\":false"), HasSubstr("viewer")));
}

TEST(EventId, IsThePositionOfAReader) {
  const auto position = ParseEventId("12.3.0");
  ASSERT_TRUE(position.ok());
  EXPECT_EQ(position->sequence, 12u);
  EXPECT_EQ(position->step, 3u);
  EXPECT_EQ(EventId(*position), "12.3.0");
  for (const char* id : {"", "1", "1.2", "1.2.3.4", "1.2.x", "1.2.-3", "1..3", "99999999999999999999.0.0"}) {
    EXPECT_FALSE(ParseEventId(id).ok()) << id;
  }
}

TEST(OpenApi, DescribesEveryMethod) {
  const auto document = nlohmann::json::parse(OpenApiJson());
  const auto* service = v1::Job::descriptor()->file()->FindServiceByName("JobService");
  EXPECT_EQ(document["paths"].size(), static_cast<size_t>(service->method_count()));
  const auto& schemas = document["components"]["schemas"];
  EXPECT_EQ(schemas["trainyard.v1.Job"]["properties"]["last_step"]["type"], "string") << "a 64-bit number is text";
  EXPECT_EQ(schemas["trainyard.v1.LogLine"]["properties"]["text"]["format"], "byte");
  // Every reference has a schema.
  const std::string text = document.dump();
  const std::string prefix = "\"#/components/schemas/";
  for (size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix, at + 1)) {
    const size_t begin = at + prefix.size();
    EXPECT_TRUE(schemas.contains(text.substr(begin, text.find('"', begin) - begin))) << text.substr(begin, 60);
  }
}

TEST(GrpcTimeout, IsReadAsGrpcDefinesIt) {
  EXPECT_EQ(*ParseGrpcTimeout("2500m"), absl::Milliseconds(2500));
  EXPECT_EQ(*ParseGrpcTimeout("1H"), absl::Hours(1));
  for (const char* text : {"", "1", "S", "1s", "-1S", "123456789S", "1.5S", " 1S"}) {
    EXPECT_FALSE(ParseGrpcTimeout(text).ok()) << text;
  }
}

}  // namespace
}  // namespace trainyard
