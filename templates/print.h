// The texts of values, as Python and its json module write them. Thread-safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "templates/budget.h"
#include "templates/value.h"

namespace trainyard::templates {

// Appends str(value). Possible errors: InvalidArgument: Python would print an address; ResourceExhausted.
absl::Status AppendText(const Value& value, Budget& budget, std::string& text);
// Returns what Python's repr returns for a text.
std::string Quoted(absl::string_view text);

struct JsonStyle {
  int indent = -1;  // spaces per level; negative: one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ascii = false;      // escapes all characters that are not ASCII
  bool sort_keys = false;  // the keys must be texts
};

// Appends json.dumps(value). Possible errors: InvalidArgument: it has no form in JSON; ResourceExhausted.
absl::Status AppendJson(const Value& value, const JsonStyle& style, Budget& budget, std::string& text);

}  // namespace trainyard::templates
