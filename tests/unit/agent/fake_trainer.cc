// A trainer without training: uses the link as the real one does, so that the daemon can be tested without torch. The
// name of the job in its spec defines what this trainer does:
//
//   steps-N      registers, puts and gets a value, is ready, reports N steps after `go`, finishes, exits 0
//   endless      as steps-N, but reports steps until it is asked to stop
//   exit-N       exits with code N when it has received the start message
//
// It exits with 3 if its link breaks before its last step or a value cannot be exchanged, with 4 if its last fact is
// not acknowledged within 10 s.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "trainyard/v1/trainer.grpc.pb.h"

namespace trainyard {
namespace {

class FakeTrainer {
 public:
  explicit FakeTrainer(const std::map<std::string, std::string>& flags)
      : stub_(v1::TrainerLink::NewStub(
            grpc::CreateChannel(absl::StrCat("unix:", flags.at("--link")), grpc::InsecureChannelCredentials()))) {
    key_.set_job_id(flags.at("--job"));
    key_.set_generation(std::stoull(flags.at("--generation")));
    key_.set_rank(static_cast<uint32_t>(std::stoul(flags.at("--rank"))));
    token_ = getenv("TRAINYARD_TOKEN");
  }

  int Run() {
    stream_ = stub_->Connect(&context_);
    v1::TrainerMessage message;
    *message.mutable_register_()->mutable_key() = key_;
    message.mutable_register_()->set_token(token_);
    message.mutable_register_()->set_pid(getpid());
    stream_->Write(message);
    v1::LinkMessage first;
    if (!stream_->Read(&first) || !first.has_start()) return 3;
    std::thread reader([this] { Read(); });
    reader.detach();
    v1::JobSpec spec;
    spec.ParseFromString(first.start().trainer().spec());
    printf("rank %u of %u: %s\n", key_.rank(), first.start().trainer().world_size(), spec.name().c_str());
    fflush(stdout);
    int code = 0;
    absl::string_view what = spec.name();
    if (absl::ConsumePrefix(&what, "exit-") && absl::SimpleAtoi(what, &code)) return code;
    if (!ExchangeValues(first.start().trainer().world_size())) return 3;
    uint64_t steps = UINT64_MAX;
    if (absl::ConsumePrefix(&what, "steps-") && !absl::SimpleAtoi(what, &steps)) return 2;
    return Train(steps);
  }

 private:
  struct Received {
    bool go = false;
    bool stop = false;
    bool ended = false;
    uint64_t acknowledged = 0;
  };

  void Read() {
    v1::LinkMessage message;
    while (stream_->Read(&message)) {
      absl::MutexLock lock(&mu_);
      if (message.has_go()) received_.go = true;
      if (message.has_stop()) received_.stop = true;
      if (message.has_ack()) received_.acknowledged = message.ack().sequence();
    }
    absl::MutexLock lock(&mu_);
    received_.ended = true;
  }

  // Puts the value of this rank and gets those of all ranks.
  bool ExchangeValues(uint32_t world_size) {
    v1::TrainerPutRequest put;
    *put.mutable_key() = key_;
    put.set_token(token_);
    put.set_name(absl::StrCat("rank/", key_.rank()));
    put.set_value(absl::StrCat("value of rank ", key_.rank()));
    v1::TrainerPutResponse put_response;
    grpc::ClientContext put_context;
    if (!stub_->PutValue(&put_context, put, &put_response).ok()) return false;
    for (uint32_t rank = 0; rank < world_size; ++rank) {
      v1::TrainerGetRequest get;
      *get.mutable_key() = key_;
      get.set_token(token_);
      get.set_name(absl::StrCat("rank/", rank));
      get.set_wait_ms(20'000);
      v1::TrainerGetResponse got;
      grpc::ClientContext get_context;
      if (!stub_->GetValue(&get_context, get, &got).ok()) return false;
      if (got.value() != absl::StrCat("value of rank ", rank)) return false;
    }
    return true;
  }

  uint64_t Send(v1::TrainerMessage message) {
    message.mutable_fact()->set_sequence(++sequence_);
    stream_->Write(message);
    return sequence_;
  }

  int Train(uint64_t steps) {
    v1::TrainerMessage registered;
    registered.mutable_fact()->mutable_registered()->set_spec_digest("digest");
    Send(registered);
    v1::TrainerMessage ready;
    ready.mutable_fact()->mutable_ready()->set_first_step(1);
    Send(ready);
    if (!Wait(&Received::go)) return 3;
    uint64_t step = 0;
    while (step < steps && !Is(&Received::stop)) {
      v1::TrainerMessage report;
      report.mutable_report()->set_phase("train");
      report.mutable_report()->set_last_step(++step);
      report.mutable_report()->add_steps()->set_step(step);
      if (!stream_->Write(report)) return 3;
      if (steps == UINT64_MAX) absl::SleepFor(absl::Milliseconds(5));
    }
    v1::TrainerMessage finished;
    finished.mutable_fact()->mutable_finished()->set_step(step);
    uint64_t last = Send(finished);
    for (absl::Time end = absl::Now() + absl::Seconds(30); absl::Now() < end; absl::SleepFor(absl::Milliseconds(2))) {
      absl::MutexLock lock(&mu_);
      if (received_.acknowledged >= last) return 0;
    }
    return 4;
  }

  bool Is(bool Received::*what) {
    absl::MutexLock lock(&mu_);
    return received_.*what;
  }
  bool Wait(bool Received::*what) {
    while (!Is(what) && !Is(&Received::ended)) absl::SleepFor(absl::Milliseconds(2));
    return Is(what);
  }

  const std::unique_ptr<v1::TrainerLink::Stub> stub_;
  v1::TrainerKey key_;
  std::string token_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::TrainerMessage, v1::LinkMessage>> stream_;
  uint64_t sequence_ = 0;
  absl::Mutex mu_;
  Received received_ ABSL_GUARDED_BY(mu_);
};

}  // namespace
}  // namespace trainyard

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags;
  for (int i = 1; i + 1 < argc; i += 2) flags[argv[i]] = argv[i + 1];
  auto* trainer = new trainyard::FakeTrainer(flags);  // its reading thread ends with the process
  int code = trainer->Run();
  fflush(stdout);
  _exit(code);
}
