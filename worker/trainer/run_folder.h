// The run folder (checkpoint.dir) as rank 0 takes possession of it: locked against other jobs, fenced against earlier
// generations of its own, empty unless the job goes on from what it holds, and the same folder on every host. What lies
// in it: docs/decisions/0001-spine.md.
#pragma once

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

// A run folder that is ours: `.lock` is held by this process, and once it is claimed `.fence` names this job and
// generation, durably.
//
//   auto folder = RunFolder::Take(options)    locked; claimed already where the fence is of this job
//   ...                                       every check, on all ranks; nothing of another job's is changed
//   folder->Claim()
//
// A process that ends before it claims leaves the folder as it was, so a job that is refused takes no other job's
// folder away. Thread-safe.
//
// [Note: fence] The lock keeps two jobs apart, but not two generations of one: rank 0 of a host that is cut off goes on
// training, holds the lock and cannot be told. So the next generation writes its fence and seizes the lock without
// waiting; whoever holds an older one finds the fence, and leaves, before it changes anything in the folder: it looks
// right before a checkpoint gets its name, before old ones are removed and before a line of metrics is added.
class RunFolder {
 public:
  struct Options {
    std::string folder;
    std::string job_id;
    uint64_t generation = 0;
    absl::Duration wait;  // for another job to leave
    // A job whose rank 0 was seen to leave the folder without a word may be on its way back: so much longer the folder
    // stays its own.
    absl::Duration comes_back = absl::Seconds(10);
    // A checkpoint of this job is recorded, so the folder was its own. Where it is another one's now, it stays so.
    bool had = false;
  };
  // Makes the folder if need be and locks it; fences off earlier generations of this job at once. Held until the result
  // is destroyed or the process ends. Possible errors: Aborted: a later generation of this job has the folder.
  // FailedPrecondition when another job trains into it for longer than `wait`. NotFound when it `had` the folder and
  // another job has taken it since, which nothing is changed of. PermissionDenied and others of the file system.
  static absl::StatusOr<std::unique_ptr<RunFolder>> Take(const Options& options);
  // Removes what Take has made, if nobody has claimed the folder.
  ~RunFolder();

  bool claimed() const;
  // Writes the fence. To be called once nothing can be refused any more. Possible errors: FailedPrecondition: the job
  // that the folder belonged to has come back meanwhile; those of the file system.
  absl::Status Claim();
  // Makes the folder again, with lock and fence, where somebody has removed it or either of them. Possible errors:
  // Aborted, as CheckFence; Unavailable: another process has locked what lies there now, or the disk on which it lay is
  // not mounted; those of the file system.
  absl::Status RecreateIfRemoved();

  // Possible errors: Aborted: somebody else's fence is there; leave everything as it is and exit. Cheap: one look at
  // the file's age while nothing has changed.
  absl::Status CheckFence() const;

  // Whether the folder still lies on the file system where it was taken. Possible errors: Unavailable: it does not, or
  // is gone; what is written there now would not be on that disk.
  absl::Status CheckPlace() const;

  // Up to whom partials had been settled here when this generation took the folder; see [Note: whose partials count] in
  // checkpoint/settle.h. Not the fence that was replaced: its owner may have ended before it came to settle.
  const std::optional<JobGeneration>& settled() const { return found_.settled; }
  // Says durably that this generation has settled. Possible errors: those of CheckFence and of the file system.
  absl::Status MarkSettled() const;

 private:
  // What is found in a folder that was locked.
  struct Found {
    std::optional<JobGeneration> fence = {};
    std::optional<JobGeneration> settled = {};
    std::vector<std::string> made = {};  // folders, the innermost first
    uint64_t device = 0;                 // of the file system
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
  int64_t fence_file_ ABSL_GUARDED_BY(mu_) = 0;  // inode and time of ours
  int64_t fence_time_ns_ ABSL_GUARDED_BY(mu_) = 0;
};

// The same for ranks that do not hold the folder: whether a later generation of the job has fenced it, or another job.
// Possible errors: Aborted.
absl::Status CheckFenceOf(const std::string& folder, const std::string& job_id, uint64_t generation);

// Possible errors: FailedPrecondition when the folder holds anything but what Take and trainctl leave; the message
// names both ways out.
absl::Status CheckEmpty(const std::string& folder);

// How ranks prove that they see one folder: rank 0 leaves a token in it, whose name it tells the others over the
// network; each looks for it. The token goes away with this object.
class SharedFolderToken {
 public:
  static absl::StatusOr<std::unique_ptr<SharedFolderToken>> Leave(const std::string& folder);
  ~SharedFolderToken();
  const std::string& name() const { return name_; }

 private:
  SharedFolderToken(std::string folder, std::string name) : folder_(std::move(folder)), name_(std::move(name)) {}
  const std::string folder_;
  const std::string name_;
};

// Looks for up to `patience` whether a file is there: a network file system may show a new one late.
bool AwaitFile(const std::string& path, absl::Duration patience);

// Waits for it as AwaitFile does. Possible errors: FailedPrecondition, naming host and path.
absl::Status FindToken(const std::string& folder, absl::string_view token, absl::string_view host,
                       absl::Duration patience);

}  // namespace trainyard
