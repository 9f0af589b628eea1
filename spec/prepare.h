// Everything that turns a submitted JobSpec into the one that every rank runs: preset, checks, defaults, every `auto`
// that can be decided without a host, then the bytes and their digest, fixed once. Used by the coordinator's submit_job
// and by `trainctl validate`. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainyard/v1/job.pb.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {

struct PrepareOptions {
  std::string job_id;
  std::string default_run_root;  // absolute; empty: the spec must name checkpoint.dir
};

// As much as a job file may have: every rule reads the whole spec, and every rank receives it.
inline constexpr size_t kSpecBytesMax = 1 << 20;

struct PreparedJob {
  v1::JobSpec spec;    // nothing left open but what each host decides
  std::string bytes;   // `spec`, serialised deterministically: what ranks receive
  std::string digest;  // of `bytes`
  std::vector<v1::ResolvedKey> decisions;
  std::vector<std::string> warnings;
};

// Possible errors: InvalidArgument: every problem of the spec, one a line, also as google.rpc.BadRequest (see
// bad_request.h) with fields below `spec`. Fix the spec.
absl::StatusOr<PreparedJob> PrepareJob(const v1::JobSpec& spec, const PrepareOptions& options);

}  // namespace trainyard
