// The user that this program runs as, and where programs of that user keep what outlives them. Reads the environment,
// the password database and the file system; changes nothing. Thread-safe.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"

namespace trainyard {

// "alice (1000)", or "1000" where the password database does not know it.
std::string UserText(uid_t user);

// $XDG_STATE_HOME, else .local/state in $HOME, else in the home that the password database names. A folder of another
// user is passed over: `sudo` may leave both variables as they were, and root's state must not lie in alice's home.
// Possible errors: FailedPrecondition: there is none; the message names what was looked at.
absl::StatusOr<std::string> UserStateFolder();

}  // namespace trainyard
