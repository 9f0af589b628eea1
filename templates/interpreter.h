// Executes a parsed template. Each rendering has its own state, so a parsed template may be used by several threads.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "templates/parser.h"
#include "templates/value.h"

namespace trainyard::templates {

struct Rendered {
  std::string text;
  // The bytes [first, second) of each {% generation %}, in order.
  std::vector<std::pair<size_t, size_t>> generated = {};
  size_t steps = 0;  // the steps of the budget that the rendering has used
};

// The names that the template can see, in addition to the functions range, namespace, raise_exception and strftime_now.
// A call of the last one is an error, because training data must not depend on the day.
using Context = std::vector<std::pair<std::string, Value>>;

// Possible errors: InvalidArgument with the line: what jinja2 refuses too, raise_exception, or what is not supported;
// ResourceExhausted: the rendering exceeds a limit of budget.h.
absl::StatusOr<Rendered> RenderTemplate(const ParsedTemplate& parsed, const Context& context);

}  // namespace trainyard::templates
