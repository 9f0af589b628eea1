// Which trainer: one rank of one generation of one job. A value, copied freely; also the name of its rank folder.
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

// One group of ranks of a job: what rendezvous values belong to.
using GroupId = std::pair<JobId, Generation>;

inline GroupId GroupOf(const TrainerId& id) { return {id.job, id.generation}; }

TrainerId FromProto(const v1::TrainerKey& key);
v1::TrainerKey ToProto(const TrainerId& id);

// "k3vq7a2p.g2.r0"
std::string FolderName(const TrainerId& id);
// Possible errors: InvalidArgument: not the name of a rank folder.
absl::StatusOr<TrainerId> ParseFolderName(absl::string_view name);

// "job k3vq7a2p generation 2 rank 0", for people.
std::string Describe(const TrainerId& id);

// Job ids become folder names, so nothing but letters, digits and '-' may stand in them. Possible errors:
// InvalidArgument.
absl::Status CheckJobId(absl::string_view id);

}  // namespace trainyard::agent
