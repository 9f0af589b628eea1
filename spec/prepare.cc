#include "spec/prepare.h"

#include "common/problems.h"
#include "common/status_macros.h"
#include "common/strict_yaml.h"
#include "spec/digest.h"
#include "spec/presets.h"
#include "spec/resolve.h"
#include "spec/validate.h"

namespace trainyard {

absl::StatusOr<PreparedJob> PrepareJob(const v1::JobSpec& spec, const PrepareOptions& options) {
  PreparedJob job;
  job.spec = spec;
  Problems problems;
  ApplyPreset({}, &job.spec, &problems);
  CheckRules(job.spec, {}, &problems);
  ValidateJob(job.spec, {}, &problems);
  if (job.spec.has_train() && !job.spec.checkpoint().has_dir() && options.default_run_root.empty()) {
    problems.AddError({}, "checkpoint.dir", "is required: a folder that all hosts of the job share");
  }
  RETURN_IF_ERROR(problems.ToStatus());
  for (const Problem& warning : problems.Warnings()) job.warnings.push_back(warning.Message());
  job.decisions = ResolveJob(options.job_id, options.default_run_root, &job.spec);
  job.bytes = SpecBytes(job.spec);
  job.digest = SpecDigest(job.bytes);
  return job;
}

}  // namespace trainyard
