// The daemon's side of a rank folder, `<state>/ranks/<job>.g<generation>.r<rank>/` (worker/shim/records.h describes its
// files): writes a launch, reads what the shim wrote, finds the folders of earlier incarnations, limits their number
// and their size. Functions keep no state and are thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainyard/v1/agent.pb.h"
#include "worker/agent/trainer_id.h"

namespace trainyard::agent {

// The flag before the path of the daemon's socket in a trainer's arguments.
inline constexpr char kLinkFlag[] = "--link";

struct LaunchRecord {
  std::string program;                 // absolute path
  std::vector<std::string> arguments;  // the first is argv[0]
  std::vector<std::string> variables;  // NAME=value; the complete environment
  uint64_t log_bytes = 0;
  std::string workdir = {};  // empty: the rank folder
  // For the program of a command: the time from SIGTERM to SIGKILL. It is stored for a later daemon that adopts the
  // program without receiving the job.
  std::optional<absl::Duration> grace = {};
  std::vector<uint32_t> cpus = {};  // the numbers of the CPUs for the trainer; empty: all
  uint64_t memory_bytes = 0;        // the limit of a command, which a later daemon applies, too; 0: none
};

// A process; the start time distinguishes processes that reuse a pid.
struct ProcessId {
  pid_t pid = 0;
  uint64_t start = 0;  // clock ticks since boot
};

struct PidRecord {
  ProcessId shim;
  ProcessId trainer;
};

// Creates the folder and writes the launch record into it, readable by its owner only, because it holds the trainer's
// token. Possible errors: AlreadyExists: this rank was started before. InvalidArgument: a field holds a zero byte,
// or the record is too large. Others: those of the disk.
absl::Status MakeRankFolder(const std::string& folder, const LaunchRecord& launch);

// Possible errors of the next three functions: NotFound: not written (yet). DataLoss: not a record.
absl::StatusOr<LaunchRecord> ReadLaunch(const std::string& folder);
absl::StatusOr<PidRecord> ReadPids(const std::string& folder);
absl::StatusOr<v1::TrainerExited> ReadExit(const std::string& folder);

// The exit of a rank whose shim ended without writing an exit record.
v1::TrainerExited LostExit(const std::string& folder);

// Writes the exit record of a rank that has no shim, so that no later incarnation of the daemon waits for that record.
absl::Status WriteStartFailure(const std::string& folder, const absl::Status& why);

// Records that the coordinator has this rank's exit.
absl::Status MarkFolderReported(const std::string& folder);
// Returns whether the coordinator has this rank's exit.
bool IsFolderReported(const std::string& folder);

// Records that a daemon sends SIGTERM to the program of this command, so that a later daemon does not assume that the
// program has exited because its work was done.
absl::Status MarkFolderStopped(const std::string& folder);
bool IsFolderStopped(const std::string& folder);

// If no shim is running here, writes an exit record, unless there is one, and returns true: from then on, no shim can
// start here. A shim holds the lock of the launch record as long as it runs.
bool CloseUnlessShimRuns(const std::string& folder);

// All rank folders below `ranks`, ordered by their last change, oldest first.
std::vector<TrainerId> ListRankFolders(const std::string& ranks);

// Returns the paths of the daemons' sockets that the trainers of these rank folders dial. Ignores trainers whose exit
// the coordinator has.
std::set<std::string> LinksOfTrainers(const std::string& ranks);

// For the folders of ranks that have ended and are reported. Others cannot be removed and do not count.
struct FolderLimits {
  size_t folders = 200;
  uint64_t bytes = uint64_t{4} << 30;
};
// Raises the limit of bytes, if necessary, to the output of two ranks for each slot.
FolderLimits FolderLimitsFor(uint32_t slots, uint64_t log_bytes_per_rank);

struct RankFolders {
  size_t count = 0;
  uint64_t bytes = 0;
};
// Removes folders of ranks that have ended and are reported, oldest first, until the limits hold. Returns what is left,
// including the folders that do not count.
RankFolders PruneRankFolders(const std::string& ranks, const FolderLimits& limits);

}  // namespace trainyard::agent
