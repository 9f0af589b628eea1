// trainctl checkpoint, of a job: what the coordinator has recorded of its saves. The folder itself is not looked at; it
// may lie where only the job's hosts see it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/commands.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// Newest first; `name`: as FindJob takes it. Possible errors: those of FindJob and GetJob.
absl::Status ListOfJob(const Globals& globals, const std::string& name, bool json);
// The newest, or that of a step. Possible errors: those of FindJob and GetJob; NotFound: the coordinator has no such
// checkpoint.
absl::Status ShowOfJob(const Globals& globals, const std::string& name, std::optional<uint64_t> step, bool json);

// The tables of the two, at `now`; `columns`: see Table. Pure.
std::string JobCheckpointTable(const v1::Job& job, absl::Time now, int columns = 0);
std::string JobCheckpointView(const v1::CheckpointInfo& info, absl::Time now, int columns = 0);

// What of a job's events ends the wait for a save that was asked for. Pure.
class AwaitedSave {
 public:
  // `before`: the newest event when it was asked for; `job`: the answer.
  AwaitedSave(const v1::Job& job, uint64_t before) : asked_step_(job.last_step()), before_(before) {}

  enum class Word { kNone, kSaved, kFailed };
  Word Take(const v1::Event& event) const;

 private:
  const uint64_t asked_step_;
  const uint64_t before_;
};

void AddCheckpointNow(CLI::App& app, const Globals& globals, Chosen* chosen);

}  // namespace trainyard::client
