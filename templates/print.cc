#include "templates/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "templates/characters.h"
#include "tokenizers/utf8.h"

namespace trainyard::templates {
namespace {

absl::Status Unprintable(const Value& value) {
  return absl::InvalidArgumentError(
      absl::StrCat("a value of type ", value.type_name(), " cannot be printed: its text differs between runs"));
}

// Python's repr of a float: the shortest digits that give the same number. Numbers below 1e-4, or of 1e16 or more, get
// an exponent.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const double size = std::fabs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

// Prints one value, as Python's str or as JSON.
class Printer {
 public:
  Printer(const JsonStyle* json, Budget& budget, std::string& text) : json_(json), budget_(budget), text_(text) {}

  // `in_list`: a text is quoted.
  absl::Status Append(const Value& value, bool in_list, int level) {
    const size_t before = text_.size();
    switch (value.kind()) {
      case Kind::kUndefined:
        if (json_ != nullptr) return absl::InvalidArgumentError("an undefined value has no form in JSON");
        if (in_list) text_ += "Undefined";
        break;
      case Kind::kNone:
        text_ += json_ != nullptr ? "null" : "None";
        break;
      case Kind::kBool:
        text_ += json_ != nullptr ? (value.truth() ? "true" : "false") : (value.truth() ? "True" : "False");
        break;
      case Kind::kInteger:
        absl::StrAppend(&text_, value.integer());
        break;
      case Kind::kFloat:
        AppendFloat(value.number());
        break;
      case Kind::kText:
        if (json_ != nullptr) {
          AppendJsonText(value.text());
        } else {
          text_ += in_list ? Quoted(value.text()) : value.text();
        }
        break;
      case Kind::kList:
      case Kind::kTuple:
        RETURN_IF_ERROR(AppendItems(value, level));
        break;
      case Kind::kDict:
        RETURN_IF_ERROR(AppendPairs(value.dict(), level));
        break;
      default:
        if (json_ == nullptr) return Unprintable(value);
        return absl::InvalidArgumentError(absl::StrCat("a value of type ", value.type_name(), " has no form in JSON"));
    }
    // The items of a list or dict have been counted one by one.
    return budget_.Make(value.depth() == 0 ? text_.size() - before : 1);
  }

 private:
  void AppendFloat(double value) {
    const std::string text = FloatText(value);
    if (json_ == nullptr || std::isfinite(value)) {
      text_ += text;
    } else {
      text_ += text == "nan" ? "NaN" : text == "inf" ? "Infinity" : "-Infinity";
    }
  }

  void NewLine(int level) {
    if (json_ == nullptr || json_->indent < 0) return;
    text_.push_back('\n');
    text_.append(static_cast<size_t>(level) * static_cast<size_t>(json_->indent), ' ');
  }
  absl::string_view item_separator() const {
    return json_ != nullptr ? absl::string_view(json_->item_separator) : ", ";
  }
  absl::string_view key_separator() const { return json_ != nullptr ? absl::string_view(json_->key_separator) : ": "; }

  // Counts, in the budget, what stands before an item or after the last one: separators, a line feed and the
  // indentation.
  absl::Status MakeBetween(size_t separators, int level) {
    const int indent = json_ == nullptr ? 0 : std::max(0, json_->indent);
    return budget_.Make(separators + 1 + static_cast<size_t>(level) * static_cast<size_t>(indent));
  }

  absl::Status AppendItems(const Value& value, int level) {
    const bool is_tuple = value.is(Kind::kTuple) && json_ == nullptr;
    text_.push_back(is_tuple ? '(' : '[');
    bool is_first = true;
    for (const Value& item : value.items()) {
      RETURN_IF_ERROR(MakeBetween(is_first ? 0 : item_separator().size(), level + 1));
      if (!is_first) absl::StrAppend(&text_, item_separator());
      is_first = false;
      NewLine(level + 1);
      RETURN_IF_ERROR(Append(item, /*in_list=*/true, level + 1));
    }
    if (is_tuple && value.items().size() == 1) text_.push_back(',');
    if (!is_first) {
      RETURN_IF_ERROR(MakeBetween(0, level));
      NewLine(level);
    }
    text_.push_back(is_tuple ? ')' : ']');
    return absl::OkStatus();
  }

