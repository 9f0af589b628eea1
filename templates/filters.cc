#include "templates/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "templates/characters.h"
#include "templates/names.h"
#include "templates/print.h"

namespace trainyard::templates {
namespace {

absl::Status Unsuitable(absl::string_view reason) { return absl::InvalidArgumentError(reason); }

class FilterCall {
 public:
  FilterCall(const std::string& name, const Value& value, const CallArguments& arguments, Budget& budget)
      : name_(name), value_(value), arguments_(arguments), budget_(budget) {}

  absl::StatusOr<Value> Apply() {
    RETURN_IF_ERROR(budget_.Spend(1));
    if (name_ == "default" || name_ == "d") return Default();
    if (name_ == "string" || name_ == "upper" || name_ == "lower" || name_ == "title" || name_ == "capitalize") {
      return Text();
    }
    if (name_ == "trim") return Trim();
    if (name_ == "replace") return Replace();
    if (name_ == "indent") return Indent();
    if (name_ == "tojson") return ToJson();
    if (name_ == "join") return Join();
    if (name_ == "int") return Int();
    if (name_ == "float") return Float();
    if (name_ == "map") return Map();
    if (name_ == "select" || name_ == "reject") return Select(/*by_attribute=*/false, name_ == "select");
    if (name_ == "selectattr" || name_ == "rejectattr") return Select(/*by_attribute=*/true, name_ == "selectattr");
    if (name_ == "unique") return Unique();
    if (name_ == "sort") return Sort();
    RETURN_IF_ERROR(Bind({}, 0).status());
    if (name_ == "safe") {
      ASSIGN_OR_RETURN(std::string text, TextOf(value_, budget_));
      return MakeText(std::move(text), budget_);
    }
    return Plain();
  }

 private:
  using Bound = std::vector<std::optional<Value>>;

  absl::StatusOr<Bound> Bind(std::initializer_list<absl::string_view> names, size_t required) const {
    return BindArguments(arguments_, name_, names, required);
  }
  static bool IsTrue(const std::optional<Value>& value) { return value && value->truth(); }

  // Filters without arguments.
  absl::StatusOr<Value> Plain() {
    if (name_ == "length" || name_ == "count") {
      ASSIGN_OR_RETURN(const size_t length, LengthOf(value_, budget_));
      return Value::Integer(static_cast<int64_t>(length));
    }
    if (name_ == "items" || name_ == "dictsort") return Items();
    if (name_ == "abs") {
      if (!value_.is_number()) return Unsuitable("'abs' needs a number");
      if (value_.is(Kind::kFloat)) return Value::Float(std::fabs(value_.number()));
      return value_.integer() < 0 ? Calculate(Operation::kSubtract, Value::Integer(0), value_, budget_)
                                  : Value::Integer(value_.integer());
    }
    if (name_ == "reverse" && value_.is(Kind::kText)) {
      if (!IsAscii(value_.text())) return Unsuitable("'reverse' of a text that is not ASCII is not supported");
      return MakeText(std::string(value_.text().rbegin(), value_.text().rend()), budget_);
    }
    if (name_ == "last" && value_.is(Kind::kGenerator))
      return Unsuitable("'last' of a generator is not possible; use '| list'");
    if (name_ == "last" && value_.is(Kind::kView)) return Last(value_.items());
    ASSIGN_OR_RETURN(std::vector<Value> items, ItemsOf(value_, budget_));
    if (name_ == "first") return items.empty() ? Value::Undefined("no first item, sequence was empty") : items[0];
    if (name_ == "last") return Last(items);
    if (name_ == "reverse") std::reverse(items.begin(), items.end());
    return MakeItems(name_ == "reverse" ? Kind::kGenerator : Kind::kList, std::move(items), budget_);
  }

  static Value Last(const std::vector<Value>& items) {
    return items.empty() ? Value::Undefined("no last item, sequence was empty") : items.back();
  }

  absl::StatusOr<Value> Default() {
    ASSIGN_OR_RETURN(const Bound bound, Bind({"default_value", "boolean"}, 0));
    const bool replaces = value_.is(Kind::kUndefined) || (IsTrue(bound[1]) && !value_.truth());
    return replaces ? bound[0].value_or(Value::Text("")) : value_;
  }

