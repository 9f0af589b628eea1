// Implements ApplyTest (filters.h): the tests of jinja2, which follow `is`, as in `x is defined`.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "templates/characters.h"
#include "templates/filters.h"

namespace trainyard::templates {
namespace {

std::optional<Operation> OperationOfTest(absl::string_view name) {
  static constexpr std::pair<absl::string_view, Operation> kComparisons[] = {{"==", Operation::kEqual},
                                                                             {"eq", Operation::kEqual},
                                                                             {"equalto", Operation::kEqual},
                                                                             {"!=", Operation::kNotEqual},
                                                                             {"ne", Operation::kNotEqual},
                                                                             {"<", Operation::kLess},
                                                                             {"lt", Operation::kLess},
                                                                             {"lessthan", Operation::kLess},
                                                                             {"<=", Operation::kLessOrEqual},
                                                                             {"le", Operation::kLessOrEqual},
                                                                             {">", Operation::kGreater},
                                                                             {"gt", Operation::kGreater},
                                                                             {"greaterthan", Operation::kGreater},
                                                                             {">=", Operation::kGreaterOrEqual},
                                                                             {"ge", Operation::kGreaterOrEqual},
                                                                             {"in", Operation::kIn}};
  for (const auto& [text, operation] : kComparisons) {
    if (name == text) return operation;
  }
  return std::nullopt;
}

// Tests of the type of a value; nullopt: `name` is none of them.
std::optional<bool> TestKind(absl::string_view name, const Value& value) {
  if (name == "defined") return !value.is(Kind::kUndefined);
  if (name == "undefined") return value.is(Kind::kUndefined);
  if (name == "none") return value.is(Kind::kNone);
  if (name == "string") return value.is(Kind::kText);
  if (name == "mapping") return value.is(Kind::kDict);
  if (name == "boolean") return value.is(Kind::kBool);
  if (name == "true") return value.is(Kind::kBool) && value.truth();
  if (name == "false") return value.is(Kind::kBool) && !value.truth();
  if (name == "integer") return value.is(Kind::kInteger);
  if (name == "float") return value.is(Kind::kFloat);
  if (name == "number") return value.is_number();
  if (name == "callable") return value.is(Kind::kMacro) || value.is(Kind::kFunction);
  const bool has_items = value.is(Kind::kText) || value.is(Kind::kDict) || value.is(Kind::kUndefined);
  if (name == "iterable") return has_items || value.is_sequence() || value.is(Kind::kLoop);
  if (name == "sequence") {
    return has_items || (value.is_sequence() && !value.is(Kind::kView) && !value.is(Kind::kGenerator));
  }
  return std::nullopt;
}

absl::StatusOr<bool> TestLetters(const Value& value, bool upper, Budget& budget) {
  ASSIGN_OR_RETURN(const std::string text, TextOf(value, budget));
  if (!IsAscii(text))
    return absl::InvalidArgumentError("upper and lower case of a text that is not ASCII are not supported");
  const auto in = [&text](char first, char last) {
    return std::any_of(text.begin(), text.end(), [=](char c) { return c >= first && c <= last; });
  };
  return upper ? in('A', 'Z') && !in('a', 'z') : in('a', 'z') && !in('A', 'Z');
}

absl::StatusOr<bool> TestRemainder(const Value& value, const Value& divisor, int64_t expected, Budget& budget) {
  ASSIGN_OR_RETURN(const Value remainder, Calculate(Operation::kRemainder, value, divisor, budget));
  return remainder.integer() == expected;
}

}  // namespace

absl::StatusOr<bool> ApplyTest(const std::string& name, const Value& value, const CallArguments& arguments,
                               Budget& budget) {
  RETURN_IF_ERROR(budget.Spend(1));
  const std::optional<Operation> operation = OperationOfTest(name);
  const bool has_operand = operation.has_value() || name == "divisibleby" || name == "sameas";
  if (!arguments.named.empty() || arguments.values.size() != (has_operand ? 1 : 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the test '", name, "' needs ", has_operand ? "one argument" : "no argument"));
  }
  if (operation) return Compare(*operation, value, arguments.values[0], budget);
  if (const std::optional<bool> result = TestKind(name, value)) return *result;
  if (name == "odd") return TestRemainder(value, Value::Integer(2), 1, budget);
  if (name == "even") return TestRemainder(value, Value::Integer(2), 0, budget);
  if (name == "divisibleby") return TestRemainder(value, arguments.values[0], 0, budget);
  if (name == "sameas") {
    const Value& other = arguments.values[0];
    const bool is_single = other.is(Kind::kNone) || other.is(Kind::kBool);
    if (is_single) return value.kind() == other.kind() && Equal(value, other);
    return absl::InvalidArgumentError("the test 'sameas' is supported for none, true and false only");
  }
  // Only `upper` and `lower` are left, because the parser refuses unknown tests (IsTest).
  return TestLetters(value, name == "upper", budget);
}

}  // namespace trainyard::templates
