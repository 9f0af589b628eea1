// The streams of JobService over HTTP: a stream that has ended leaves no object behind.
#include "coordinator/http/json_gateway.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "tests/unit/holds_in_time.h"
#include "trainyard/v1/service.grpc.pb.h"

namespace trainyard {
namespace {

// Watch sends one event for the job "ends" and returns. For other jobs it sends no event, and returns when the reader
// leaves.
class OneEvent : public v1::JobService::Service {
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::Event>* writer) override {
    if (request->job_id() == "ends") {
      writer->Write(v1::Event());
      return grpc::Status::OK;
    }
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::CANCELLED;
  }
};

class JsonGatewayTest : public ::testing::Test {
 protected:
  JsonGatewayTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&jobs_);
    server_ = builder.BuildAndStart();
    gateway_.Start(server_->InProcessChannel({}), [](const Caller&, grpc::ClientContext&) {});
  }
  ~JsonGatewayTest() override {
    gateway_.Stop();
    server_->Shutdown();
  }

  std::shared_ptr<HttpExchange> Watch(const std::string& job) {
    auto exchange = std::make_shared<HttpExchange>(shared_, HttpRequest());
    v1::WatchRequest request;
    request.set_job_id(job);
    gateway_.Stream(*FindJobMethod("Watch"), request, {}, {}, exchange);
    return exchange;
  }

  // Whether the call of a stream, which owns the exchange, is destroyed in time.
  static bool IsDestroyed(std::shared_ptr<HttpExchange> exchange) {
    const std::weak_ptr<HttpExchange> observed = exchange;
    exchange = nullptr;
    return HoldsInTime([&observed] { return observed.expired(); });
  }

  OneEvent jobs_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<HttpShared> shared_ = std::make_shared<HttpShared>("", HttpObserver());
  JsonGateway gateway_;
};

TEST_F(JsonGatewayTest, StreamThatHasEnded_IsDestroyed) {
  std::shared_ptr<HttpExchange> exchange = Watch("ends");
  ASSERT_TRUE(HoldsInTime([&exchange] { return exchange->HasBegun(); }));

  exchange->Close();

  EXPECT_TRUE(IsDestroyed(std::move(exchange)));
}

TEST_F(JsonGatewayTest, StreamWhoseReaderLeavesBeforeItBegins_IsDestroyed) {
  std::shared_ptr<HttpExchange> exchange = Watch("runs");

  exchange->Close();

  EXPECT_TRUE(IsDestroyed(std::move(exchange)));
}

TEST_F(JsonGatewayTest, StreamWhoseReaderLeavesAfterItHasBegun_IsDestroyed) {
  std::shared_ptr<HttpExchange> exchange = Watch("runs");
  ASSERT_TRUE(HoldsInTime([&exchange] { return exchange->HasBegun(); })) << "a stream begins even without a message";

  exchange->Close();

  EXPECT_TRUE(IsDestroyed(std::move(exchange)));
}

}  // namespace
}  // namespace trainyard