  absl::StatusOr<Value> Text() {
    RETURN_IF_ERROR(Bind({}, 0).status());
    ASSIGN_OR_RETURN(std::string text, TextOf(value_, budget_));
    if (name_ == "title") {
      ASSIGN_OR_RETURN(text, Title(text));
    } else if (name_ != "string") {
      const Letters letters = name_ == "upper"   ? Letters::kUpper
                              : name_ == "lower" ? Letters::kLower
                                                 : Letters::kCapitalize;
      ASSIGN_OR_RETURN(text, WithLetters(text, letters));
    }
    return MakeText(std::move(text), budget_);
  }

  // Unlike str.title, a new word begins only after a space or one of -({[<.
  static absl::StatusOr<std::string> Title(absl::string_view text) {
    ASSIGN_OR_RETURN(std::string titled, WithLetters(text, Letters::kLower));
    bool begins = true;
    for (char& c : titled) {
      if (begins) c = absl::ascii_toupper(static_cast<unsigned char>(c));
      begins = IsSpace(static_cast<unsigned char>(c)) || absl::string_view("-({[<").find(c) != absl::string_view::npos;
    }
    return titled;
  }

  absl::StatusOr<Value> Trim() {
    ASSIGN_OR_RETURN(const Bound bound, Bind({"chars"}, 0));
    ASSIGN_OR_RETURN(const std::string text, TextOf(value_, budget_));
    ASSIGN_OR_RETURN(std::string trimmed, Strip(text, bound[0] ? &*bound[0] : nullptr, Side::kBoth, budget_));
    return MakeText(std::move(trimmed), budget_);
  }

  absl::StatusOr<Value> Replace() {
    ASSIGN_OR_RETURN(const Bound bound, Bind({"old", "new", "count"}, 2));
    ASSIGN_OR_RETURN(const std::string text, TextOf(value_, budget_));
    ASSIGN_OR_RETURN(const std::string old, TextOf(*bound[0], budget_));
    ASSIGN_OR_RETURN(const std::string with, TextOf(*bound[1], budget_));
    int64_t count = -1;
    if (bound[2] && !bound[2]->is(Kind::kNone)) {
      if (!bound[2]->is_whole()) return Unsuitable("the count of 'replace' must be a whole number");
      count = bound[2]->integer();
    }
    ASSIGN_OR_RETURN(std::string replaced, ReplaceAll(text, old, with, count, budget_));
    return MakeText(std::move(replaced), budget_);
  }

  absl::StatusOr<Value> Indent() {
    ASSIGN_OR_RETURN(const Bound bound, Bind({"width", "first", "blank"}, 0));
    std::string indent(4, ' ');
    if (bound[0] && bound[0]->is(Kind::kText)) {
      indent = bound[0]->text();
    } else if (bound[0]) {
      if (!bound[0]->is_whole() || bound[0]->integer() > 1000)
        return Unsuitable("the width of 'indent' must be a number up to 1000, or a text");
      indent = std::string(static_cast<size_t>(std::max<int64_t>(0, bound[0]->integer())), ' ');
    }
    if (!value_.is(Kind::kText)) return Unsuitable("'indent' needs a text");
    ASSIGN_OR_RETURN(const Value ended, MakeText(value_.text() + "\n", budget_));
    ASSIGN_OR_RETURN(const Value lines, CallMethod(ended, "splitlines", {}, budget_));
    std::string text = IsTrue(bound[1]) ? indent : "";
    bool is_first = true;
    for (const Value& line : lines.items()) {
      if (!is_first) text.push_back('\n');
      if (!is_first && (IsTrue(bound[2]) || !line.text().empty())) text += indent;
      is_first = false;
      text += line.text();
      RETURN_IF_ERROR(budget_.Make(indent.size() + line.text().size()));
    }
    return MakeText(std::move(text), budget_);
  }

