#include "bench/control/value_exchange.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/generic/generic_stub.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "trainyard/v1/agent.grpc.pb.h"

namespace trainyard::bench {
namespace {

constexpr char kWatchValues[] = "/trainyard.v1.AgentService/WatchValues";
// About what gloo puts for an address.
constexpr size_t kValueBytes = 64;

}  // namespace

uint64_t CountValues(const grpc::ByteBuffer& message) {
  constexpr uint32_t kTag = (v1::StoreValues::kValuesFieldNumber << 3) | 2;
  grpc::Slice whole;
  if (!message.DumpToSingleSlice(&whole).ok()) return 0;
  google::protobuf::io::CodedInputStream in(whole.begin(), static_cast<int>(whole.size()));
  uint64_t count = 0;
  while (uint32_t tag = in.ReadTag()) {
    uint32_t size = 0;
    if (tag != kTag || !in.ReadVarint32(&size) || !in.Skip(static_cast<int>(size))) return 0;
    ++count;
  }
  return count;
}

// Deletes itself when gRPC is done with it.
class ValueExchange::Watch final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Watch(ValueExchange& exchange, const v1::WatchValuesRequest& request)
      : exchange_(exchange), stub_(exchange.options_.channel) {
    grpc::Slice bytes(request.SerializeAsString());
    request_ = grpc::ByteBuffer(&bytes, 1);
    stub_.PrepareBidiStreamingCall(&exchange.watch_context_, kWatchValues, grpc::StubOptions(), this);
    StartWriteLast(&request_, grpc::WriteOptions());
    StartRead(&incoming_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    exchange_.Counted(CountValues(incoming_));
    StartRead(&incoming_);
  }
  void OnDone(const grpc::Status&) override {
    ValueExchange& exchange = exchange_;
    delete this;
    exchange.End();
  }

 private:
  ValueExchange& exchange_;
  grpc::GenericStub stub_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer incoming_;
};

ValueExchange::ValueExchange(Options options) : options_(std::move(options)) {
  v1::WatchValuesRequest request;
  request.set_job_id(options_.key.job_id());
  request.set_generation(options_.key.generation());
  request.set_host_incarnation(options_.incarnation);
  Begin();
  new Watch(*this, request);  // until its OnDone
}

ValueExchange::~ValueExchange() {
  watch_context_.TryCancel();
  put_context_.TryCancel();
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(
      +[](int* running) { return *running == 0; }, &running_));
}

void ValueExchange::Put() {
  *put_.mutable_key() = options_.key;
  put_.set_host_incarnation(options_.incarnation);
  put_.set_name(absl::StrCat("rank-", options_.key.rank()));
  put_.set_value(std::string(kValueBytes, 'v'));
  Begin();
  v1::AgentService::NewStub(options_.channel)
      ->async()
      ->PutValue(&put_context_, &put_, &put_done_, [this](const grpc::Status&) { End(); });
}

void ValueExchange::Counted(uint64_t more) {
  {
    absl::MutexLock lock(&mu_);
    bool before = counted_ >= options_.values;
    counted_ += more;
    if (before || counted_ < options_.values) return;
  }
  options_.complete();
}

void ValueExchange::Begin() {
  absl::MutexLock lock(&mu_);
  ++running_;
}

void ValueExchange::End() {
  absl::MutexLock lock(&mu_);
  --running_;
}

}  // namespace trainyard::bench
