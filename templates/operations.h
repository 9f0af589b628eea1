// What Python does with values: operators, items, slices, and the methods of texts and dictionaries. What is not known
// to be the same as in Python is an error. Not thread-safe.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "templates/budget.h"
#include "templates/syntax.h"
#include "templates/value.h"

namespace trainyard::templates {

// The arguments of a call.
struct CallArguments {
  std::vector<Value> values = {};
  std::vector<std::pair<std::string, Value>> named = {};
};

// The arguments in the order of the parameters; those that were not given are empty. Possible errors: InvalidArgument:
// too many, unknown, given twice, or fewer than `required`. `what`: for messages.
absl::StatusOr<std::vector<std::optional<Value>>> BindArguments(const CallArguments& arguments, absl::string_view what,
                                                                std::initializer_list<absl::string_view> parameters,
                                                                size_t required);

// Possible errors of all: InvalidArgument: Python refuses the operation too, or it is not supported here;
// ResourceExhausted.
absl::StatusOr<Value> Calculate(Operation operation, const Value& left, const Value& right, Budget& budget);
absl::StatusOr<bool> Compare(Operation operation, const Value& left, const Value& right, Budget& budget);
absl::StatusOr<bool> Contains(const Value& whole, const Value& part, Budget& budget);
// The items that a loop over the value visits.
absl::StatusOr<std::vector<Value>> ItemsOf(const Value& value, Budget& budget);
absl::StatusOr<size_t> LengthOf(const Value& value, Budget& budget);
// value.name, without methods, and value[key].
absl::StatusOr<Value> AttributeOf(const Value& value, const std::string& name, Budget& budget);
absl::StatusOr<Value> ItemOf(const Value& value, const Value& key, Budget& budget);
absl::StatusOr<Value> SliceOf(const Value& value, const Value* begin, const Value* end, const Value* step,
                              Budget& budget);
// value.name(...) for a text, a dictionary or a list.
absl::StatusOr<Value> CallMethod(const Value& value, const std::string& name, const CallArguments& arguments,
                                 Budget& budget);

// New values, whose size is counted.
absl::StatusOr<Value> MakeText(std::string text, Budget& budget);
absl::StatusOr<Value> MakeItems(Kind kind, std::vector<Value> items, Budget& budget);
// str(value).
absl::StatusOr<std::string> TextOf(const Value& value, Budget& budget);

// Functions of texts that methods and filters share. Those with a budget count the cost of their searches.

enum class Side { kBoth, kBefore, kAfter };
// `characters`: those that are removed; null: whitespace.
absl::StatusOr<std::string> Strip(absl::string_view text, const Value* characters, Side side, Budget& budget);
// Counts the search of `part` in `text`.
absl::Status SpendSearch(absl::string_view text, absl::string_view part, Budget& budget);
enum class Letters { kUpper, kLower, kTitle, kCapitalize };
// Possible errors: InvalidArgument: the text is not ASCII, so that the result depends on the version of Unicode.
absl::StatusOr<std::string> WithLetters(absl::string_view text, Letters letters);
absl::StatusOr<std::string> ReplaceAll(absl::string_view text, absl::string_view old, absl::string_view with,
                                       int64_t count, Budget& budget);

}  // namespace trainyard::templates
