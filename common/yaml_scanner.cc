#include "common/yaml_scanner.h"

#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/plain_text.h"

namespace trainyard::yaml {
namespace {

constexpr char kTab[] = "holds a tab; YAML is indented and separated by spaces";

bool IsUtf8Continuation(char c) { return (static_cast<uint8_t>(c) & 0xC0) == 0x80; }

}  // namespace

bool Scanner::CheckCharacters() {
  Place at{1, 1};
  for (size_t i = 0; i < text_.size();) {
    const Character c = DecodeUtf8(text_.substr(i));
    const bool line_end = c.code == '\r' && i + 1 < text_.size() && text_[i + 1] == '\n';
    if (c.length == 0) return RefuseAt(at, "is not UTF-8 text") != nullptr;
    if (IsControl(c.code) && c.code != '\n' && c.code != '\t' && !line_end) {
      return RefuseAt(at, absl::StrCat("holds the control character ", c.code, ", which YAML does not allow")) !=
             nullptr;
    }
    if (c.code == 0xFFFE || c.code == 0xFFFF || (c.code == 0xFEFF && i > 0)) {
      return RefuseAt(at, "holds a byte order mark, which belongs at the beginning of a file") != nullptr;
    }
    if (c.code == 0xFEFF) line_start_ = pos_ = counted_ = c.length;
    i += c.length;
    ++at.column;
    if (c.code == '\n') at = {at.line + 1, 1};
  }
  return true;
}

bool Scanner::AtMarker(absl::string_view marker) const {
  return Indent() == 0 && absl::StartsWith(text_.substr(pos_), marker) && IsBlank(Peek(marker.size()));
}

bool Scanner::BeginsPlain() const {
  const char c = Peek();
  return !IsBlank(c) && !absl::StrContains("?:,[]{}#&*!|>'\"%@`", absl::string_view(&c, 1)) && !AtDash();
}

Place Scanner::Here() const {
  if (counted_ < line_start_ || counted_ > pos_) {
    counted_ = line_start_;
    column_ = 1;
  }
  for (; counted_ < pos_ && counted_ < text_.size(); ++counted_) column_ += IsUtf8Continuation(text_[counted_]) ? 0 : 1;
  return {line_, column_};
}

std::string Scanner::FoundText() const {
  if (AtEnd()) return "the end of the file";
  size_t length = 0;
  while (length < 20 && !IsBreak(Peek(length))) ++length;
  if (length == 0) return "the end of the line";
  while (pos_ + length < text_.size() && IsUtf8Continuation(text_[pos_ + length])) ++length;
  return absl::StrCat("'", absl::StripTrailingAsciiWhitespace(text_.substr(pos_, length)), "'");
}

void Scanner::SkipSpaces() {
  while (Peek() == ' ') ++pos_;
}

void Scanner::SkipLine() {
  while (!AtEnd() && text_[pos_] != '\n') ++pos_;
  if (AtEnd()) return;
  line_start_ = ++pos_;
  ++line_;
}

bool Scanner::SkipBlanks() {
  while (true) {
    SkipSpaces();
    if (AtEnd()) return true;
    if (Peek() == '\t') return Refuse(kTab) != nullptr;
    if (!IsBreak(Peek()) && !AtComment()) return true;
    SkipLine();
  }
}

bool Scanner::EndOfLine(absl::string_view what) {
  SkipSpaces();
  if (IsBreak(Peek()) || AtComment()) return true;
  if (AtColon())
    return Refuse("there is a second ': ' on this line; put the value in quotes if it is a string") != nullptr;
  return Refuse(absl::StrCat("expected the end of the line after ", what, ", found ", FoundText())) != nullptr;
}

std::shared_ptr<Node> Scanner::Scalar(bool in_flow) {
  if (Peek() == '"') return DoubleQuoted();
  if (Peek() == '\'') return SingleQuoted();
  if (!BeginsPlain()) {
    return Refuse(absl::StrCat("a value cannot begin with ", FoundText(), "; put it in quotes if it is a string"));
  }
  std::shared_ptr<Node> node = NewNode(Node::Kind::kScalar);
  const size_t begin = pos_;
  size_t end = pos_;
  for (; !IsBreak(Peek()); ++pos_) {
    const char c = Peek();
    if (c == '\t') return Refuse(kTab);
    if (AtComment() || AtColon() || (in_flow && (IsFlow(c) || (c == ':' && IsFlow(Peek(1)))))) break;
    if (in_flow && c == '?') return Refuse("a '?' within brackets is not supported; put the value in quotes");
    if (c != ' ') end = pos_ + 1;
  }
  pos_ = end;
  node->text = std::string(text_.substr(begin, end - begin));
  return node;
}

std::shared_ptr<Node> Scanner::SingleQuoted() {
  std::shared_ptr<Node> node = NewNode(Node::Kind::kScalar);
  const Place open = Here();
  node->quoted = true;
  for (++pos_;; ++pos_) {
    if (IsBreak(Peek())) return RefuseQuote(open);
    if (Peek() == '\t') return Refuse(kTab);
    if (Peek() == '\'') {
      if (Peek(1) != '\'') break;
      ++pos_;
    }
    node->text += Peek();
  }
  ++pos_;
  return node;
}

std::shared_ptr<Node> Scanner::DoubleQuoted() {
  std::shared_ptr<Node> node = NewNode(Node::Kind::kScalar);
  const Place open = Here();
  node->quoted = true;
  for (++pos_; Peek() != '"'; ++pos_) {
    if (IsBreak(Peek()) || (Peek() == '\\' && IsBreak(Peek(1)))) return RefuseQuote(open);
    if (Peek() == '\t') return Refuse(kTab);
    if (Peek() != '\\') {
      node->text += Peek();
    } else if (!Escape(&node->text)) {
      return nullptr;
    }
  }
  ++pos_;
  return node;
}

// Reads an escape sequence, from the backslash to its last character.
bool Scanner::Escape(std::string* text) {
  constexpr absl::string_view kNames = "0abtnvfre\"\\/ ";
  constexpr absl::string_view kMeanings("\0\a\b\t\n\v\f\r\x1b\"\\/ ", 13);
  const char c = Peek(1);
  if (const size_t found = kNames.find(c); found != absl::string_view::npos) {
    *text += kMeanings[found];
    ++pos_;
    return true;
  }
  const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  uint32_t code = 0;
  bool is_valid = digits > 0;
  for (size_t i = 0; is_valid && i < digits; ++i) {
    const char digit = Peek(2 + i);
    is_valid = absl::ascii_isxdigit(static_cast<unsigned char>(digit));
    const int value = absl::ascii_isdigit(static_cast<unsigned char>(digit))
                          ? digit - '0'
                          : absl::ascii_tolower(static_cast<unsigned char>(digit)) - 'a' + 10;
    if (is_valid) code = code << 4 | static_cast<uint32_t>(value);
  }
  if (!is_valid || !AppendUtf8(code, text)) {
    return Refuse(
               "a backslash in double quotes begins an escape sequence, but this one is not valid; write \\\\ for a "
               "backslash, or use "
               "single quotes") != nullptr;
  }
  pos_ += 1 + digits;
  return true;
}

std::string Scanner::Name() {
  std::string name;
  for (++pos_; absl::ascii_isalnum(static_cast<unsigned char>(Peek())) || Peek() == '-' || Peek() == '_'; ++pos_) {
    name += Peek();
  }
  return name;
}

std::nullptr_t Scanner::RefuseAt(Place place, absl::string_view text) {
  if (error_.text.empty()) error_ = {place.line, place.column, std::string(text)};
  return nullptr;
}

std::nullptr_t Scanner::Refuse(absl::string_view text) { return RefuseAt(Here(), Peek() == '\t' ? kTab : text); }

std::nullptr_t Scanner::RefuseQuote(Place open) {
  return RefuseAt(open, "a quote that opens here is not closed on this line; a value cannot continue on the next line");
}

std::shared_ptr<Node> Scanner::NewNode(Node::Kind kind) const {
  auto node = std::make_shared<Node>();
  const Place place = Here();
  node->kind = kind;
  node->line = place.line;
  node->column = place.column;
  return node;
}

}  // namespace trainyard::yaml
