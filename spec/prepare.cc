#include "spec/prepare.h"

#include "absl/strings/str_cat.h"
#include "common/bad_request.h"
#include "common/limits.h"
#include "common/problems.h"
#include "common/status_macros.h"
#include "common/strict_yaml.h"
#include "spec/digest.h"
#include "spec/former_keys.h"
#include "spec/lora_config.h"
#include "spec/model_config.h"
#include "spec/presets.h"
#include "spec/resolve.h"
#include "spec/validate.h"

namespace trainyard {
namespace {

// What the ranks receive. The keys of the queue do not concern them, and the priority may change while they run.
v1::JobSpec SpecOfRanks(v1::JobSpec spec) {
  spec.clear_namespace_();
  spec.clear_priority();
  AddFormerKeys(spec);
  return spec;
}

// Approximately the size of the job's record in the coordinator's store, which keeps the spec both ways.
size_t RecordBytes(const PreparedJob& job) {
  size_t bytes = job.spec.ByteSizeLong() + job.bytes.size();
  for (const v1::ResolvedKey& decision : job.decisions) bytes += decision.ByteSizeLong();
  for (const std::string& warning : job.warnings) bytes += warning.size();
  return bytes;
}

// Refuses a job whose record leaves too little space in its entry of the store for what is added later.
absl::Status CheckRecordSize(const PreparedJob& job) {
  const size_t bytes = RecordBytes(job);
  if (bytes <= limits::kJobRecordBytes) return absl::OkStatus();
  Problems problems;
  problems.AddError({}, "",
                    absl::StrCat("the spec has ", job.spec.ByteSizeLong(), " bytes when it is complete, which makes a ",
                                 "record of ", bytes, " bytes in the coordinator's store; at most ",
                                 limits::kJobRecordBytes, " are accepted; shorten its lists and texts"));
  return BadRequestStatus(problems, *v1::JobSpec::descriptor(), "spec");
}

}  // namespace

absl::StatusOr<PreparedJob> PrepareJob(const v1::JobSpec& spec, const PrepareOptions& options) {
  PreparedJob job;
  Problems problems;
  Positions positions;  // of the keys whose values were invalid; other keys have no position in a file
  if (const size_t bytes = spec.ByteSizeLong(); bytes > kSpecBytesMax) {
    problems.AddError({}, "", absl::StrCat("the spec has ", bytes, " bytes; at most ", kSpecBytesMax, " are accepted"));
    return BadRequestStatus(problems, *v1::JobSpec::descriptor(), "spec");
  }
  job.spec = spec;
  ApplyPreset({}, &job.spec, &problems);
  ApplyModelConfig(&positions, &job.spec, &problems);
  ApplyLoraConfig(positions, &job.spec, &problems);
  DropInvalid(&job.spec, &positions, &problems);
  ValidateJob(job.spec, positions, &problems);
  const bool has_folder = job.spec.checkpoint().has_dir() || positions.count("checkpoint.dir") > 0;
  if (job.spec.has_train() && !has_folder && options.default_run_root.empty()) {
    problems.AddError({}, "checkpoint.dir", "is required; expected a folder that all hosts of the job share");
  }
  if (!problems.ok()) return BadRequestStatus(problems, *v1::JobSpec::descriptor(), "spec");
  for (const Problem& warning : problems.Warnings()) job.warnings.push_back(warning.Message());
  job.decisions = ResolveJob(options.job_id, options.default_run_root, &job.spec);
  job.bytes = SpecBytes(SpecOfRanks(job.spec));
  job.digest = SpecDigest(job.bytes);
  RETURN_IF_ERROR(CheckRecordSize(job));
  return job;
}

}  // namespace trainyard
