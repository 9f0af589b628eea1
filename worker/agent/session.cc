#include "worker/agent/session.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/limits.h"
#include "common/rpc_status.h"
#include "trainyard/v1/agent.grpc.pb.h"

namespace trainyard::agent {
namespace {

constexpr size_t kOutgoingMessages = 16'384;
constexpr int kReadAheadBytes = 1 << 20;

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  // A connection that drops every packet is detected within three seconds: gRPC also sets the keepalive timeout as
  // TCP_USER_TIMEOUT, and a heartbeat is sent every second, so TCP soon misses an acknowledgement. The pings detect a
  // coordinator whose kernel acknowledges packets while its process does not answer; they are rare, so that a thousand
  // daemons do not give up a coordinator that is only busy.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 2000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Despite its name, this limits how long one attempt to connect may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, absl::ToInt64Milliseconds(limits::kReconnectMin));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, absl::ToInt64Milliseconds(limits::kReconnectMax));
  // By default, channels of one process share connections and their back-off.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Control messages are small and few: a ping for each, to measure the bandwidth, would be half of the traffic.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kReadAheadBytes);
  // The core dials again on its own.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_CHANNELZ, 0);
  arguments.SetMaxReceiveMessageSize(limits::kGrpcMessageBytes);
  arguments.SetMaxSendMessageSize(limits::kGrpcMessageBytes);
  return arguments;
}

}  // namespace

// One attempt and its stream. Deletes itself when gRPC has finished with it.
class Session::Stream final : public grpc::ClientBidiReactor<v1::AgentMessage, v1::CoordinatorMessage> {
 public:
  explicit Stream(Session& session) : session_(session) {}

  void Start(const CoordinatorChannel& dialed, v1::AgentMessage hello) {
    stub_ = v1::AgentService::NewStub(dialed.channel);
    dialed.Authorize(context_);
    stub_->async()->Attach(&context_, this);
    // The hold delays OnDone until OnReadDone removes it, because other threads may still start operations until then.
    AddHold();
    Send(std::move(hello));
    ReadMore();
    StartCall();
  }

  void Send(v1::AgentMessage message) {
    absl::MutexLock lock(&mu_);
    if (ended_) return;
    if (outgoing_.size() >= kOutgoingMessages && reason_.empty()) {
      // Keepalive detects broken connections; this detects a coordinator that is running but does not read.
      reason_ = absl::StrCat("the coordinator has left ", kOutgoingMessages, " messages unread");
      context_.TryCancel();
    }
    if (!reason_.empty()) return;
    outgoing_.push_back(std::move(message));
    WriteNext();
  }

  // Messages that still arrive are dropped.
  void HangUp(const std::string& reason) {
    {
      absl::MutexLock lock(&mu_);
      reason_ = reason;
    }
    context_.TryCancel();
    ReadMore();
  }

  void ReadMore() {
    absl::MutexLock lock(&mu_);
    if (reading_ || ended_) return;
    reading_ = true;
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    bool hung_up;
    {
      absl::MutexLock lock(&mu_);
      reading_ = false;
      ended_ = !ok;
      hung_up = !reason_.empty();
    }
    if (!ok) return RemoveHold();
    // Continue to read here, because the core possibly requests no further read, and only a failed read shows that the
    // stream has ended.
    if (hung_up) return ReadMore();
    switch (incoming_.kind_case()) {
      case v1::CoordinatorMessage::kWelcome:
        return session_.post_(Welcomed{std::move(*incoming_.mutable_welcome())});
      case v1::CoordinatorMessage::kDesired:
        return session_.post_(DesiredStateReceived{std::move(*incoming_.mutable_desired())});
      case v1::CoordinatorMessage::kAck:
        return session_.post_(FactsAcknowledged{incoming_.ack().sequence()});
      case v1::CoordinatorMessage::kValues:
        session_.take_values_(std::move(*incoming_.mutable_values()));
        return ReadMore();
      default:
        // Perhaps a message of a newer coordinator: unknown messages are ignored.
        ReadMore();
    }
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    outgoing_.pop_front();
    // After a failed write the stream is over; reading detects that and ends it.
    if (ok) WriteNext();
  }

  void OnDone(const grpc::Status& status) override {
    absl::Status result = FromGrpcStatus(status);
    {
      absl::MutexLock lock(&mu_);
      if (!reason_.empty()) result = absl::UnavailableError(reason_);
    }
    if (result.ok()) result = absl::UnavailableError("the coordinator has closed the stream");
    Session& session = session_;
    session.ForgetStream();
    delete this;
    session.StreamDeleted(std::move(result));
  }

 private:
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || ended_ || outgoing_.empty()) return;
    writing_ = true;
    StartWrite(&outgoing_.front());
  }

  Session& session_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  v1::CoordinatorMessage incoming_;

  absl::Mutex mu_;
  std::deque<v1::AgentMessage> outgoing_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::string reason_ ABSL_GUARDED_BY(mu_);
};

Session::~Session() {
  absl::MutexLock lock(&mu_);
  if (stream_ != nullptr) stream_->HangUp("the daemon leaves");
  mu_.Await(absl::Condition(
      +[](int* undeleted) { return *undeleted == 0; }, &undeleted_streams_));
}

void Session::Dial(const v1::Hello& hello) {
  absl::StatusOr<CoordinatorChannel> dialed = DialCoordinator(coordinator_, Arguments());
  if (!dialed.ok()) return post_(SessionEnded{dialed.status()});
  absl::MutexLock lock(&mu_);
  channel_ = *std::move(dialed);
  stream_ = new Stream(*this);  // deleted in its OnDone
  ++undeleted_streams_;
  v1::AgentMessage message;
  *message.mutable_hello() = hello;
  stream_->Start(channel_, std::move(message));
}

void Session::HangUp(const std::string& reason) {
  absl::MutexLock lock(&mu_);
  if (stream_ != nullptr) stream_->HangUp(reason);
}

void Session::Send(v1::AgentMessage message) {
  absl::MutexLock lock(&mu_);
  if (stream_ != nullptr) stream_->Send(std::move(message));
}

void Session::ReadMore() {
  absl::MutexLock lock(&mu_);
  if (stream_ != nullptr) stream_->ReadMore();
}

CoordinatorChannel Session::channel() {
  absl::MutexLock lock(&mu_);
  return channel_;
}

void Session::ForgetStream() {
  absl::MutexLock lock(&mu_);
  stream_ = nullptr;
}

void Session::StreamDeleted(absl::Status status) {
  post_(SessionEnded{std::move(status)});
  absl::MutexLock lock(&mu_);
  --undeleted_streams_;
}

}  // namespace trainyard::agent
