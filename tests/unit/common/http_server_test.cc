// The web server of the daemons, with real sockets: bodies, streams, and clients that do not keep to the rules.
#include "common/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/http_limits.h"
#include "common/listen.h"
#include "tests/unit/http_test_client.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr size_t kBodyMax = 1 << 20;

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    absl::StatusOr<Listener> listener = ListenOn("127.0.0.1:0", absl::ZeroDuration());
    EXPECT_TRUE(listener.ok()) << listener.status();
    EXPECT_TRUE(absl::SimpleAtoi(listener->address.substr(listener->address.rfind(':') + 1), &port_));
    server_ = std::make_unique<HttpServer>(
        listener->fd,
        HttpServerOptions{
            .admit = [](const HttpRequest& head) -> absl::optional<HttpResponse> {
              if (head.path == "/closed") return HttpText(401, "no\n");
              return absl::nullopt;
            },
            .handle = [this](const HttpRequest& request,
                             const std::shared_ptr<HttpExchange>& exchange) { Handle(request, exchange); },
            .body_bytes_max = kBodyMax,
            .headers = "X-Always: yes\r\n",
            .observer = {.refused = [this](const char* reason, const std::string&) { Count(reason); }}});
  }
  ~HttpServerTest() override { server_.reset(); }

  void Handle(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
    if (request.path == "/held") {
      absl::MutexLock lock(&mu_);
      streams_.push_back(exchange);
      return;
    }
    if (request.path == "/stream") {
      const bool begun = exchange->Begin({.type = "text/event-stream"});
      absl::MutexLock lock(&mu_);
      if (begun) streams_.push_back(exchange);
      return;
    }
    exchange->Respond(HttpText(200, absl::StrCat(request.method, " ", request.body)));
  }
  void Count(const std::string& reason) {
    absl::MutexLock lock(&mu_);
    ++refused_[reason];
  }
  int RefusedFor(const std::string& reason) {
    absl::MutexLock lock(&mu_);
    return refused_[reason];
  }
  std::shared_ptr<HttpExchange> AwaitStream(size_t index) {
    absl::MutexLock lock(&mu_);
    const auto is_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return streams_.size() > index; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&is_there), absl::Seconds(10)));
    return streams_.at(index);
  }
  template <typename Condition>
  static bool Await(Condition condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (!condition() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(2));
    return condition();
  }

  int port_ = 0;
  absl::Mutex mu_;
  std::map<std::string, int> refused_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<HttpExchange>> streams_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, Body_ReachesTheHandlerWhole) {
  HttpTestClient client(port_);
  client.Send("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n01234");
  client.Send("56789 and more that is not read");
  EXPECT_THAT(client.Read(), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("X-Always: yes\r\n"),
                                   EndsWith("\r\n\r\nPOST 0123456789")));
}