  absl::StatusOr<Value> ToJson() {
    ASSIGN_OR_RETURN(const Bound bound, Bind({"ensure_ascii", "indent", "separators", "sort_keys"}, 0));
    JsonStyle style{.ascii = IsTrue(bound[0]), .sort_keys = IsTrue(bound[3])};
    if (bound[1] && !bound[1]->is(Kind::kNone)) {
      if (!bound[1]->is_whole() || bound[1]->integer() < 0 || bound[1]->integer() > 100) {
        return Unsuitable("the indent of 'tojson' must be none, or a whole number from 0 to 100");
      }
      style.indent = static_cast<int>(bound[1]->integer());
      style.item_separator = ",";
    }
    if (bound[2] && !bound[2]->is(Kind::kNone)) {
      const bool is_pair = (bound[2]->is(Kind::kTuple) || bound[2]->is(Kind::kList)) && bound[2]->items().size() == 2 &&
                           bound[2]->items()[0].is(Kind::kText) && bound[2]->items()[1].is(Kind::kText);
      if (!is_pair) return Unsuitable("the separators of 'tojson' must be two texts");
      style.item_separator = bound[2]->items()[0].text();
      style.key_separator = bound[2]->items()[1].text();
    }
    std::string text;
    RETURN_IF_ERROR(AppendJson(value_, style, budget_, text));
    return MakeText(std::move(text), budget_);
  }

  absl::StatusOr<Value> Join() {
    ASSIGN_OR_RETURN(const Bound bound, Bind({"d", "attribute"}, 0));
    ASSIGN_OR_RETURN(const std::string between, TextOf(bound[0].value_or(Value::Text("")), budget_));
    ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(value_, budget_));
    std::string joined;
    for (size_t i = 0; i < items.size(); ++i) {
      Value item = items[i];
      if (bound[1] && !bound[1]->is(Kind::kNone)) {
        ASSIGN_OR_RETURN(item, Path(item, *bound[1]));
      }
      if (i > 0) joined += between;
      ASSIGN_OR_RETURN(const std::string text, TextOf(item, budget_));
      joined += text;
      RETURN_IF_ERROR(budget_.Make(between.size()));
    }
    return MakeText(std::move(joined), budget_);
  }

  absl::StatusOr<Value> Int() {
    ASSIGN_OR_RETURN(const Bound bound, Bind({"default", "base"}, 0));
    if (bound[1]) return Unsuitable("the base of 'int' is not supported");
    const Value otherwise = bound[0].value_or(Value::Integer(0));
    if (value_.is(Kind::kUndefined)) return Unsuitable(absl::StrCat("'", value_.text(), "' is undefined"));
    if (value_.is_whole()) return Value::Integer(value_.integer());
    double number = value_.is(Kind::kFloat) ? value_.number() : 0;
    if (value_.is(Kind::kText)) {
      int64_t whole = 0;
      const absl::string_view text = StripSpaceAfter(StripSpaceBefore(value_.text()));
      if (!IsPlainNumber(text)) return Unsuitable("'int' of this text is not supported");
      if (text.empty() || absl::ascii_isalpha(static_cast<unsigned char>(text.back()))) return otherwise;
      if (absl::SimpleAtoi(text, &whole)) return Value::Integer(whole);
      if (!absl::SimpleAtod(text, &number)) return otherwise;
    } else if (!value_.is(Kind::kFloat)) {
      return otherwise;
    }
    if (!std::isfinite(number)) return otherwise;
    if (std::fabs(number) >= 9e18) return Unsuitable("'int' of a number that large is not supported");
    return Value::Integer(static_cast<int64_t>(number));
  }

