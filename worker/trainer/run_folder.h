// The run folder (checkpoint.dir). Rank 0 locks it against other jobs, fences it against earlier generations of its own
// job, and checks that it is empty unless the job resumes from it, and that every host sees the same folder. Its
// contents: docs/decisions/0001-spine.md.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "checkpoint/settle.h"
#include "common/files.h"

namespace trainyard {

// A run folder that this process has locked (`.lock`). Once it is claimed, `.fence` durably names this job and
// generation.
//
//   auto folder = RunFolder::Acquire(options)   locked; claimed already if the fence is of this job
//   ...                                         all checks, on all ranks; nothing of another job is changed
//   folder->Claim()
//
// A process that ends before it claims leaves the folder unchanged, so that a job that is refused does not take another
// job's folder away. Thread-safe.
//
// [Note: fence] The lock keeps two jobs apart, but not two generations of one job: rank 0 on a host that is cut off
// continues to train, holds the lock, and cannot be reached. So the next generation writes its fence and seizes the
// lock without waiting. A process of an older generation detects the new fence and leaves before it changes anything in
// the folder: it checks right before a checkpoint is named, before old checkpoints are removed and before lines of
// metrics are added.
class RunFolder {
 public:
  struct Options {
    std::string folder;
    std::string job_id;
    uint64_t generation = 0;
    absl::Duration wait;  // how long to wait for another job to leave
    // If another job's rank 0 releases the lock while this process waits for it, the next generation of that job may be
    // about to start: the folder is left to that job for this time.
    absl::Duration owner_grace = absl::Seconds(10);
    // A checkpoint of this job is recorded, so this job owned the folder. Acquire fails if another job owns it now.
    bool owned_before = false;
  };
  // Creates the folder if necessary and locks it; fences off earlier generations of this job immediately. The lock is
  // held until the result is destroyed or the process ends. Possible errors: Aborted: a later generation of this job
  // has the folder. FailedPrecondition: another job still holds the lock after `wait`. NotFound: `owned_before` is set,
  // but another job has claimed the folder since; nothing is changed. PermissionDenied and others of the file system,
  // also if the fence cannot be read.
  static absl::StatusOr<std::unique_ptr<RunFolder>> Acquire(const Options& options);
  // Removes what Acquire has created, if the folder was not claimed.
  ~RunFolder();

  bool claimed() const;
  // Writes the fence. Call it once all reasons to refuse the job were checked. Possible errors: Aborted: a later
  // generation of this job has claimed the folder; FailedPrecondition: the job that owned the folder has claimed it
  // again; Unknown: the lock was removed; those of the file system.
  absl::Status Claim();
  // Recreates the folder, with lock and fence, if it or either of them was removed. Possible errors: Aborted, as in
  // CheckFence; Unavailable: another process has locked the path now, or the folder's disk is not mounted; those of the
  // file system.
  absl::Status RecreateIfRemoved();

  // Possible errors: Aborted: a later generation or another job has written its fence; leave everything unchanged and
  // exit. Cheap: one stat of the fence as long as it has not changed.
  absl::Status CheckFence() const;

  // Checks that the folder still exists, on the file system where it was locked. If that was mounted again, it is
  // recognized by this generation's fence. Possible errors: Unavailable: the folder does not exist, or is on another
  // disk, where new files would be.
  absl::Status CheckFolderExists() const;

  // The generation up to which partial folders had been settled when this generation locked the folder; see [Note:
  // which partials are valid] in checkpoint/settle.h. It may be older than the generation whose fence was found, which
  // may have ended before it settled anything.
  const std::optional<JobGeneration>& settled() const { return found_.settled; }
  // Records durably that this generation has settled. Possible errors: those of CheckFence and of the file system.
  absl::Status MarkSettled() const;

