// The bench as a client of JobService: jobs of N ranks of one step. Blocking calls; one thread.
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
  // Until the job is final; returns its state. Possible errors: those of JobService.Watch.
  absl::StatusOr<v1::JobState> AwaitEnd(const std::string& job);
  // Until so many hosts are attached.
  absl::Status AwaitHosts(uint32_t hosts);

 private:
  const std::unique_ptr<v1::JobService::Stub> stub_;
};

}  // namespace trainyard::bench