  // Whether the value of the text as a number is certain: it consists of digits, signs, points and exponents, or is a
  // word that is no number.
  static bool IsPlainNumber(absl::string_view text) {
    const bool is_word = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
      return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == ' ';
    });
    const std::string lower = absl::AsciiStrToLower(text);
    if (is_word) return lower != "inf" && lower != "infinity" && lower != "nan";
    return std::all_of(text.begin(), text.end(),
                       [](char c) { return absl::string_view("0123456789+-.eE").find(c) != absl::string_view::npos; });
  }

  absl::StatusOr<Value> Float() {
    ASSIGN_OR_RETURN(const Bound bound, Bind({"default"}, 0));
    if (value_.is_number()) return Value::Float(value_.number());
    double number = 0;
    if (!value_.is(Kind::kText)) return Unsuitable("'float' is supported for numbers and texts only");
    const absl::string_view text = StripSpaceAfter(StripSpaceBefore(value_.text()));
    if (!IsPlainNumber(text)) return Unsuitable("'float' of this text is not supported");
    if (absl::SimpleAtod(text, &number)) return Value::Float(number);
    return bound[0].value_or(Value::Float(0));
  }

  // item.a.b or item[0], as the argument `attribute` of filters names it.
  absl::StatusOr<Value> Path(Value item, const Value& path) {
    if (path.is_whole()) return ItemOf(item, path, budget_);
    if (!path.is(Kind::kText)) return Unsuitable("the name of an attribute must be a text or a number");
    for (const absl::string_view part : absl::StrSplit(path.text(), '.')) {
      int64_t index = 0;
      const bool is_index = !part.empty() &&
                            std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; }) &&
                            absl::SimpleAtoi(part, &index);
      ASSIGN_OR_RETURN(item, ItemOf(item, is_index ? Value::Integer(index) : Value::Text(std::string(part)), budget_));
    }
    return item;
  }

  absl::StatusOr<Value> Items() {
    std::vector<Value> items;
    if (!value_.is(Kind::kUndefined) || name_ == "dictsort") {
      if (!value_.is(Kind::kDict))
        return Unsuitable(absl::StrCat("'", name_, "' needs a dict, but has a value of type ", value_.type_name()));
      for (const auto& [key, item] : value_.dict().pairs) items.push_back(Value::Tuple({key, item}));
    }
    if (name_ == "items") return MakeItems(Kind::kGenerator, std::move(items), budget_);
    std::vector<std::pair<Value, Value>> keyed;
    for (Value& item : items) {
      Value key = item.items()[0];
      keyed.emplace_back(std::move(key), std::move(item));
    }
    return Sorted(std::move(keyed), /*descending=*/false, /*case_sensitive=*/false);
  }

  absl::StatusOr<Value> Map() {
    ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(value_, budget_));
    std::vector<Value> mapped;
    if (arguments_.values.empty()) {
      ASSIGN_OR_RETURN(const Bound bound, Bind({"attribute", "default"}, 1));
      for (const Value& item : items) {
        ASSIGN_OR_RETURN(Value attribute, Path(item, *bound[0]));
        if (attribute.is(Kind::kUndefined) && bound[1] && !bound[1]->is(Kind::kNone)) attribute = *bound[1];
        mapped.push_back(std::move(attribute));
      }
      return MakeItems(Kind::kGenerator, std::move(mapped), budget_);
    }
    const Value& filter = arguments_.values[0];
    if (!filter.is(Kind::kText) || !IsFilter(filter.text()) || filter.text() == "safe") {
      return Unsuitable(absl::StrCat("'map' needs the name of one of the filters ", ListOfFilters()));
    }
    const CallArguments rest{.values = {arguments_.values.begin() + 1, arguments_.values.end()},
                             .named = arguments_.named};
    for (const Value& item : items) {
      ASSIGN_OR_RETURN(Value result, ApplyFilter(filter.text(), item, rest, budget_));
      mapped.push_back(std::move(result));
    }
    return MakeItems(Kind::kGenerator, std::move(mapped), budget_);
  }

  absl::StatusOr<Value> Select(bool by_attribute, bool keep) {
    const size_t first = by_attribute ? 1 : 0;
    if (arguments_.values.size() < first || !arguments_.named.empty()) {
      return Unsuitable(absl::StrCat("'", name_, "' needs ", by_attribute ? "an attribute and then " : "",
                                     "a test without named arguments"));
    }
    std::string test;
    CallArguments rest;
    if (arguments_.values.size() > first) {
      const Value& name = arguments_.values[first];
      if (!name.is(Kind::kText) || !IsTest(name.text())) {
        return Unsuitable(absl::StrCat("'", name_, "' needs the name of one of the tests ", ListOfTests()));
      }
      test = name.text();
      rest.values.assign(arguments_.values.begin() + static_cast<ptrdiff_t>(first) + 1, arguments_.values.end());
    }
    ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(value_, budget_));
    std::vector<Value> kept;
    for (const Value& item : items) {
      Value tested = item;
      if (by_attribute) {
        ASSIGN_OR_RETURN(tested, Path(item, arguments_.values[0]));
      }
      bool passes = tested.truth();
      if (!test.empty()) {
        ASSIGN_OR_RETURN(passes, ApplyTest(test, tested, rest, budget_));
      }
      if (passes == keep) kept.push_back(item);
    }
    return MakeItems(Kind::kGenerator, std::move(kept), budget_);
  }

  absl::StatusOr<Value> Unique() {
    ASSIGN_OR_RETURN(const Bound bound, Bind({"case_sensitive", "attribute"}, 0));
    ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(value_, budget_));
    std::vector<Value> kept, keys;
    for (const Value& item : items) {
      ASSIGN_OR_RETURN(const Value key, SortKey(item, bound[1], IsTrue(bound[0])));
      if (key.is_sequence() || key.is(Kind::kDict)) return Unsuitable("'unique' needs texts or numbers");
      ASSIGN_OR_RETURN(const bool is_known, Contains(Value::List(keys), key, budget_));
      if (is_known) continue;
      keys.push_back(key);
      kept.push_back(item);
    }
    return MakeItems(Kind::kGenerator, std::move(kept), budget_);
  }

  absl::StatusOr<Value> SortKey(const Value& item, const std::optional<Value>& attribute, bool case_sensitive) {
    Value key = item;
    if (attribute && !attribute->is(Kind::kNone)) {
      ASSIGN_OR_RETURN(key, Path(item, *attribute));
    }
    if (case_sensitive || !key.is(Kind::kText)) return key;
    ASSIGN_OR_RETURN(std::string lower, WithLetters(key.text(), Letters::kLower));
    return MakeText(std::move(lower), budget_);
  }

  absl::StatusOr<Value> Sort() {
    ASSIGN_OR_RETURN(const Bound bound, Bind({"reverse", "case_sensitive", "attribute"}, 0));
    ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(value_, budget_));
    if (bound[2] && bound[2]->is(Kind::kText) && bound[2]->text().find(',') != std::string::npos) {
      return Unsuitable("'sort' by several attributes is not supported");
    }
    std::vector<std::pair<Value, Value>> keyed;
    for (const Value& item : items) {
      ASSIGN_OR_RETURN(Value key, SortKey(item, bound[2], IsTrue(bound[1])));
      keyed.emplace_back(std::move(key), item);
    }
    return Sorted(std::move(keyed), IsTrue(bound[0]), /*case_sensitive=*/true);
  }

  // Sorts the items by their keys; items with equal keys keep their order.
  absl::StatusOr<Value> Sorted(std::vector<std::pair<Value, Value>> keyed, bool descending, bool case_sensitive) {
    for (auto& [key, item] : keyed) {
      if (!case_sensitive) {
        ASSIGN_OR_RETURN(key, SortKey(key, std::nullopt, false));
      }
      // Fails if the keys have no order among each other.
      RETURN_IF_ERROR(Compare(Operation::kLess, keyed[0].first, key, budget_).status());
      // Each key is compared with about 32 others.
      RETURN_IF_ERROR(budget_.Spend(32, 32 * (key.is(Kind::kText) ? key.text().size() : 0)));
    }
    std::stable_sort(keyed.begin(), keyed.end(), [this, descending](const auto& a, const auto& b) {
      Budget unlimited;
      const auto& [low, high] = descending ? std::tie(b.first, a.first) : std::tie(a.first, b.first);
      return Compare(Operation::kLess, low, high, unlimited).value_or(false);
    });
    std::vector<Value> items;
    for (auto& [key, item] : keyed) items.push_back(std::move(item));
    return MakeItems(Kind::kList, std::move(items), budget_);
  }

  const std::string& name_;
  const Value& value_;
  const CallArguments& arguments_;
  Budget& budget_;
};

}  // namespace

absl::StatusOr<Value> ApplyFilter(const std::string& name, const Value& value, const CallArguments& arguments,
                                  Budget& budget) {
  // Limits the depth, because the filter `map` applies another filter.
  absl::Status entered = budget.Enter();
  absl::StatusOr<Value> result =
      entered.ok() ? FilterCall(name, value, arguments, budget).Apply() : absl::StatusOr<Value>(entered);
  budget.Leave();
  return result;
}

}  // namespace trainyard::templates
