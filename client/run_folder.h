// Run folders, which contain a job's checkpoints, metrics and the private daemons' state: decides which one a job may
// use and which one a resume continues. Only reads the file system, apart from briefly acquiring a lock.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// ./trainyard-runs in a working directory.
std::string DefaultRunRoot(const std::string& working_directory);

// Returns whether the folder is missing or contains only files that Trainyard makes for every run.
absl::StatusOr<bool> RunFolderIsEmpty(const std::string& path);

// The newest folder `root`/<name>-<id> (any folder in `root` if `name` is empty) that has a checkpoint or, unless
// `needs_checkpoint`, metrics; empty if there is none.
std::string NewestRun(const std::string& root, const std::string& name, bool needs_checkpoint);

// `root`/<name>-`id`, the folder that a job with this id gets without checkpoint.dir; empty if there is none.
std::string RunOfJob(const std::string& root, const std::string& id);

// Waits until no trainer holds `path`/.lock. Does not wait if this user may not write to that file. Possible errors:
// FailedPrecondition: it is still held after `wait`.
absl::Status WaitUntilUnlocked(const std::string& path, absl::Duration wait);

// Checks that a new run may start here, or (`resume`) that an old one may continue. Possible errors:
// FailedPrecondition: the folder is not empty and `resume` is false (the message names both remedies), or it is in use.
absl::Status CheckRunFolder(const std::string& path, bool resume);

// Chooses the folder of a job before it is submitted: with `request->resume` and without checkpoint.dir, the newest run
// of its name that has a checkpoint; then calls CheckRunFolder. Describes the choice, or a fresh start, in `notice`.
// `on_this_machine`: the job's hosts see the same files as this process, so this function can refuse to resume a folder
// without a checkpoint. Possible errors: those of CheckRunFolder; FailedPrecondition: there is nothing to resume and a
// fresh start is not allowed; InvalidArgument: the job to resume is a probe or a command, or the run folder would be
// made in a working directory whose path is not plain text (plain_text.h).
absl::Status ChooseRunFolder(v1::SubmitRequest* request, bool on_this_machine, std::string* notice);

// Checks that `path` contains a checkpoint. Possible errors: FailedPrecondition: it does not; the message suggests a
// sibling folder with a checkpoint and a similar name.
absl::Status CheckResumable(const std::string& path);

// The file in the run folder that contains the command to watch a job that continues after its trainctl has exited.
inline constexpr char kWatchFile[] = "watch";

// How long a resume waits for the previous run in the folder to end.
inline constexpr absl::Duration kPredecessorWait = absl::Seconds(10);

}  // namespace trainyard::client
