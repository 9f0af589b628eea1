// CallMethod and the text functions of operations.h.
#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "templates/characters.h"
#include "templates/operations.h"
#include "tokenizers/utf8.h"

namespace trainyard::templates {
namespace {

constexpr size_t kNone = absl::string_view::npos;

absl::Status Bad(absl::string_view reason) { return absl::InvalidArgumentError(reason); }

class TextMethod {
 public:
  TextMethod(const std::string& text, const std::string& name, const CallArguments& arguments, Budget& budget)
      : text_(text), name_(name), arguments_(arguments), budget_(budget) {}

  absl::StatusOr<Value> Call() {
    RETURN_IF_ERROR(budget_.Spend(1, text_.size()));
    if (name_ == "strip" || name_ == "lstrip" || name_ == "rstrip") return CallStrip();
    if (name_ == "upper") return CallLetters(Letters::kUpper);
    if (name_ == "lower") return CallLetters(Letters::kLower);
    if (name_ == "title") return CallLetters(Letters::kTitle);
    if (name_ == "capitalize") return CallLetters(Letters::kCapitalize);
    if (name_ == "split" || name_ == "rsplit") return CallSplit(name_ == "rsplit");
    if (name_ == "splitlines") return CallSplitLines();
    if (name_ == "partition" || name_ == "rpartition") return CallPartition(name_ == "rpartition");
    if (name_ == "startswith" || name_ == "endswith") return CallAffix(name_ == "startswith");
    if (name_ == "removeprefix" || name_ == "removesuffix") return CallRemove(name_ == "removeprefix");
    if (name_ == "replace") return CallReplace();
    if (name_ == "find" || name_ == "rfind" || name_ == "index" || name_ == "count") return CallFind();
    if (name_ == "isspace" || name_ == "isdigit" || name_ == "isalpha") return CallClass();
    if (name_ == "join") return CallJoin();
    return Bad(absl::StrCat("a str has no method '", name_, "'"));
  }

 private:
  // The method's arguments; Python's text methods take most of them by position only.
  absl::StatusOr<std::vector<std::optional<Value>>> Bind(std::initializer_list<absl::string_view> names,
                                                         size_t required, bool may_name = false) {
    if (!may_name && !arguments_.named.empty()) {
      return Bad(absl::StrCat("'", name_, "' has no argument '", arguments_.named[0].first, "'"));
    }
    return BindArguments(arguments_, name_, names, required);
  }

  absl::StatusOr<std::string> OneText() {
    ASSIGN_OR_RETURN(const auto bound, Bind({"text"}, 1));
    if (bound[0]->is(Kind::kText)) return bound[0]->text();
    return Bad(absl::StrCat("'", name_, "' needs a text, but its argument is a value of type ", bound[0]->type_name()));
  }

  absl::StatusOr<Value> CallStrip() {
    ASSIGN_OR_RETURN(const auto bound, Bind({"chars"}, 0));
    const Side side = name_ == "strip" ? Side::kBoth : name_ == "lstrip" ? Side::kBefore : Side::kAfter;
    ASSIGN_OR_RETURN(std::string stripped, Strip(text_, bound[0] ? &*bound[0] : nullptr, side, budget_));
    return MakeText(std::move(stripped), budget_);
  }

  absl::StatusOr<Value> CallLetters(Letters letters) {
    RETURN_IF_ERROR(Bind({}, 0).status());
    ASSIGN_OR_RETURN(std::string changed, WithLetters(text_, letters));
    return MakeText(std::move(changed), budget_);
  }

  absl::StatusOr<Value> CallSplit(bool from_end) {
    ASSIGN_OR_RETURN(const auto bound, Bind({"sep", "maxsplit"}, 0, /*may_name=*/true));
    int64_t most = -1;
    if (bound[1]) {
      if (!bound[1]->is_whole()) return Bad("maxsplit must be a whole number");
      most = bound[1]->integer();
    }
    const size_t limit = most < 0 ? std::numeric_limits<size_t>::max() : static_cast<size_t>(most);
    std::vector<absl::string_view> parts;
    if (!bound[0] || bound[0]->is(Kind::kNone)) {
      parts = from_end ? WordsFromEnd(limit) : Words(limit);
    } else if (!bound[0]->is(Kind::kText) || bound[0]->text().empty()) {
      return Bad("the separator of a split must be a text that is not empty");
    } else {
      RETURN_IF_ERROR(SpendSearch(text_, bound[0]->text(), budget_));
      parts = from_end ? SplitFromEnd(bound[0]->text(), limit) : Split(bound[0]->text(), limit);
    }
    std::vector<Value> items;
    RETURN_IF_ERROR(budget_.Make(text_.size()));
    for (const absl::string_view part : parts) items.push_back(Value::Text(std::string(part)));
    return MakeItems(Kind::kList, std::move(items), budget_);
  }

