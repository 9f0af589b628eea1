// Calls over HTTP whose handler does not answer at once: their clients go away, wait, or set a deadline.
#include "coordinator/http/json_gateway.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/http_server.h"
#include "common/listen.h"
#include "tests/unit/http_test_client.h"
#include "trainyard/v1/service.grpc.pb.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kWait = absl::Seconds(10);

// Get waits until it is cancelled or answered.
class WaitingService final : public v1::JobService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext*, const v1::GetRequest* request, v1::Job* job) override {
    job->set_job_id(request->job_id());
    absl::MutexLock lock(&mu_);
    ++begun_;
    waiting_ = new Reactor(*this);
    return waiting_;
  }

  bool AwaitBegun(int count) {
    absl::MutexLock lock(&mu_);
    const auto has = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return begun_ >= count; };
    return mu_.AwaitWithTimeout(absl::Condition(&has), kWait);
  }
  bool AwaitCancelled(int count) {
    absl::MutexLock lock(&mu_);
    const auto has = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return cancelled_ >= count; };
    return mu_.AwaitWithTimeout(absl::Condition(&has), kWait);
  }
  int cancelled() {
    absl::MutexLock lock(&mu_);
    return cancelled_;
  }
  void Answer() {
    absl::MutexLock lock(&mu_);
    if (waiting_ != nullptr) waiting_->Finish(grpc::Status::OK);
    waiting_ = nullptr;
  }

 private:
  class Reactor final : public grpc::ServerUnaryReactor {
   public:
    explicit Reactor(WaitingService& service) : service_(service) {}
    void OnCancel() override {
      absl::MutexLock lock(&service_.mu_);
      ++service_.cancelled_;
      if (service_.waiting_ != this) return;
      service_.waiting_ = nullptr;
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, ""));
    }
    void OnDone() override { delete this; }

   private:
    WaitingService& service_;
  };

  absl::Mutex mu_;
  int begun_ ABSL_GUARDED_BY(mu_) = 0;
  int cancelled_ ABSL_GUARDED_BY(mu_) = 0;
  Reactor* waiting_ ABSL_GUARDED_BY(mu_) = nullptr;
};

void CallGet(const HttpTestClient& client, const std::string& headers = "") {
  const std::string body = R"({"job_id": "job00000001"})";
  client.Send(absl::StrCat("POST /Get HTTP/1.1\r\n", headers, "Content-Length: ", body.size(), "\r\n\r\n", body));
}

class JsonCallsTest : public testing::Test {
 protected:
  JsonCallsTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    grpc_ = builder.BuildAndStart();
    gateway_.Start(grpc_->InProcessChannel({}), [](const Caller&, grpc::ClientContext&) {});
    absl::StatusOr<Listener> listener = ListenOn("127.0.0.1:0", absl::ZeroDuration());
    EXPECT_TRUE(listener.ok()) << listener.status();
    EXPECT_TRUE(absl::SimpleAtoi(listener->address.substr(listener->address.rfind(':') + 1), &port_));
    http_ = std::make_unique<HttpServer>(
        listener->fd,
        HttpServerOptions{.handle =
                              [this](const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
                                gateway_.Handle(*FindJobMethod(request.path.substr(1)), request, {}, exchange);
                              },
                          .body_bytes_max = 1 << 20});
  }
  ~JsonCallsTest() override {
    http_.reset();
    gateway_.Stop();
    grpc_->Shutdown();
  }

  int port_ = 0;
  WaitingService service_;
  std::unique_ptr<grpc::Server> grpc_;
  JsonGateway gateway_;
  std::unique_ptr<HttpServer> http_;
};

TEST_F(JsonCallsTest, CallWhoseClientHasGone_IsCancelled) {
  HttpTestClient client(port_), other(port_);
  CallGet(client);
  ASSERT_TRUE(service_.AwaitBegun(1));

  client.Close();

  EXPECT_TRUE(service_.AwaitCancelled(1));
  CallGet(other);
  ASSERT_TRUE(service_.AwaitBegun(2));
  service_.Answer();
  EXPECT_THAT(other.Read(), StartsWith("HTTP/1.1 200 ")) << "the cancelled call must not affect other clients";
}

TEST_F(JsonCallsTest, CallWhoseClientHalfClosesTheConnection_IsAnswered) {
  HttpTestClient client(port_);
  CallGet(client);
  ASSERT_TRUE(service_.AwaitBegun(1));
  client.HalfClose();
  EXPECT_THAT(client.Read("\r\n\r\n"), StartsWith("HTTP/1.1 100 "))
      << "the server must notice the end of input, and probe with an interim response whether the client has gone";

  service_.Answer();

  EXPECT_THAT(client.Read(), AllOf(StartsWith("HTTP/1.1 200 "), HasSubstr("job00000001")));
  EXPECT_EQ(service_.cancelled(), 0);
}

TEST_F(JsonCallsTest, DeadlineOfTheHeader_EndsTheWait_WithAReason) {
  HttpTestClient client(port_);
  CallGet(client, "Grpc-Timeout: 100m\r\n");

  EXPECT_THAT(client.Read(), AllOf(StartsWith("HTTP/1.1 504 "), HasSubstr("\"reason\":\"NO_ANSWER_IN_TIME\"")));
  EXPECT_TRUE(service_.AwaitCancelled(1));
}

TEST_F(JsonCallsTest, CallsAfterTheStop_AreRefusedWithAReason) {
  gateway_.Stop();
  HttpTestClient client(port_);
  CallGet(client);

  EXPECT_THAT(client.Read(), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("\"reason\":\"SHUTTING_DOWN\"")));
}

}  // namespace
}  // namespace trainyard