 private:
  // What Acquire found in the folder.
  struct Found {
    std::optional<JobGeneration> fence = {};
    std::optional<JobGeneration> settled = {};
    std::vector<std::string> created_folders = {};  // innermost first
    uint64_t device = 0;                            // of the file system
  };
  RunFolder(const Options& options, std::unique_ptr<FileLock> lock, Found found);

  absl::Status CheckDisk() const;
  absl::Status WriteFence() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckFenceLocked() const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const Options options_;
  const Found found_;
  mutable absl::Mutex mu_;
  std::unique_ptr<FileLock> lock_ ABSL_GUARDED_BY(mu_);
  bool claimed_ ABSL_GUARDED_BY(mu_) = false;
  int64_t fence_inode_ ABSL_GUARDED_BY(mu_) = 0;  // of the fence that this process wrote
  int64_t fence_time_ns_ ABSL_GUARDED_BY(mu_) = 0;
};

// If RunFolder::Acquire returned this error because of a later generation of the job whose process holds the lock no
// longer, returns the number of that generation; otherwise 0. Such a generation has ended, and the coordinator does not
// know it.
uint64_t EndedLaterGeneration(const absl::Status& status);

// The check of RunFolder::CheckFence for ranks that do not hold the lock: whether a later generation of the job, or
// another job, has fenced the folder. Possible errors: Aborted; Unavailable: the fence cannot be read.
absl::Status CheckFenceOf(const std::string& folder, const std::string& job_id, uint64_t generation);

// Returns the check that a rank makes before it changes anything in the run folder for a save. All ranks make it for
// the same save, so all of them detect that another job or a later generation has claimed the folder. `lock`: null on a
// rank that does not hold the lock. The check may be called by a thread that the rank has left behind
// (worker/saving/leavable_thread.h): it keeps `lock` alive only while it runs, and returns Aborted once `lock` is
// destroyed.
std::function<absl::Status()> SaveFence(const std::shared_ptr<RunFolder>& lock, const std::string& folder,
                                        const std::string& job_id, uint64_t generation);
// Returns a function that calls RunFolder::RecreateIfRemoved of `lock`, or does nothing if `lock` is null. Like the
// check of SaveFence, it may be called by a thread that the rank has left behind, and keeps `lock` alive only while it
// runs.
std::function<absl::Status()> FolderRecreation(const std::shared_ptr<RunFolder>& lock);
// Returns a function that calls RunFolder::CheckFence of `lock`, or does nothing if `lock` is null, for the thread that
// checks the fence for each step (metrics_thread.h). It has the same effect on the life of `lock`.
std::function<absl::Status()> StepFence(const std::shared_ptr<RunFolder>& lock);

// Possible errors: FailedPrecondition if the folder holds anything except what RunFolder, trainctl and RecordData
// (worker/data/data_check.h) create; the message asks the user to resume or to choose another folder.
absl::Status CheckEmpty(const std::string& folder);

// Lets ranks check that they see the same folder: rank 0 creates a token in it and sends its name to the others over
// the network; each looks for it. The token is removed with this object.
class SharedFolderToken {
 public:
  static absl::StatusOr<std::unique_ptr<SharedFolderToken>> Create(const std::string& folder);
  ~SharedFolderToken();
  const std::string& name() const { return name_; }

 private:
  SharedFolderToken(std::string folder, std::string name) : folder_(std::move(folder)), name_(std::move(name)) {}
  const std::string folder_;
  const std::string name_;
};

// Calls `holds` until it returns true, for up to `patience`. Returns the last result of `holds`.
bool AwaitThat(const std::function<bool()>& holds, absl::Duration patience);
// Waits up to `patience` for a file to appear: a network file system may show a new one late.
bool AwaitFile(const std::string& path, absl::Duration patience);

// Waits for the token as AwaitFile does. Possible errors: FailedPrecondition, naming host and path.
absl::Status FindToken(const std::string& folder, absl::string_view token, absl::string_view host,
                       absl::Duration patience);

}  // namespace trainyard
