#include "templates/operations.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "templates/characters.h"
#include "templates/print.h"
#include "tokenizers/utf8.h"

namespace trainyard::templates {
namespace {

absl::Status Refuse(absl::string_view reason) { return absl::InvalidArgumentError(reason); }

absl::Status UndefinedUsed(const Value& value) { return Refuse(absl::StrCat("'", value.text(), "' is undefined")); }

constexpr absl::string_view kOperationNames[] = {
    "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

absl::Status BadOperands(Operation operation, const Value& left, const Value& right) {
  for (const Value* value : {&left, &right}) {
    if (value->is(Kind::kUndefined)) return UndefinedUsed(*value);
  }
  return Refuse(absl::StrCat("'", kOperationNames[static_cast<size_t>(operation)],
                             "' is not possible, or not supported, "
                             "for ",
                             left.type_name(), " and ", right.type_name()));
}

absl::Status TooLarge() { return Refuse("the result of a calculation has more than 63 bits, which is not supported"); }

absl::StatusOr<Value> CalculateWhole(Operation operation, int64_t left, int64_t right) {
  int64_t result = 0;
  bool overflows = false;
  switch (operation) {
    case Operation::kAdd:
      overflows = __builtin_add_overflow(left, right, &result);
      break;
    case Operation::kSubtract:
      overflows = __builtin_sub_overflow(left, right, &result);
      break;
    case Operation::kMultiply:
      overflows = __builtin_mul_overflow(left, right, &result);
      break;
    case Operation::kFloorDivide:
    case Operation::kRemainder: {
      if (right == 0) return Refuse("a division by zero");
      if (right == -1)
        return operation == Operation::kRemainder ? Value::Integer(0) : CalculateWhole(Operation::kSubtract, 0, left);
      int64_t quotient = left / right, remainder = left % right;
      if (remainder != 0 && (remainder < 0) != (right < 0)) {
        --quotient;
        remainder += right;
      }
      return Value::Integer(operation == Operation::kRemainder ? remainder : quotient);
    }
    case Operation::kPower: {
      if (right < 0) return Refuse("a negative exponent is not supported");
      result = 1;
      const bool is_bounded = left >= -1 && left <= 1;
      if (is_bounded) return Value::Integer(right == 0 || left == 1 ? 1 : left == 0 ? 0 : right % 2 == 0 ? 1 : -1);
      for (int64_t i = 0; i < right && !overflows; ++i) overflows = __builtin_mul_overflow(result, left, &result);
      break;
    }
    default:
      if (right == 0) return Refuse("a division by zero");
      return Value::Float(static_cast<double>(left) / static_cast<double>(right));
  }
  return overflows ? absl::StatusOr<Value>(TooLarge()) : Value::Integer(result);
}

absl::StatusOr<Value> CalculateFloat(Operation operation, double left, double right) {
  switch (operation) {
    case Operation::kAdd:
      return Value::Float(left + right);
    case Operation::kSubtract:
      return Value::Float(left - right);
    case Operation::kMultiply:
      return Value::Float(left * right);
    case Operation::kDivide:
      if (right == 0) return Refuse("a division by zero");
      return Value::Float(left / right);
    default:
      return Refuse("//, % and ** are supported for whole numbers only");
  }
}

absl::StatusOr<Value> Repeated(const Value& value, int64_t count, Budget& budget) {
  const size_t times = count > 0 ? static_cast<size_t>(count) : 0;
  const size_t size = value.is(Kind::kText) ? value.text().size() : value.items().size() * sizeof(Value);
  if (size > 0 && times > Budget::kBytesMax / size) return budget.Make(Budget::kBytesMax);
  if (value.is(Kind::kText)) {
    std::string text;
    for (size_t i = 0; i < times && size > 0; ++i) text += value.text();
    return MakeText(std::move(text), budget);
  }
  std::vector<Value> items;
  for (size_t i = 0; i < times && size > 0; ++i) items.insert(items.end(), value.items().begin(), value.items().end());
  return MakeItems(value.kind(), std::move(items), budget);
}

// -1, 0 or 1; nullopt: the values have no order.
std::optional<int> OrderOf(const Value& left, const Value& right) {
  if (left.is_whole() && right.is_whole()) {
    return left.integer() < right.integer() ? -1 : left.integer() > right.integer() ? 1 : 0;
  }
  if (left.is_number() && right.is_number()) {
    if (std::isnan(left.number()) || std::isnan(right.number())) return std::nullopt;
    return left.number() < right.number() ? -1 : left.number() > right.number() ? 1 : 0;
  }
  if (!left.is(Kind::kText) || !right.is(Kind::kText)) return std::nullopt;
  const int order = left.text().compare(right.text());  // UTF-8 has the same order as the characters
  return order < 0 ? -1 : order > 0 ? 1 : 0;
}

size_t SizeOf(const Value& value) {
  if (value.is(Kind::kText)) return value.text().size();
  if (value.is_sequence()) return value.items().size() * sizeof(Value);
  return value.is(Kind::kDict) ? value.dict().pairs.size() * sizeof(Value) : 0;
}

// Counts the elements of nested values, which a comparison may visit.
absl::Status SpendForEqual(const Value& value, Budget& budget) {
  RETURN_IF_ERROR(budget.Spend(1, SizeOf(value)));
  if (value.depth() < 2) return absl::OkStatus();
  if (value.is_sequence()) {
    for (const Value& item : value.items()) RETURN_IF_ERROR(SpendForEqual(item, budget));
  } else {
    // Each key of one dict is searched for among all keys of the other.
    RETURN_IF_ERROR(budget.Spend(value.dict().pairs.size() * value.dict().pairs.size()));
    for (const auto& [key, item] : value.dict().pairs) RETURN_IF_ERROR(SpendForEqual(item, budget));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::optional<Value>>> BindArguments(const CallArguments& arguments, absl::string_view what,
                                                                std::initializer_list<absl::string_view> parameters,
                                                                size_t required) {
  if (arguments.values.size() > parameters.size()) {
    return Refuse(
        absl::StrCat("'", what, "' has ", arguments.values.size(), " arguments; expected at most ", parameters.size()));
  }
  std::vector<std::optional<Value>> bound(arguments.values.begin(), arguments.values.end());
  bound.resize(parameters.size());
  for (const auto& [name, value] : arguments.named) {
    const auto* found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) return Refuse(absl::StrCat("'", what, "' has no argument '", name, "'"));
    std::optional<Value>& place = bound[static_cast<size_t>(found - parameters.begin())];
    if (place.has_value()) return Refuse(absl::StrCat("'", what, "' has two values for the argument '", name, "'"));
    place = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound[i].has_value()) continue;
    return Refuse(absl::StrCat("'", what, "' needs the argument '", *(parameters.begin() + i), "'"));
  }
  return bound;
}

absl::StatusOr<Value> MakeText(std::string text, Budget& budget) {
  RETURN_IF_ERROR(budget.Make(text.size()));
  return Value::Text(std::move(text));
}

absl::StatusOr<Value> MakeItems(Kind kind, std::vector<Value> items, Budget& budget) {
  RETURN_IF_ERROR(budget.Make(items.size() * sizeof(Value)));
  for (const Value& item : items) {
    if (!item.is_data()) {
      return Refuse(
          absl::StrCat("a value of type ", item.type_name(), " in a list, tuple or dictionary is not supported"));
    }
    if (item.depth() >= kValueDepthMax)
      return Refuse(absl::StrCat("lists, tuples or dictionaries are nested more than ", kValueDepthMax, " deep"));
  }
  return Value::Items(kind, std::move(items));
}

absl::StatusOr<std::string> TextOf(const Value& value, Budget& budget) {
  std::string text;
  RETURN_IF_ERROR(AppendText(value, budget, text));
  return text;
}

absl::StatusOr<Value> Calculate(Operation operation, const Value& left, const Value& right, Budget& budget) {
  if (left.is_whole() && right.is_whole()) return CalculateWhole(operation, left.integer(), right.integer());
  if (left.is_number() && right.is_number()) return CalculateFloat(operation, left.number(), right.number());
  const bool is_list = left.is(Kind::kList) || left.is(Kind::kTuple);
  if (operation == Operation::kAdd && left.kind() == right.kind()) {
    if (left.is(Kind::kText)) return MakeText(absl::StrCat(left.text(), right.text()), budget);
    if (is_list) {
      std::vector<Value> items = left.items();
      items.insert(items.end(), right.items().begin(), right.items().end());
      return MakeItems(left.kind(), std::move(items), budget);
    }
  }
  if (operation == Operation::kMultiply && right.is_whole() && (left.is(Kind::kText) || is_list)) {
    return Repeated(left, right.integer(), budget);
  }
  return BadOperands(operation, left, right);
}

absl::StatusOr<bool> Compare(Operation operation, const Value& left, const Value& right, Budget& budget) {
  if (operation == Operation::kEqual || operation == Operation::kNotEqual) {
    if (left.kind() == right.kind()) {
      RETURN_IF_ERROR(SpendForEqual(left, budget));
    }
    return Equal(left, right) == (operation == Operation::kEqual);
  }
  if (operation == Operation::kIn) return Contains(right, left, budget);
  if (operation == Operation::kNotIn) {
    ASSIGN_OR_RETURN(const bool contains, Contains(right, left, budget));
    return !contains;
  }
  RETURN_IF_ERROR(budget.Spend(1, SizeOf(left)));
  const std::optional<int> order = OrderOf(left, right);
  if (!order) return BadOperands(operation, left, right);
  switch (operation) {
    case Operation::kLess:
      return *order < 0;
    case Operation::kLessOrEqual:
      return *order <= 0;
    case Operation::kGreater:
      return *order > 0;
    default:
      return *order >= 0;
  }
}

absl::StatusOr<bool> Contains(const Value& whole, const Value& part, Budget& budget) {
  RETURN_IF_ERROR(budget.Spend(1, SizeOf(whole)));
  if (whole.is(Kind::kText)) {
    if (!part.is(Kind::kText)) return BadOperands(Operation::kIn, part, whole);
    RETURN_IF_ERROR(budget.Spend(whole.text().size() / Budget::kBytesPerStep * (part.text().size() / 64)));
    return whole.text().find(part.text()) != std::string::npos;
  }
  if (whole.is(Kind::kDict)) {
    if (part.is_sequence() || part.is(Kind::kDict)) return BadOperands(Operation::kIn, part, whole);
    return whole.dict().Find(part) != nullptr;
  }
  ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(whole, budget));
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(const bool equal, Compare(Operation::kEqual, part, item, budget));
    if (equal) return true;
  }
  return false;
}

absl::StatusOr<std::vector<Value>> ItemsOf(const Value& value, Budget& budget) {
  RETURN_IF_ERROR(budget.Spend(1, SizeOf(value)));
  if (value.is(Kind::kGenerator)) {
    std::vector<Value> rest(value.items().begin() + static_cast<ptrdiff_t>(value.next()), value.items().end());
    value.next() = value.items().size();
    return rest;
  }
  if (value.is_sequence()) return value.items();
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kDict:
      for (const auto& [key, item] : value.dict().pairs) items.push_back(key);
      return items;
    case Kind::kText:
      RETURN_IF_ERROR(budget.Make(value.text().size() * sizeof(Value)));
      for (size_t at = 0; at < value.text().size();) {
        const size_t begin = at;
        utf8::Next(value.text(), at);
        items.push_back(Value::Text(value.text().substr(begin, at - begin)));
      }
      return items;
    default:
      return Refuse(absl::StrCat("a value of type ", value.type_name(), " has no items"));
  }
}

absl::StatusOr<size_t> LengthOf(const Value& value, Budget& budget) {
  RETURN_IF_ERROR(budget.Spend(1, value.is(Kind::kText) ? value.text().size() : 0));
  if (value.is(Kind::kUndefined)) return 0;
  if (value.is(Kind::kText)) return CountCharacters(value.text());
  if (value.is(Kind::kDict)) return value.dict().pairs.size();
  if (value.is_sequence() && !value.is(Kind::kGenerator)) return value.items().size();
  return Refuse(absl::StrCat("a value of type ", value.type_name(), " has no length"));
}

}  // namespace trainyard::templates
