#include "templates/lexer.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/escape.h"
#include "common/status_macros.h"
#include "templates/characters.h"
#include "tokenizers/utf8.h"

namespace trainyard::templates {
namespace {

constexpr std::array<absl::string_view, 26> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                          "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                          ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

bool IsNameStart(char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool IsDigit(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }

// The text with "\n" as its only line end, and without a line end at its end.
std::string WithoutLastLineEnd(absl::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    text.push_back(source[i] == '\r' ? '\n' : source[i]);
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) RETURN_IF_ERROR(Root());
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::Status Fail(absl::string_view reason) {
    return absl::InvalidArgumentError(absl::StrCat("line ", Line(), ": ", reason));
  }

  int Line() {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(counted_),
                                         source_.begin() + static_cast<ptrdiff_t>(at_), '\n'));
    counted_ = at_;
    return line_;
  }

  void Add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), Line()}); }
  bool Sees(absl::string_view text) const { return absl::StartsWith(source_.substr(at_), text); }

  void SkipSpace() { at_ = source_.size() - StripSpaceBefore(source_.substr(at_)).size(); }

  // Remembers whether what was read ends a line, in which case whitespace before the next tag is removed.
  void Read(size_t end) {
    at_ = end;
    starts_line_ = end > 0 && source_[end - 1] == '\n';
  }

  // Skips what the end of a tag removes, which depends on the sign in the tag: all whitespace after '-', nothing after
  // '+', otherwise one line end.
  void SkipAfterTag(char sign) {
    if (sign == '-') {
      SkipSpace();
    } else if (sign != '+' && at_ < source_.size() && source_[at_] == '\n') {
      ++at_;
    }
    Read(at_);
  }

  // Text up to a tag, and the tag.
  absl::Status Root() {
    size_t tag = source_.find('{', at_);
    while (tag != absl::string_view::npos && tag + 1 < source_.size() && source_[tag + 1] != '{' &&
           source_[tag + 1] != '%' && source_[tag + 1] != '#') {
      tag = source_.find('{', tag + 1);
    }
    if (tag == absl::string_view::npos || tag + 1 >= source_.size()) {
      Add(TokenKind::kData, std::string(source_.substr(at_)));
      at_ = source_.size();
      return absl::OkStatus();
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    AddData(source_.substr(at_, tag - at_), sign, kind != '{');
    const bool has_sign = sign == '-' || sign == '+';
    at_ = tag;
    if (kind == '#') return Comment(tag + 2 + (has_sign ? 1 : 0));
    if (kind == '%' && RawBegins(tag + 2 + (has_sign ? 1 : 0))) return Raw();
    Add(kind == '{' ? TokenKind::kOutputBegin : TokenKind::kTagBegin, "");
    Read(tag + 2 + (has_sign ? 1 : 0));
    return Inside(kind == '{');
  }

  // Adds the data before a tag with this sign. `strips`: without a sign, whitespace between the beginning of the line
  // and the tag is removed.
  void AddData(absl::string_view text, char sign, bool strips) {
    if (sign == '-') {
      text = StripSpaceAfter(text);
    } else if (sign != '+' && strips) {
      const size_t line = text.rfind('\n') == absl::string_view::npos ? 0 : text.rfind('\n') + 1;
      if ((line > 0 || starts_line_) && StripSpaceBefore(text.substr(line)).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) Add(TokenKind::kData, std::string(text));
  }

  absl::Status Comment(size_t from) {
    const size_t end = source_.find("#}", from);
    if (end == absl::string_view::npos) return Fail("a comment has no end");
    at_ = end + 2;
    SkipAfterTag(end > from ? source_[end - 1] : ' ');
    return absl::OkStatus();
  }

  // Whether `raw` and the end of its tag are at `from`; if so, advances past them.
  bool RawBegins(size_t from) {
    absl::string_view rest = StripSpaceBefore(source_.substr(from));
    if (!absl::ConsumePrefix(&rest, "raw")) return false;
    rest = StripSpaceBefore(rest);
    const bool strips = absl::ConsumePrefix(&rest, "-");
    if (!absl::ConsumePrefix(&rest, "%}")) return false;
    if (strips) rest = StripSpaceBefore(rest);
    Read(source_.size() - rest.size());
    return true;
  }

  absl::Status Raw() {
    for (size_t tag = source_.find("{%", at_); tag != absl::string_view::npos; tag = source_.find("{%", tag + 1)) {
      absl::string_view rest = source_.substr(tag + 2);
      const char sign = rest.empty() ? ' ' : rest.front();
      if (sign == '-' || sign == '+') rest.remove_prefix(1);
      rest = StripSpaceBefore(rest);
      if (!absl::ConsumePrefix(&rest, "endraw")) continue;
      rest = StripSpaceBefore(rest);
      const char end_sign = rest.empty() ? ' ' : rest.front();
      if (end_sign == '-' || end_sign == '+') rest.remove_prefix(1);
      if (!absl::ConsumePrefix(&rest, "%}")) continue;
      AddData(source_.substr(at_, tag - at_), sign, /*strips=*/true);
      at_ = source_.size() - rest.size();
      SkipAfterTag(end_sign);
      return absl::OkStatus();
    }
    return Fail("{% raw %} has no {% endraw %}");
  }

  // The tokens of an output or a statement, and its end.
  absl::Status Inside(bool is_output) {
    const absl::string_view end = is_output ? "}}" : "%}";
    std::string open;  // the brackets that must be closed
    while (true) {
      SkipSpace();
      if (at_ >= source_.size()) return Fail(absl::StrCat("the template ends here, but '", end, "' is missing"));
      const char sign = source_[at_];
      const bool has_sign = sign == '-' || (sign == '+' && !is_output);
      if (open.empty() && absl::StartsWith(source_.substr(at_ + (has_sign ? 1 : 0)), end)) {
        Add(is_output ? TokenKind::kOutputEnd : TokenKind::kTagEnd, "");
        at_ += 2 + (has_sign ? 1 : 0);
        if (is_output) {
          if (has_sign) SkipSpace();
          Read(at_);
        } else {
          SkipAfterTag(sign);
        }
        return absl::OkStatus();
      }
      RETURN_IF_ERROR(One(open));
    }
  }

  absl::Status One(std::string& open) {
    const char c = source_[at_];
    if (IsDigit(c)) return Number();
    if (c == '\'' || c == '"') return Text(c);
    if (IsNameStart(c)) {
      size_t end = at_;
      while (end < source_.size() && (IsNameStart(source_[end]) || IsDigit(source_[end]))) ++end;
      Add(TokenKind::kName, std::string(source_.substr(at_, end - at_)));
      at_ = end;
      return absl::OkStatus();
    }
    for (const absl::string_view name : kOperators) {
      if (!Sees(name)) continue;
      if (name == "(" || name == "[" || name == "{") open.push_back(name == "(" ? ')' : name == "[" ? ']' : '}');
      if (name == ")" || name == "]" || name == "}") {
        if (open.empty() || open.back() != name[0]) return Fail(absl::StrCat("'", name, "' closes nothing"));
        open.pop_back();
      }
      Add(TokenKind::kOperator, std::string(name));
      at_ += name.size();
      return absl::OkStatus();
    }
    return Fail(absl::StrCat("the character '",
                             EscapeText(source_.substr(at_, utf8::Length(static_cast<unsigned char>(c)))),
                             "' is not expected in a tag"));
  }

  absl::Status Number() {
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && IsDigit(source_[end])) ++end;
    };
    digits();
    bool is_float = false;
    if (!after_dot && end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
      ++end;
      digits();
      is_float = true;
    }
    if (end < source_.size() && IsNameStart(source_[end])) return Fail("this form of a number is not supported");
    if (!is_float && end - at_ > 1 && source_[at_] == '0') return Fail("a number begins with 0");
    Add(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::string(source_.substr(at_, end - at_)));
    at_ = end;
    return absl::OkStatus();
  }

  absl::Status Text(char quote) {
    std::string text;
    size_t i = at_ + 1;
    while (i < source_.size() && source_[i] != quote) {
      if (source_[i] != '\\') {
        text.push_back(source_[i++]);
        continue;
      }
      if (i + 1 >= source_.size()) break;
      if (!Unescape(i, text)) return Fail("an escape in a text is not supported");
    }
    if (i >= source_.size()) return Fail("a text has no end");
    Add(TokenKind::kText, std::move(text));
    at_ = i + 1;
    return absl::OkStatus();
  }

  // Reads the escape at `i`, and advances. As in Python, an unknown one keeps its backslash.
  bool Unescape(size_t& i, std::string& text) {
    constexpr absl::string_view kNames = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char c = source_[i + 1];
    if (const size_t at = kNames.find(c); at != absl::string_view::npos) {
      text.push_back(kMeanings[at]);
      i += 2;
      return true;
    }
    if (c == '\n') return i += 2, true;
    if (c == 'N' || (c >= '0' && c <= '7')) return false;
    const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (count == 0) {
      text.push_back('\\');
      ++i;
      return true;
    }
    uint32_t code = 0;
    for (size_t digit = 0; digit < count; ++digit) {
      const char hex = i + 2 + digit < source_.size() ? source_[i + 2 + digit] : ' ';
      if (!absl::ascii_isxdigit(static_cast<unsigned char>(hex))) return false;
      code = code * 16 + static_cast<uint32_t>(IsDigit(hex)
                                                   ? hex - '0'
                                                   : absl::ascii_tolower(static_cast<unsigned char>(hex)) - 'a' + 10);
    }
    if (code >= 0x110000 || (code >= 0xD800 && code < 0xE000)) return false;
    utf8::Append(code, text);
    i += 2 + count;
    return true;
  }

  const absl::string_view source_;
  size_t at_ = 0, counted_ = 0;
  int line_ = 1;
  bool starts_line_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source) {
  const std::string text = WithoutLastLineEnd(source);
  return Lexer(text).Run();
}

}  // namespace trainyard::templates
