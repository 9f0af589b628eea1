// The user that runs this program, and the user's folder for files that outlive a program. Reads the environment, the
// password database and the file system; changes nothing. Thread-safe.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"

namespace trainyard {

// "alice (1000)", or "1000" if the password database does not contain the user.
std::string UserText(uid_t user);

// $XDG_STATE_HOME, else .local/state in $HOME, else in the home folder from the password database. A folder of another
// user is skipped: `sudo` may keep both variables, and root's state must not be in alice's home folder.
// Possible errors: FailedPrecondition: there is none; the message names the folders that were tried.
absl::StatusOr<std::string> UserStateFolder();

}  // namespace trainyard
