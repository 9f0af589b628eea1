#include "templates/names.h"

#include <algorithm>

#include "absl/strings/str_join.h"

namespace trainyard::templates {
namespace {

constexpr absl::string_view kFilters[] = {
    "abs",    "capitalize", "count",      "d",       "default", "dictsort", "first",  "float",
    "indent", "int",        "items",      "join",    "last",    "length",   "list",   "lower",
    "map",    "reject",     "rejectattr", "replace", "reverse", "safe",     "select", "selectattr",
    "sort",   "string",     "title",      "tojson",  "trim",    "unique",   "upper"};

constexpr absl::string_view kTests[] = {
    "!=",          "<",       "<=",       "==",     ">",        ">=",     "boolean", "callable",    "defined",
    "divisibleby", "eq",      "equalto",  "even",   "false",    "float",  "ge",      "greaterthan", "gt",
    "in",          "integer", "iterable", "le",     "lessthan", "lower",  "lt",      "mapping",     "ne",
    "none",        "number",  "odd",      "sameas", "sequence", "string", "true",    "undefined",   "upper"};

constexpr absl::string_view kMethods[] = {
    "capitalize",   "count",   "endswith", "find",       "get",    "index",  "isalpha",   "isdigit",
    "isspace",      "items",   "join",     "keys",       "lower",  "lstrip", "partition", "removeprefix",
    "removesuffix", "replace", "rfind",    "rpartition", "rsplit", "rstrip", "split",     "splitlines",
    "startswith",   "strip",   "title",    "upper",      "values"};

constexpr absl::string_view kUnsupportedGlobals[] = {"caller", "cycler", "dict",  "joiner", "kwargs",
                                                     "lipsum", "self",   "super", "varargs"};

template <size_t size>
bool Contains(const absl::string_view (&names)[size], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

bool IsFilter(absl::string_view name) { return Contains(kFilters, name); }
bool IsTest(absl::string_view name) { return Contains(kTests, name); }
bool IsMethod(absl::string_view name) { return Contains(kMethods, name); }
bool IsUnsupportedGlobal(absl::string_view name) { return Contains(kUnsupportedGlobals, name); }

std::string ListOfFilters() { return absl::StrJoin(kFilters, ", "); }
std::string ListOfTests() { return absl::StrJoin(kTests, ", "); }
std::string ListOfMethods() { return absl::StrJoin(kMethods, ", "); }

}  // namespace trainyard::templates
