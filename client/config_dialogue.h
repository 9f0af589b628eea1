// The dialogue of `trainctl config`: asks the questions of a draft one by one, checks the whole job after each answer,
// and returns to the question whose answer caused a problem. The terminal is a parameter, so that tests need none.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/config_draft.h"

namespace trainyard::client {

// Reads the line that the user types, without its line feed. Possible errors: OutOfRange: the input has ended;
// Cancelled: Ctrl-C; InvalidArgument: the line is not valid text; the message is a sentence for the user.
using LineReader = std::function<absl::StatusOr<std::string>(const std::string& prompt)>;
// Shows lines to the user.
using LineShower = std::function<void(absl::string_view text)>;

// Returns the complete draft, which has no errors. Possible errors: OutOfRange and Cancelled of `read_line`;
// InvalidArgument: what the command line gave is wrong, and no answer can correct it.
absl::StatusOr<Draft> AskQuestions(const ConfigInput& input, const ConfigFacts& facts, const LineReader& read_line,
                                   const LineShower& show);

// Asks a question with yes or no; no is the default. Possible errors: OutOfRange and Cancelled of `read_line`.
absl::StatusOr<bool> AskYesOrNo(const std::string& question, const LineReader& read_line, const LineShower& show);

}  // namespace trainyard::client