TEST_F(HttpServerTest, ClientThatExpects100Continue_IsToldToSendItsBodyOnlyIfItIsAdmitted) {
  HttpTestClient admitted(port_), refused(port_);
  admitted.Send("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_THAT(admitted.Read("\r\n\r\n"), StartsWith("HTTP/1.1 100 Continue\r\n"));
  admitted.Send("body");
  EXPECT_THAT(admitted.Read(), EndsWith("POST body"));
  refused.Send("POST /closed HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_THAT(refused.Read(), StartsWith("HTTP/1.1 401 "));
}

TEST_F(HttpServerTest, ClientThatKeepsSending_GetsTheRefusal) {
  HttpTestClient large(port_), closed(port_);
  large.Send(absl::StrCat("POST / HTTP/1.1\r\nContent-Length: ", kBodyMax + 1, "\r\n\r\n", std::string(300'000, 'x')));
  EXPECT_THAT(large.Read(), AllOf(StartsWith("HTTP/1.1 413 "), HasSubstr("at most 1048576 are accepted")));
  closed.Send(absl::StrCat("POST /closed HTTP/1.1\r\nContent-Length: 900000\r\n\r\n", std::string(300'000, 'x')));
  EXPECT_THAT(closed.Read(), StartsWith("HTTP/1.1 401 "));
  EXPECT_EQ(RefusedFor("body_too_large"), 1);
}

TEST_F(HttpServerTest, InvalidRequests_AreRefusedAndCounted) {
  const std::map<std::string, std::string> answers = {
      {"\x16\x03\x01 TLS\r\n\r\n", "HTTP/1.1 400 "},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 411 "},
      {"GET / HTTP/1.1\r\nX: " + std::string(limits::kScrapeRequestBytes, 'x'), "HTTP/1.1 431 "}};
  for (const auto& [request, answer] : answers) {
    HttpTestClient client(port_);
    client.Send(request);
    EXPECT_THAT(client.Read(), StartsWith(answer));
  }
  EXPECT_EQ(RefusedFor("malformed"), 1);
  EXPECT_EQ(RefusedFor("no_length"), 1);
  EXPECT_EQ(RefusedFor("head_too_large"), 1);
}

TEST_F(HttpServerTest, Stream_ArrivesInOrderAndEndsWithItsLastChunk) {
  HttpTestClient client(port_), old(port_);
  client.Send("GET /stream HTTP/1.1\r\n\r\n");
  const auto stream = AwaitStream(0);
  stream->Write("one\n");
  EXPECT_THAT(client.Read("one\n\r\n"),
              AllOf(HasSubstr("Transfer-Encoding: chunked\r\n"), HasSubstr("\r\n4\r\none\n\r\n")));
  stream->Write("two\n");
  stream->End();
  stream->Write("not sent");
  EXPECT_EQ(client.Read(), "4\r\ntwo\n\r\n0\r\n\r\n");
  old.Send("GET /stream HTTP/1.0\r\n\r\n");
  AwaitStream(1)->Write("plain");
  AwaitStream(1)->End();
  EXPECT_THAT(old.Read(), AllOf(EndsWith("\r\n\r\nplain"), Not(HasSubstr("chunked"))));
}

TEST_F(HttpServerTest, SlowReader_FillsItsStream_WhichReportsOnceThatItIsNoLongerFull) {
  HttpTestClient client(port_, 4096);
  client.Send("GET /stream HTTP/1.1\r\n\r\n");
  const auto stream = AwaitStream(0);
  std::atomic<int> changes{0};
  stream->OnChange([&] { ++changes; });
  const auto text = std::make_shared<const std::string>(std::string(64 << 10, 'x'));
  int written = 0;
  // The socket's own buffer takes some megabytes at most.
  for (; !stream->IsFull() && written < 1000; ++written) {
    stream->Write(text);
    absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_LT(written, 1000) << "a stream that is not read never becomes full";
  EXPECT_EQ(changes, 0);
  for (size_t read = 0; read < 64 * 1024 * static_cast<size_t>(written - 1);) read += client.Read("x").size();
  EXPECT_TRUE(Await([&] { return changes == 1 && !stream->IsFull(); }));
  client.Close();
  EXPECT_TRUE(Await([&] { return stream->IsClosed() && changes == 2; })) << "a reader that has gone closes its stream";
}

TEST_F(HttpServerTest, Streams_AreLimited_AndDoNotTakeTheConnectionsOfRequests) {
  std::deque<HttpTestClient> readers;
  for (size_t i = 0; i < limits::kHttpStreams; ++i) {
    readers.emplace_back(port_);
    readers.back().Send("GET /stream HTTP/1.1\r\n\r\n");
    AwaitStream(i);
  }
  HttpTestClient another(port_), request(port_);
  another.Send("GET /stream HTTP/1.1\r\n\r\n");
  EXPECT_THAT(another.Read(), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("Retry-After: ")));
  EXPECT_EQ(RefusedFor("too_many_streams"), 1);
  request.Send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_THAT(request.Read(), StartsWith("HTTP/1.1 200 "));
  readers.pop_front();
  EXPECT_TRUE(Await([&] { return AwaitStream(0)->IsClosed(); }));
  HttpTestClient later(port_);
  later.Send("GET /stream HTTP/1.1\r\n\r\n");
  EXPECT_NE(AwaitStream(limits::kHttpStreams), nullptr);
}

TEST_F(HttpServerTest, ClientThatGoesAwayBeforeItsAnswer_ClosesTheExchange) {
  HttpTestClient client(port_);
  client.Send("POST /held HTTP/1.1\r\nContent-Length: 0\r\n\r\n");
  const auto held = AwaitStream(0);
  std::atomic<int> changes{0};
  held->OnChange([&] { ++changes; });
  EXPECT_FALSE(held->IsClosed());

  client.Close();

  EXPECT_TRUE(Await([&] { return held->IsClosed() && changes == 1; }));
}

TEST_F(HttpServerTest, ClientThatClosesOnlyItsSendingSide_GetsItsAnswer) {
  HttpTestClient client(port_), old(port_);
  client.Send("POST /held HTTP/1.1\r\nContent-Length: 0\r\n\r\n");
  const auto held = AwaitStream(0);
  old.Send("POST /held HTTP/1.0\r\nContent-Length: 0\r\n\r\n");
  const auto held_of_old = AwaitStream(1);
  held->OnChange([] {});
  held_of_old->OnChange([] {});
  client.HalfClose();
  old.HalfClose();
  EXPECT_THAT(client.Read("\r\n\r\n"), StartsWith("HTTP/1.1 100 Continue\r\n"))
      << "the server checks whether the client is still there";

  held->Respond(HttpText(200, "late\n"));
  held_of_old->Respond(HttpText(200, "late\n"));

  EXPECT_THAT(client.Read(), AllOf(StartsWith("HTTP/1.1 200 "), EndsWith("\r\n\r\nlate\n")));
  EXPECT_THAT(old.Read(), StartsWith("HTTP/1.1 200 ")) << "HTTP/1.0 has no interim responses";
}

TEST_F(HttpServerTest, Exchange_OutlivesItsServer) {
  HttpTestClient client(port_);
  client.Send("GET /stream HTTP/1.1\r\n\r\n");
  const auto stream = AwaitStream(0);
  server_.reset();
  EXPECT_TRUE(stream->IsClosed());
  stream->Write("late");
  stream->End();
}

}  // namespace
}  // namespace trainyard
