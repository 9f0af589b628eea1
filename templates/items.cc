// AttributeOf, ItemOf and SliceOf of operations.h.
#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "templates/characters.h"
#include "templates/names.h"
#include "templates/operations.h"
#include "tokenizers/utf8.h"

namespace trainyard::templates {
namespace {

// Attributes that Python's objects have, and that are neither values of a template nor supported methods.
constexpr std::array<absl::string_view, 14> kNumberAttributes = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes", "fromhex", "hex", "imag",
    "is_integer",       "numerator", "real",       "to_bytes",  "is_finite"};
constexpr std::array<absl::string_view, 24> kTextAttributes = {
    "casefold",  "center",       "encode",  "expandtabs", "format",      "format_map", "isalnum",    "isascii",
    "isdecimal", "isidentifier", "islower", "isnumeric",  "isprintable", "istitle",    "isupper",    "ljust",
    "maketrans", "rindex",       "rjust",   "swapcase",   "translate",   "zfill",      "rpartition", "rsplit"};
constexpr std::array<absl::string_view, 9> kListAttributes = {"append", "clear",  "copy",    "extend", "insert",
                                                              "pop",    "remove", "reverse", "sort"};
constexpr std::array<absl::string_view, 7> kDictAttributes = {"clear",   "copy",       "fromkeys", "pop",
                                                              "popitem", "setdefault", "update"};
constexpr std::array<absl::string_view, 4> kDictMethods = {"get", "items", "keys", "values"};

template <size_t size>
bool IsOneOf(const std::array<absl::string_view, size>& names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Whether Python would return a method or another attribute of the object.
bool HasPythonAttribute(const Value& value, absl::string_view name) {
  if (absl::string_view(name).substr(0, 2) == "__") return true;
  switch (value.kind()) {
    case Kind::kText:
      return IsOneOf(kTextAttributes, name) || (IsMethod(name) && !IsOneOf(kDictMethods, name));
    case Kind::kList:
    case Kind::kTuple:
      return IsOneOf(kListAttributes, name) || name == "count" || name == "index";
    case Kind::kDict:
      return IsOneOf(kDictAttributes, name) || IsOneOf(kDictMethods, name);
    case Kind::kRange:
      return name == "start" || name == "stop" || name == "step" || name == "count" || name == "index";
    case Kind::kView:
      return name == "mapping" || name == "isdisjoint";
    case Kind::kGenerator:
      return name == "send" || name == "throw" || name == "close" || name.substr(0, 3) == "gi_";
    default:
      return value.is_number() && IsOneOf(kNumberAttributes, name);
  }
}

absl::Status NotAValue(const Value& value, absl::string_view name) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' of a value of type ", value.type_name(), " is not supported as a value"));
}

Value MissingOf(const Value& value, absl::string_view name) {
  return Value::Undefined(absl::StrCat(value.type_name(), " object has no attribute ", name));
}

// The bytes of the characters [begin, end) of a text.
std::string Characters(const std::string& text, size_t begin, size_t end) {
  size_t at = 0;
  for (size_t i = 0; i < begin; ++i) utf8::Next(text, at);
  const size_t from = at;
  for (size_t i = begin; i < end; ++i) utf8::Next(text, at);
  return text.substr(from, at - from);
}

absl::StatusOr<std::optional<int64_t>> BoundOf(const Value* value) {
  if (value == nullptr || value->is(Kind::kNone)) return std::optional<int64_t>();
  if (value->is_whole()) return std::optional<int64_t>(value->integer());
  return absl::InvalidArgumentError(
      absl::StrCat("the bounds of a slice must be whole numbers or none; found a value of type ", value->type_name()));
}

}  // namespace

absl::StatusOr<Value> AttributeOf(const Value& value, const std::string& name, Budget& budget) {
  RETURN_IF_ERROR(budget.Spend(1));
  if (value.is(Kind::kUndefined)) return absl::InvalidArgumentError(absl::StrCat("'", value.text(), "' is undefined"));
  if (value.is(Kind::kNamespace)) {
    for (const auto& [known, attribute] : value.space().attributes) {
      if (known == name) return attribute;
    }
    return MissingOf(value, name);
  }
  if (HasPythonAttribute(value, name)) return NotAValue(value, name);
  if (value.is(Kind::kDict)) {
    RETURN_IF_ERROR(budget.Spend(value.dict().pairs.size() / 4));
    if (const Value* found = value.dict().Find(name); found != nullptr) return *found;
  }
  if (!value.is_data()) return NotAValue(value, name);
  return MissingOf(value, name);
}

