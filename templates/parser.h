// Parses a template into statements, and refuses what is not supported by name and line. Pure, thread-safe.
#pragma once

#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "templates/syntax.h"

namespace trainyard::templates {

struct ParsedTemplate {
  Body body;
  bool has_generation = false;       // {% generation %} marks what the assistant wrote
  std::set<std::string> reads = {};  // the names that expressions read
};

// REQUIRES: valid UTF-8. Possible errors: InvalidArgument with the line: the text is no template, or it uses something
// that is not supported.
absl::StatusOr<ParsedTemplate> ParseTemplate(absl::string_view source);

}  // namespace trainyard::templates