  std::vector<absl::string_view> Split(absl::string_view separator, size_t limit) const {
    std::vector<absl::string_view> parts;
    absl::string_view rest = text_;
    for (size_t at = rest.find(separator); at != kNone && parts.size() < limit; at = rest.find(separator)) {
      parts.push_back(rest.substr(0, at));
      rest.remove_prefix(at + separator.size());
    }
    parts.push_back(rest);
    return parts;
  }

  std::vector<absl::string_view> SplitFromEnd(absl::string_view separator, size_t limit) const {
    std::vector<absl::string_view> parts;
    absl::string_view rest = text_;
    for (size_t at = rest.rfind(separator); at != kNone && parts.size() < limit; at = rest.rfind(separator)) {
      parts.push_back(rest.substr(at + separator.size()));
      rest = rest.substr(0, at);
    }
    parts.push_back(rest);
    std::reverse(parts.begin(), parts.end());
    return parts;
  }

  std::vector<absl::string_view> Words(size_t limit) const {
    std::vector<absl::string_view> parts;
    absl::string_view rest = StripSpaceBefore(text_);
    while (!rest.empty() && parts.size() < limit) {
      size_t end = 0;
      while (end < rest.size()) {
        size_t next = end;
        if (IsSpace(utf8::Next(rest, next))) break;
        end = next;
      }
      parts.push_back(rest.substr(0, end));
      rest = StripSpaceBefore(rest.substr(end));
    }
    if (!rest.empty()) parts.push_back(rest);
    return parts;
  }

  std::vector<absl::string_view> WordsFromEnd(size_t limit) const {
    std::vector<absl::string_view> parts;
    absl::string_view rest = StripSpaceAfter(text_);
    while (!rest.empty() && parts.size() < limit) {
      size_t begin = rest.size();
      while (begin > 0) {
        const size_t before = utf8::Previous(rest, begin);
        size_t at = before;
        if (IsSpace(utf8::Next(rest, at))) break;
        begin = before;
      }
      parts.push_back(rest.substr(begin));
      rest = StripSpaceAfter(rest.substr(0, begin));
    }
    if (!rest.empty()) parts.push_back(rest);
    std::reverse(parts.begin(), parts.end());
    return parts;
  }

  absl::StatusOr<Value> CallSplitLines() {
    RETURN_IF_ERROR(Bind({}, 0).status());
    std::vector<Value> lines;
    size_t begin = 0;
    for (size_t at = 0; at < text_.size();) {
      const size_t end = at;
      const uint32_t code = utf8::Next(text_, at);
      if (!IsLineEnd(code)) continue;
      if (code == '\r' && at < text_.size() && text_[at] == '\n') ++at;
      lines.push_back(Value::Text(text_.substr(begin, end - begin)));
      begin = at;
    }
    if (begin < text_.size()) lines.push_back(Value::Text(text_.substr(begin)));
    return MakeItems(Kind::kList, std::move(lines), budget_);
  }

  absl::StatusOr<Value> CallPartition(bool from_end) {
    ASSIGN_OR_RETURN(const std::string separator, OneText());
    if (separator.empty()) return Bad("the separator of a partition is empty");
    RETURN_IF_ERROR(SpendSearch(text_, separator, budget_));
    const size_t at = from_end ? text_.rfind(separator) : text_.find(separator);
    std::vector<Value> parts;
    if (at == kNone) {
      parts = {Value::Text(from_end ? "" : text_), Value::Text(""), Value::Text(from_end ? text_ : "")};
    } else {
      parts = {Value::Text(text_.substr(0, at)), Value::Text(separator),
               Value::Text(text_.substr(at + separator.size()))};
    }
    return MakeItems(Kind::kTuple, std::move(parts), budget_);
  }

  absl::StatusOr<Value> CallAffix(bool at_start) {
    ASSIGN_OR_RETURN(const auto bound, Bind({"affix"}, 1));
    std::vector<Value> affixes = {*bound[0]};
    if (bound[0]->is(Kind::kTuple)) affixes = bound[0]->items();
    bool found = false;
    for (const Value& affix : affixes) {
      if (!affix.is(Kind::kText)) return Bad(absl::StrCat("'", name_, "' needs a text or a tuple of texts"));
      found |= at_start ? absl::StartsWith(text_, affix.text()) : absl::EndsWith(text_, affix.text());
    }
    return Value::Bool(found);
  }

