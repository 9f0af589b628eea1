// Paths as people write them in files and flags: relative to where they stand, with ~ for their home folder. Reads the
// environment and the password database; keeps no state.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// $HOME where it is an absolute path, else what the password database says of this user; empty: neither is there.
std::string HomeFolder();

// `path` as an absolute one: a leading `~` or `~/` is replaced by the home folder, a relative path counts from
// `working_directory` (empty: it stays relative), `.` and `..` are removed by text alone.
// Possible errors: InvalidArgument: it is empty, begins with another user's `~name`, holds a `$` (which only a shell
// expands), or there is no home folder. The message says what to write instead, and does not repeat the path's key.
absl::StatusOr<std::string> PathOfUser(absl::string_view path, absl::string_view working_directory);

}  // namespace trainyard
