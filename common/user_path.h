// Paths that users write in files and flags: relative to a folder, with ~ for the home folder. Reads the environment
// and the password database; keeps no state.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// $HOME if it is an absolute path, else the folder from the password database. Empty if there is neither.
std::string HomeFolder();

// `path` as an absolute path. A leading `~` or `~/` becomes the home folder, a relative path is relative to
// `working_directory` (empty: it stays relative), `.` and `..` are removed from the text.
// Possible errors: InvalidArgument: the path is empty, begins with another user's `~name`, contains a `$` (which only a
// shell expands), or there is no home folder. The message says what to write instead; it does not name the YAML key.
absl::StatusOr<std::string> PathOfUser(absl::string_view path, absl::string_view working_directory);

}  // namespace trainyard
