// The daemon's side of a rank folder, `<state>/ranks/<job>.g<generation>.r<rank>/` (worker/shim/records.h says what is
// in it): writing a launch, reading what the shim wrote, finding the folders of earlier lives, keeping their number
// bounded. Functions keep no state and are thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainyard/v1/agent.pb.h"
#include "worker/agent/trainer_id.h"

namespace trainyard::agent {

// What a trainer finds behind it is the path of the daemon's socket.
inline constexpr char kLinkFlag[] = "--link";

struct LaunchRecord {
  std::string program;                 // absolute path
  std::vector<std::string> arguments;  // the first is argv[0]
  std::vector<std::string> variables;  // NAME=value; the whole environment
  uint64_t log_bytes = 0;
};

// One life of a process number.
struct ProcessId {
  pid_t pid = 0;
  uint64_t start = 0;  // clock ticks since boot
};

struct PidRecord {
  ProcessId shim;
  ProcessId trainer;
};

// Makes the folder and writes the launch into it, readable by its owner alone, for it holds the trainer's token.
// Possible errors: AlreadyExists: this rank was started before. InvalidArgument: a field holds a zero byte. Others: the
// disk says no.
absl::Status MakeRankFolder(const std::string& folder, const LaunchRecord& launch);

// Possible errors of these: NotFound: not written (yet). DataLoss: not a record.
absl::StatusOr<LaunchRecord> ReadLaunch(const std::string& folder);
absl::StatusOr<PidRecord> ReadPids(const std::string& folder);
absl::StatusOr<v1::TrainerExited> ReadExit(const std::string& folder);

// The exit of a rank whose shim is gone without having written one.
v1::TrainerExited LostExit(const std::string& folder);

// Writes the exit of a rank that has no shim, so that no later life of the daemon waits for one.
absl::Status WriteStartFailure(const std::string& folder, const absl::Status& why);

// The coordinator has this rank's exit.
absl::Status MarkFolderReported(const std::string& folder);
bool IsFolderReported(const std::string& folder);

// Whether a shim is at work here, which holds the launch record's lock from its first millisecond to its end. If none
// is, an exit record is written, so that none ever will be: false is final.
bool HasLiveShim(const std::string& folder);

// All rank folders below `ranks`, oldest first by their last change.
std::vector<TrainerId> ListRankFolders(const std::string& ranks);

// The daemons' sockets by which the trainers of these rank folders were started, those that have ended and are told
// left out.
std::set<std::string> LinksOfTrainers(const std::string& ranks);

struct FolderLimits {
  size_t folders = 200;
  uint64_t bytes = uint64_t{4} << 30;
};
struct RankFolders {
  size_t count = 0;
  uint64_t bytes = 0;
};
// Removes folders of ranks that have ended and are told, oldest first, until the limits hold. Returns what is left.
RankFolders PruneRankFolders(const std::string& ranks, const FolderLimits& limits);

}  // namespace trainyard::agent
