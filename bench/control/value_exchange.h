// One host's part in the exchange of rendezvous values: puts its rank's value, and says when it has all of them. Counts
// the values of a stream without storing them, since one process plays a thousand hosts.
//
// Thread-safe. `complete` is called from gRPC's threads, once.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "trainyard/v1/agent.pb.h"

namespace trainyard::bench {

class ValueExchange {
 public:
  struct Options {
    std::shared_ptr<grpc::Channel> channel;
    uint64_t incarnation = 0;
    v1::TrainerKey key;
    uint64_t values = 0;  // that make it complete
    std::function<void()> complete;
  };

  // Begins to watch.
  explicit ValueExchange(Options options);
  // Cancels what is under way, and waits for its end.
  ~ValueExchange();
  ValueExchange(const ValueExchange&) = delete;
  ValueExchange& operator=(const ValueExchange&) = delete;

  // Puts this rank's value.
  void Put();

 private:
  class Watch;

  void Counted(uint64_t more);
  void Begin();
  void End();

  const Options options_;
  grpc::ClientContext watch_context_;
  grpc::ClientContext put_context_;
  v1::PutValueRequest put_;
  v1::PutValueResponse put_done_;

  absl::Mutex mu_;
  uint64_t counted_ ABSL_GUARDED_BY(mu_) = 0;
  int running_ ABSL_GUARDED_BY(mu_) = 0;
};

// Fields number 1 of length-delimited type at the top level of a message: its values. 0 where it is malformed.
uint64_t CountValues(const grpc::ByteBuffer& message);

}  // namespace trainyard::bench
