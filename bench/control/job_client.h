// The bench's client of JobService: jobs of N ranks with one step. Blocking calls; not thread-safe.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainyard/v1/service.grpc.pb.h"

namespace trainyard::bench {

class JobClient {
 public:
  explicit JobClient(const std::string& coordinator);

  // Returns the job's id. Possible errors: those of JobService.Submit.
  absl::StatusOr<std::string> Submit(uint32_t ranks);
  absl::Status Cancel(const std::string& job);
  absl::StatusOr<v1::Job> Get(const std::string& job);
  // Waits for the job's final state and returns it. Possible errors: those of JobService.Watch.
  absl::StatusOr<v1::JobState> AwaitEnd(const std::string& job);
  // Waits until this number of hosts is attached.
  absl::Status AwaitHosts(uint32_t hosts);

 private:
  const std::unique_ptr<v1::JobService::Stub> stub_;
};

}  // namespace trainyard::bench