  absl::StatusOr<Value> CallRemove(bool at_start) {
    ASSIGN_OR_RETURN(const std::string affix, OneText());
    absl::string_view rest = text_;
    at_start ? absl::ConsumePrefix(&rest, affix) : absl::ConsumeSuffix(&rest, affix);
    return MakeText(std::string(rest), budget_);
  }

  absl::StatusOr<Value> CallReplace() {
    ASSIGN_OR_RETURN(const auto bound, Bind({"old", "new", "count"}, 2));
    if (!bound[0]->is(Kind::kText) || !bound[1]->is(Kind::kText)) return Bad("'replace' needs two texts");
    if (bound[2] && !bound[2]->is_whole()) return Bad("the count of 'replace' must be a whole number");
    ASSIGN_OR_RETURN(std::string text, ReplaceAll(text_, bound[0]->text(), bound[1]->text(),
                                                  bound[2] ? bound[2]->integer() : -1, budget_));
    return MakeText(std::move(text), budget_);
  }

  absl::StatusOr<Value> CallFind() {
    ASSIGN_OR_RETURN(const std::string part, OneText());
    RETURN_IF_ERROR(SpendSearch(text_, part, budget_));
    if (name_ == "count") {
      if (part.empty()) return Value::Integer(static_cast<int64_t>(CountCharacters(text_)) + 1);
      int64_t count = 0;
      for (size_t at = text_.find(part); at != kNone; at = text_.find(part, at + part.size())) ++count;
      return Value::Integer(count);
    }
    const size_t at = name_ == "rfind" ? text_.rfind(part) : text_.find(part);
    if (at != kNone)
      return Value::Integer(static_cast<int64_t>(CountCharacters(absl::string_view(text_).substr(0, at))));
    if (name_ == "index") return Bad("'index' does not find the text");
    return Value::Integer(-1);
  }

  absl::StatusOr<Value> CallClass() {
    RETURN_IF_ERROR(Bind({}, 0).status());
    if (name_ == "isspace") return Value::Bool(!text_.empty() && StripSpaceBefore(text_).empty());
    if (!IsAscii(text_)) return Bad(absl::StrCat("'", name_, "' of a text that is not ASCII is not supported"));
    const bool digits = name_ == "isdigit";
    return Value::Bool(!text_.empty() && std::all_of(text_.begin(), text_.end(), [digits](char c) {
      const auto byte = static_cast<unsigned char>(c);
      return digits ? absl::ascii_isdigit(byte) : absl::ascii_isalpha(byte);
    }));
  }

  absl::StatusOr<Value> CallJoin() {
    ASSIGN_OR_RETURN(const auto bound, Bind({"items"}, 1));
    ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(*bound[0], budget_));
    std::string joined;
    for (size_t i = 0; i < items.size(); ++i) {
      if (!items[i].is(Kind::kText))
        return Bad(absl::StrCat("'join' needs texts, but an item is a value of type ", items[i].type_name()));
      if (i > 0) joined += text_;
      joined += items[i].text();
      RETURN_IF_ERROR(budget_.Make(text_.size() + items[i].text().size()));
    }
    return MakeText(std::move(joined), budget_);
  }

  const std::string& text_;
  const std::string& name_;
  const CallArguments& arguments_;
  Budget& budget_;
};

absl::StatusOr<Value> CallDictMethod(const Value& value, const std::string& name, const CallArguments& arguments,
                                     Budget& budget) {
  const Dict& dict = value.dict();
  RETURN_IF_ERROR(budget.Spend(1 + dict.pairs.size()));
  if (name == "get") {
    if (!arguments.named.empty()) return Bad("'get' has no arguments with names");
    ASSIGN_OR_RETURN(const auto bound, BindArguments(arguments, name, {"key", "default"}, 1));
    if (bound[0]->is_sequence() || bound[0]->is(Kind::kDict)) return Bad("a list or a dict cannot be a key");
    const Value* found = dict.Find(*bound[0]);
    return found != nullptr ? *found : bound[1].value_or(Value::None());
  }
  if (name != "items" && name != "keys" && name != "values")
    return Bad(absl::StrCat("a dict has no method '", name, "'"));
  RETURN_IF_ERROR(BindArguments(arguments, name, {}, 0).status());
  std::vector<Value> items;
  for (const auto& [key, item] : dict.pairs) {
    items.push_back(name == "keys" ? key : name == "values" ? item : Value::Tuple({key, item}));
  }
  return MakeItems(Kind::kView, std::move(items), budget);
}

}  // namespace

