// trainctl checkpoint for a job: lists and shows the saves that the coordinator has recorded, and requests a save
// (`checkpoint now`). Does not read the run folder, which may be visible only to the job's hosts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/commands.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// Lists the job's checkpoints, or those of `steps` if it is not empty, newest first. FindJob resolves `name`. Possible
// errors: those of FindJob, GetJob and KeepSteps.
absl::Status ListJobCheckpoints(const Globals& globals, const std::string& name, const std::vector<uint64_t>& steps,
                                bool json);
// Shows the checkpoint of `step`, or the newest. Possible errors: those of FindJob and GetJob; NotFound: the
// coordinator has no such checkpoint.
absl::Status ShowJobCheckpoint(const Globals& globals, const std::string& name, std::optional<uint64_t> step,
                               bool json);

// Removes all checkpoints but those of `steps` from the job; if `steps` is empty, removes nothing. Possible errors:
// NotFound: the coordinator has no checkpoint of one of these steps. Pure.
absl::Status KeepSteps(const std::vector<uint64_t>& steps, v1::Job& job);

// The output of ListJobCheckpoints and of ShowJobCheckpoint at time `now`; `columns`: see Table. Pure.
std::string JobCheckpointTable(const v1::Job& job, absl::Time now, int columns = 0);
std::string JobCheckpointView(const v1::CheckpointInfo& info, absl::Time now, int columns = 0);

// Decides which event of a job ends the wait for a requested save. Pure.
class AwaitedSave {
 public:
  // `job`: the answer to the request; `last_sequence`: the sequence number of the newest event before the request.
  AwaitedSave(const v1::Job& job, uint64_t last_sequence)
      : is_command_(job.spec().has_command()),
        generation_(job.generation()),
        step_at_request_(job.ranks_size() > 0 ? job.ranks(0).last_step() : job.last_step()),
        last_sequence_(last_sequence) {}

  enum class Result { kNone, kSaved, kFailed };
  Result Classify(const v1::Event& event) const;

 private:
  const bool is_command_;
  // At the time of the request. The group may repeat steps, so its step may be lower than the newest step of the job.
  const uint64_t generation_;
  const uint64_t step_at_request_;
  const uint64_t last_sequence_;
};

void AddCheckpointNow(CLI::App& app, const Globals& globals, Chosen* chosen);

}  // namespace trainyard::client
