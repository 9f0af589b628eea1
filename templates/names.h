// The names of Jinja that are supported: a template with another one is refused when it is parsed. Pure, thread-safe.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace trainyard::templates {

bool IsFilter(absl::string_view name);
bool IsTest(absl::string_view name);
// Whether a text, a dictionary or another value has a supported method of this name.
bool IsMethod(absl::string_view name);
// Whether jinja2 or transformers define a global name that is not supported here.
bool IsUnsupportedGlobal(absl::string_view name);

// "trim, tojson, ...": for messages.
std::string ListOfFilters();
std::string ListOfTests();
std::string ListOfMethods();

}  // namespace trainyard::templates
