// Turns a submitted JobSpec into the one that every rank runs: applies the preset, checks, sets defaults, decides every
// `auto` that needs no host, and serializes the result. The coordinator's submit_job and `trainctl validate` use it.
// Pure.
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

// The same limit as for job files, because every rule reads the whole spec and every rank receives it.
inline constexpr size_t kSpecBytesMax = 1 << 20;

struct PreparedJob {
  v1::JobSpec spec;    // complete except for the keys that each host decides
  std::string bytes;   // `spec`, serialized deterministically, as ranks receive it
  std::string digest;  // of `bytes`
  std::vector<v1::ResolvedKey> decisions;
  std::vector<std::string> warnings;
};

// Fails with InvalidArgument, which lists every problem of the spec, one per line, and also as google.rpc.BadRequest
// (bad_request.h) with fields below `spec`. A job whose record would be too large for the store is such a problem.
absl::StatusOr<PreparedJob> PrepareJob(const v1::JobSpec& spec, const PrepareOptions& options);

}  // namespace trainyard