  absl::Status AppendPairs(const Dict& dict, int level) {
    std::vector<const std::pair<Value, Value>*> pairs;
    for (const auto& pair : dict.pairs) pairs.push_back(&pair);
    if (json_ != nullptr && json_->sort_keys) {
      for (const auto* pair : pairs) {
        if (!pair->first.is(Kind::kText)) return absl::InvalidArgumentError("keys that are not texts cannot be sorted");
      }
      std::stable_sort(pairs.begin(), pairs.end(),
                       [](const auto* a, const auto* b) { return a->first.text() < b->first.text(); });
    }
    text_.push_back('{');
    for (size_t i = 0; i < pairs.size(); ++i) {
      RETURN_IF_ERROR(MakeBetween(key_separator().size() + (i > 0 ? item_separator().size() : 0), level + 1));
      if (i > 0) absl::StrAppend(&text_, item_separator());
      NewLine(level + 1);
      RETURN_IF_ERROR(AppendKey(pairs[i]->first));
      absl::StrAppend(&text_, key_separator());
      RETURN_IF_ERROR(Append(pairs[i]->second, /*in_list=*/true, level + 1));
    }
    if (!pairs.empty()) {
      RETURN_IF_ERROR(MakeBetween(0, level));
      NewLine(level);
    }
    text_.push_back('}');
    return absl::OkStatus();
  }

  absl::Status AppendKey(const Value& key) {
    const bool quotes = json_ != nullptr && !key.is(Kind::kText);
    if (quotes) text_.push_back('"');
    RETURN_IF_ERROR(Append(key, /*in_list=*/true, 0));
    if (quotes) text_.push_back('"');
    return absl::OkStatus();
  }

  void AppendJsonText(absl::string_view text) {
    constexpr absl::string_view kEscaped = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
    text_.push_back('"');
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const uint32_t code = utf8::Next(text, at);
      const size_t found = code < 0x80 ? kEscaped.find(static_cast<char>(code)) : absl::string_view::npos;
      if (found != absl::string_view::npos) {
        text_.push_back('\\');
        text_.push_back(kLetters[found]);
      } else if (code < 0x20 || (json_->ascii && code > 0x7E && code < 0x10000)) {
        absl::StrAppendFormat(&text_, "\\u%04x", code);
      } else if (json_->ascii && code >= 0x10000) {
        absl::StrAppendFormat(&text_, "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10),
                              0xDC00 + ((code - 0x10000) & 0x3FF));
      } else {
        text_.append(text.data() + begin, at - begin);
      }
    }
    text_.push_back('"');
  }

  const JsonStyle* const json_;  // null: the text of Python
  Budget& budget_;
  std::string& text_;
};

}  // namespace

std::string Quoted(absl::string_view text) {
  const bool has_single = text.find('\'') != absl::string_view::npos;
  const char quote = has_single && text.find('"') == absl::string_view::npos ? '"' : '\'';
  std::string quoted(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t code = utf8::Next(text, at);
    if (code == '\n' || code == '\r' || code == '\t') {
      quoted += code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t";
    } else if (code == static_cast<uint32_t>(quote) || code == '\\') {
      quoted.push_back('\\');
      quoted.push_back(static_cast<char>(code));
    } else if (IsPrintable(code)) {
      quoted.append(text.data() + begin, at - begin);
    } else if (code < 0x100) {
      absl::StrAppendFormat(&quoted, "\\x%02x", code);
    } else {
      absl::StrAppendFormat(&quoted, code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
    }
  }
  quoted.push_back(quote);
  return quoted;
}

absl::Status AppendText(const Value& value, Budget& budget, std::string& text) {
  return Printer(nullptr, budget, text).Append(value, /*in_list=*/false, 0);
}

absl::Status AppendJson(const Value& value, const JsonStyle& style, Budget& budget, std::string& text) {
  return Printer(&style, budget, text).Append(value, /*in_list=*/true, 0);
}

}  // namespace trainyard::templates