absl::StatusOr<Value> ItemOf(const Value& value, const Value& key, Budget& budget) {
  RETURN_IF_ERROR(budget.Spend(1));
  if (value.is(Kind::kUndefined)) return absl::InvalidArgumentError(absl::StrCat("'", value.text(), "' is undefined"));
  if (value.is(Kind::kDict)) {
    RETURN_IF_ERROR(budget.Spend(value.dict().pairs.size() / 4));
    const Value* found = value.dict().Find(key);
    if (found != nullptr) return *found;
  }
  const bool is_indexed =
      value.is(Kind::kText) || value.is(Kind::kList) || value.is(Kind::kTuple) || value.is(Kind::kRange);
  if (is_indexed && key.is_whole()) {
    ASSIGN_OR_RETURN(const size_t length, LengthOf(value, budget));
    const auto size = static_cast<int64_t>(length);
    const int64_t index = key.integer() < 0 && key.integer() >= -size ? key.integer() + size : key.integer();
    if (index < 0 || index >= size) return Value::Undefined(absl::StrCat(value.type_name(), " object has no element"));
    const auto at = static_cast<size_t>(index);
    if (!value.is(Kind::kText)) return value.items()[at];
    return MakeText(Characters(value.text(), at, at + 1), budget);
  }
  // As in jinja2, an item that does not exist may be an attribute.
  if (key.is(Kind::kText)) return AttributeOf(value, key.text(), budget);
  return Value::Undefined(absl::StrCat(value.type_name(), " object has no element"));
}

absl::StatusOr<Value> SliceOf(const Value& value, const Value* begin, const Value* end, const Value* step,
                              Budget& budget) {
  if (value.is(Kind::kUndefined)) return absl::InvalidArgumentError(absl::StrCat("'", value.text(), "' is undefined"));
  if (!value.is(Kind::kText) && !value.is(Kind::kList) && !value.is(Kind::kTuple)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a slice of a value of type ", value.type_name(), " is not supported"));
  }
  ASSIGN_OR_RETURN(const std::optional<int64_t> first, BoundOf(begin));
  ASSIGN_OR_RETURN(const std::optional<int64_t> last, BoundOf(end));
  ASSIGN_OR_RETURN(const std::optional<int64_t> stride, BoundOf(step));
  const int64_t by = stride.value_or(1);
  if (by == 0) return absl::InvalidArgumentError("the step of a slice is 0");
  if (value.is(Kind::kText) && by != 1 && !IsAscii(value.text())) {
    return absl::InvalidArgumentError("a slice with a step of a text that is not ASCII is not supported");
  }
  ASSIGN_OR_RETURN(const size_t length, LengthOf(value, budget));
  const auto size = static_cast<int64_t>(length);
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const auto clamped = [&](int64_t at) {
    if (at < 0) at = at < -size ? low : at + size;
    return std::clamp(at, low, high);
  };
  const int64_t from = first ? clamped(*first) : by > 0 ? low : high;
  const int64_t to = last ? clamped(*last) : by > 0 ? high : low;
  if (value.is(Kind::kText) && by == 1) {
    RETURN_IF_ERROR(budget.Spend(1, value.text().size()));
    if (to <= from) return Value::Text("");
    return MakeText(Characters(value.text(), static_cast<size_t>(from), static_cast<size_t>(to)), budget);
  }
  std::vector<Value> items;
  std::string text;
  // A step beyond the size reads one item, and is made smaller so that the sum does not overflow.
  const int64_t stepped = std::clamp(by, -size - 1, size + 1);
  for (int64_t at = from; stepped > 0 ? at < to : at > to; at += stepped) {
    if (value.is(Kind::kText)) {
      text.push_back(value.text()[static_cast<size_t>(at)]);
    } else {
      items.push_back(value.items()[static_cast<size_t>(at)]);
    }
  }
  if (value.is(Kind::kText)) return MakeText(std::move(text), budget);
  return MakeItems(value.kind(), std::move(items), budget);
}

}  // namespace trainyard::templates
