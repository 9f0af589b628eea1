// Reads the characters and single values of a YAML text, from a position that moves forward, and records the first
// problem. Only the parser (yaml_parser.h) uses it, to build maps and lists. Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "common/yaml_parser.h"

namespace trainyard::yaml {

struct Place {
  int line = 0;
  int column = 0;
};

// Methods that find a problem record it, unless one is recorded already, and return false or null.
class Scanner {
 public:
  Scanner(absl::string_view text, ParseError* error) : text_(text), error_(*error) {}

  // Whether the whole text is UTF-8 and contains only characters that YAML allows. Skips a byte order mark.
  bool CheckCharacters();

  // The character `ahead` of the position. The end of the text counts as a line end.
  char Peek(size_t ahead = 0) const { return pos_ + ahead < text_.size() ? text_[pos_ + ahead] : '\n'; }
  bool AtEnd() const { return pos_ >= text_.size(); }
  static bool IsBreak(char c) { return c == '\n' || c == '\r'; }
  static bool IsBlank(char c) { return IsBreak(c) || c == ' ' || c == '\t'; }
  static bool IsFlow(char c) { return c == ',' || c == '[' || c == ']' || c == '{' || c == '}'; }
  bool AtComment() const { return Peek() == '#' && (pos_ == line_start_ || text_[pos_ - 1] == ' '); }
  bool AtDash() const { return Peek() == '-' && IsBlank(Peek(1)); }
  bool AtColon() const { return Peek() == ':' && IsBlank(Peek(1)); }  // one that ends a key
  // Whether `---` or `...` is here, which begin and end documents.
  bool AtMarker(absl::string_view marker) const;
  bool AtMarker() const { return !AtEnd() && (AtMarker("---") || AtMarker("...")); }
  // Whether an unquoted value may begin here.
  bool BeginsPlain() const;

  size_t Indent() const { return pos_ - line_start_; }
  Place Here() const;
  // What is here, for an error message: "'ranks: 2'", "the end of the line".
  std::string FoundText() const;

  void Skip(size_t count = 1) { pos_ += count; }
  void SkipSpaces();
  // Skips spaces, comments and line ends.
  bool SkipBlanks();
  // Checks that only a comment follows on this line. `what` has just been read.
  bool EndOfLine(absl::string_view what);
  size_t position() const { return pos_; }
  // Returns to a position on the same line.
  void ReturnTo(size_t position) { pos_ = position; }

  // Reads a quoted or unquoted value. `in_flow`: in brackets, where commas and brackets end it.
  std::shared_ptr<Node> Scalar(bool in_flow);
  // Reads the name after `&` or `*`.
  std::string Name();

  // Record a problem and return null.
  std::nullptr_t RefuseAt(Place place, absl::string_view text);
  std::nullptr_t Refuse(absl::string_view text);
  bool failed() const { return !error_.text.empty(); }

  // Makes an empty node that begins here.
  std::shared_ptr<Node> NewNode(Node::Kind kind) const;

 private:
  void SkipLine();
  std::shared_ptr<Node> SingleQuoted();
  std::shared_ptr<Node> DoubleQuoted();
  bool Escape(std::string* text);
  std::nullptr_t RefuseQuote(Place open);

  const absl::string_view text_;
  ParseError& error_;
  size_t pos_ = 0;
  size_t line_start_ = 0;
  int line_ = 1;
  // The column of a position on this line, cached so that a long line is not counted again for each value.
  mutable size_t counted_ = 0;  // the position
  mutable int column_ = 1;      // its column
};

}  // namespace trainyard::yaml
