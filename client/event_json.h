// Events as JSON for programs, one object per line: numbers with full precision, snake_case keys, ids as strings. The
// first line describes the job, the last its end. A loss that is not finite is null. The token of viewers shows no
// specs: values from the spec are then null, except the name and the number of ranks, and the layout is empty. Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/run_stats.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// {"event":"job","id":"...","name":"...","ranks":2,"steps":1200,"dir":"...","decisions":[...],"warnings":[...]}
std::string JobLine(const v1::Job& job);

// {"event":"state"|"step"|"eval"|"checkpoint"|"notice"|"probe",...}; "unknown" for a kind of a newer coordinator.
std::string EventLine(const v1::Event& event);

// {"event":"output",...}: a line that a rank of a command has written.
std::string OutputLine(const v1::LogLine& line);

// {"event":"notice",...} from trainctl itself.
std::string NoticeLine(absl::string_view level, absl::string_view text);

// {"event":"error","text":"...","exit_code":2}: there is no job, or its events cannot be read any further.
std::string ErrorLine(absl::string_view text, int exit_code);
// The same with the details of a failed call, as far as `status` has them: "code":"NOT_FOUND","reason":"JOB_NOT_FOUND",
// "metadata":{...},"fields":[{"field":"spec.name","problem":"..."}],"resource":{...},"retry_after_s":0.5.
std::string ErrorLine(const absl::Status& status, int exit_code);

// {"event":"done","id":"...","state":"SUCCEEDED","exit_code":0,...}
std::string DoneLine(const v1::Job& job, const RunStats& stats, int exit_code);

// {"event":"done","id":"","state":null,"reason":"...","exit_code":2}: the last line of a run that did not see the job's
// end. `job_id` is empty if no job was submitted.
std::string DoneWithoutJobLine(absl::string_view job_id, absl::string_view reason, int exit_code);

// {"event":"checkpoint","step":40,...,"state":"saved"|"granted"}, as the coordinator has recorded it.
std::string CheckpointLine(const v1::CheckpointInfo& checkpoint);

// A whole job as printed by `status --json` and `list --json`, with `state` and `generation` at the top level.
std::string JobJson(const v1::Job& job);

}  // namespace trainyard::client