absl::StatusOr<Value> CallMethod(const Value& value, const std::string& name, const CallArguments& arguments,
                                 Budget& budget) {
  if (value.is(Kind::kText)) return TextMethod(value.text(), name, arguments, budget).Call();
  if (value.is(Kind::kDict)) return CallDictMethod(value, name, arguments, budget);
  if (value.is(Kind::kUndefined)) return Bad(absl::StrCat("'", value.text(), "' is undefined"));
  const bool is_list = value.is(Kind::kList) || value.is(Kind::kTuple);
  if (is_list && (name == "count" || name == "index")) {
    ASSIGN_OR_RETURN(const auto bound, BindArguments(arguments, name, {"value"}, 1));
    int64_t count = 0;
    for (size_t i = 0; i < value.items().size(); ++i) {
      ASSIGN_OR_RETURN(const bool equal, Compare(Operation::kEqual, value.items()[i], *bound[0], budget));
      if (equal && name == "index") return Value::Integer(static_cast<int64_t>(i));
      if (equal) ++count;
    }
    if (name == "index") return Bad("'index' does not find the value");
    return Value::Integer(count);
  }
  return Bad(
      absl::StrCat("a value of type ", value.type_name(), " has no method '", name, "', or it is not supported"));
}

absl::Status SpendSearch(absl::string_view text, absl::string_view part, Budget& budget) {
  return budget.Spend(1 + text.size() / Budget::kBytesPerStep * (1 + part.size() / 64));
}

absl::StatusOr<std::string> Strip(absl::string_view text, const Value* characters, Side side, Budget& budget) {
  if (characters == nullptr || characters->is(Kind::kNone)) {
    if (side != Side::kAfter) text = StripSpaceBefore(text);
    if (side != Side::kBefore) text = StripSpaceAfter(text);
    return std::string(text);
  }
  if (!characters->is(Kind::kText)) return Bad("the characters to remove must be a text");
  const std::string& set = characters->text();
  RETURN_IF_ERROR(budget.Spend(1, text.size() * (1 + set.size() / 8)));
  // The search finds a character of several bytes only where a character begins: UTF-8 is self-synchronizing.
  const auto has = [&set](absl::string_view one) { return set.find(std::string(one)) != std::string::npos; };
  while (side != Side::kAfter && !text.empty()) {
    const size_t size = utf8::Length(static_cast<unsigned char>(text[0]));
    if (!has(text.substr(0, size))) break;
    text.remove_prefix(size);
  }
  while (side != Side::kBefore && !text.empty()) {
    const size_t begin = utf8::Previous(text, text.size());
    if (!has(text.substr(begin))) break;
    text = text.substr(0, begin);
  }
  return std::string(text);
}

absl::StatusOr<std::string> WithLetters(absl::string_view text, Letters letters) {
  if (!IsAscii(text)) {
    return Bad(
        "upper and lower case of a text that is not ASCII are not supported; they depend on the version of Unicode");
  }
  std::string changed(text);
  bool begins = true;
  for (char& c : changed) {
    const auto byte = static_cast<unsigned char>(c);
    const bool upper =
        letters == Letters::kUpper || (begins && (letters == Letters::kTitle || letters == Letters::kCapitalize));
    c = upper ? absl::ascii_toupper(byte) : absl::ascii_tolower(byte);
    begins = letters == Letters::kTitle && !absl::ascii_isalpha(byte);
  }
  return changed;
}

absl::StatusOr<std::string> ReplaceAll(absl::string_view text, absl::string_view old, absl::string_view with,
                                       int64_t count, Budget& budget) {
  if (old.empty()) return Bad("a replacement of an empty text is not supported");
  RETURN_IF_ERROR(SpendSearch(text, old, budget));
  std::string replaced;
  int64_t done = 0;
  for (size_t at = text.find(old); at != kNone && (count < 0 || done < count); at = text.find(old), ++done) {
    absl::StrAppend(&replaced, text.substr(0, at), with);
    RETURN_IF_ERROR(budget.Make(at + with.size()));
    text.remove_prefix(at + old.size());
  }
  absl::StrAppend(&replaced, text);
  return replaced;
}

}  // namespace trainyard::templates
