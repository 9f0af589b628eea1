// The run folder (checkpoint.dir) as rank 0 takes possession of it: locked against other jobs, empty unless the job
// goes on from what it holds, and the same folder on every host. What lies in it: docs/decisions/0001-spine.md.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/files.h"

namespace trainyard {

// Makes the folder if need be and locks it; the lock is held until the result is destroyed or the process ends.
// Possible errors: FailedPrecondition when another process trains into it for longer than `wait`; PermissionDenied and
// others of the file system.
absl::StatusOr<std::unique_ptr<FileLock>> TakeRunFolder(const std::string& folder, absl::Duration wait);

// Possible errors: FailedPrecondition when the folder holds anything but `.trainyard` and `.lock`; the message names
// both ways out.
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

// Looks for up to `patience`: a network file system may show a new file late.
// Possible errors: FailedPrecondition, naming host and path.
absl::Status FindToken(const std::string& folder, absl::string_view token, absl::string_view host,
                       absl::Duration patience);

}  // namespace trainyard
