// Identifies a trainer: one rank of one generation of one job. A value, copied freely; also the name of its rank
// folder.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"
#include "trainyard/v1/agent.pb.h"

namespace trainyard::agent {

struct TrainerId {
  JobId job;
  Generation generation;
  uint32_t rank = 0;

  friend bool operator==(const TrainerId&, const TrainerId&) = default;
  friend auto operator<=>(const TrainerId&, const TrainerId&) = default;
};

// In place of a rank, this number stands for the program of command.check on this host, which has a rank folder, too.
inline constexpr uint32_t kCheckRank = UINT32_MAX;

// The ranks of one generation of a job, which share rendezvous values.
using GroupId = std::pair<JobId, Generation>;

inline GroupId GroupOf(const TrainerId& id) { return {id.job, id.generation}; }

TrainerId FromProto(const v1::TrainerKey& key);
v1::TrainerKey ToProto(const TrainerId& id);

// "k3vq7a2p.g2.r0"
std::string FolderName(const TrainerId& id);
// Possible errors: InvalidArgument: not the name of a rank folder.
absl::StatusOr<TrainerId> ParseFolderName(absl::string_view name);

// "job k3vq7a2p generation 2 rank 0", for messages.
std::string Describe(const TrainerId& id);

// Job ids become folder names, so they may contain only letters, digits and '-'. Possible errors: InvalidArgument.
absl::Status CheckJobId(absl::string_view id);

}  // namespace trainyard::agent
