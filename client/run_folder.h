// Run folders: where a job's checkpoints, metrics and private daemons' state lie; which may be used and which one a
// resume takes up. Reads the file system, changes nothing but a lock it lets go again.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// ./trainyard-runs below a working directory.
std::string DefaultRunRoot(const std::string& working_directory);

// Holds nothing but `.trainyard`, `.lock` and `watch`, or is not there.
// Possible errors: FailedPrecondition: not a folder. PermissionDenied: it cannot be read.
absl::StatusOr<bool> RunFolderIsEmpty(const std::string& path);

// The newest `root`/<name>-<id> (`name` empty: of any name) with a checkpoint or metrics; empty: there is none.
std::string NewestRun(const std::string& root, const std::string& name);

// Waits until no trainer holds `path`/.lock. Possible errors: FailedPrecondition: one still does after `wait`.
absl::Status WaitUntilUnlocked(const std::string& path, absl::Duration wait);

// A new run may start here, or (`resume`) an old one be taken up. Possible errors: FailedPrecondition: it holds
// something and `resume` is false (the message tells both ways out), or it is in use.
absl::Status CheckRunFolder(const std::string& path, bool resume);

// The folder of a job that is about to be submitted: with `request->resume` and no checkpoint.dir the newest run of its
// name, then CheckRunFolder. What was chosen, or that a run starts afresh, is put into `told`. `on_this_machine`: what
// the job's hosts see is what is seen here, so that a folder without a checkpoint holds nothing to resume. Possible
// errors: as CheckRunFolder; FailedPrecondition: there is nothing to resume, and a fresh start is not allowed;
// InvalidArgument: a probe is to be resumed.
absl::Status ChooseRunFolder(v1::SubmitRequest* request, bool on_this_machine, std::string* told);

// The part of it that looks for a checkpoint. Possible errors: FailedPrecondition: none is there; the message names a
// folder beside it that has one and nearly that name.
absl::Status CheckResumable(const std::string& path);

// A file in the run folder with the command that shows a job which goes on without the trainctl that started it.
inline constexpr char kWatchFile[] = "watch";

inline constexpr absl::Duration kPredecessorWait = absl::Seconds(10);

}  // namespace trainyard::client
