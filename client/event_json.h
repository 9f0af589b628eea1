// Events as JSON, one object a line, for programs: numbers as numbers with full precision, snake_case, ids as strings.
// The first line names the job, the last tells how it ended. A loss that is not finite is null. Pure.
#pragma once

#include <string>

#include "client/run_stats.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// {"event":"job","id":"...","name":"...","ranks":2,"steps":1200,"dir":"...","decisions":[...],"warnings":[...]}
std::string JobLine(const v1::Job& job);

// {"event":"state"|"step"|"eval"|"checkpoint"|"notice",...}
std::string EventLine(const v1::Event& event);

// {"event":"notice",...} of trainctl itself.
std::string NoticeLine(absl::string_view level, absl::string_view text);

// {"event":"error","text":"...","exit_code":2}: there is no job, or no more of it to tell.
std::string ErrorLine(absl::string_view text, int exit_code);

// {"event":"done","id":"...","state":"SUCCEEDED","exit_code":0,...}
std::string DoneLine(const v1::Job& job, const RunStats& stats, int exit_code);

// {"event":"done","id":"","state":null,"reason":"...","exit_code":2}: the last line of a run of which there is no end
// of a job to tell. `job_id` is empty when it failed before there was a job.
std::string DoneWithoutJobLine(absl::string_view job_id, absl::string_view reason, int exit_code);

// {"event":"checkpoint","step":40,...,"state":"saved"|"granted"}: as the coordinator has recorded it.
std::string CheckpointLine(const v1::CheckpointInfo& checkpoint);

// The whole of a job, as `status --json` and `list --json` give it: `state` and `generation` at its top level.
std::string JobJson(const v1::Job& job);

}  // namespace trainyard::client
