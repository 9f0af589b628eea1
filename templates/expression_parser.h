// Parses the expressions of a template, with the precedence of jinja2 (filters and tests bind more tightly than
// operators). Every filter, test and method must be one of names.h. Not thread-safe.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "templates/lexer.h"
#include "templates/syntax.h"

namespace trainyard::templates {

// The tokens of a template, and the position in them.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  void Skip() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool SkipIfOperator(absl::string_view name);
  bool SkipIfName(absl::string_view name);

  // InvalidArgument with the line of the current token.
  absl::Status Fail(absl::string_view reason) const;
  // Fails with what was expected and found.
  absl::Status FailExpected(absl::string_view expected) const;
  absl::Status ExpectOperator(absl::string_view name);
  absl::StatusOr<std::string> ExpectName();

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  // An expression, or several with commas: a tuple. `with_choice`: may be "a if b else c".
  absl::StatusOr<ExpressionPtr> ParseTuple(bool with_choice = true, bool in_brackets = false);
  absl::StatusOr<ExpressionPtr> Parse(bool with_choice = true);
  // The filters of a block: "name(...) | ...", applied to its text.
  absl::StatusOr<ExpressionPtr> ParseBlockFilter();

  // The names in the expressions that were parsed so far, and how often each occurs.
  const std::map<std::string, int>& names_read() const { return names_read_; }
  // The names of the functions that these expressions call, each with the line of a call.
  const std::map<std::string, int>& functions_called() const { return functions_called_; }
  // The number of `safe` filters in these expressions.
  int num_safe() const { return num_safe_; }

 private:
  using Node = std::unique_ptr<Expression>;
  using Rule = absl::StatusOr<Node> (ExpressionParser::*)();

  absl::StatusOr<Node> Choice(bool with_choice);
  absl::StatusOr<Node> Chain(ExpressionKind kind, absl::string_view word, Rule operand);
  absl::StatusOr<Node> Or();
  absl::StatusOr<Node> And();
  absl::StatusOr<Node> Not();
  absl::StatusOr<Node> Compare();
  absl::StatusOr<Node> Sum();
  absl::StatusOr<Node> Concat();
  absl::StatusOr<Node> Product();
  absl::StatusOr<Node> Power();
  absl::StatusOr<Node> Filtered();
  absl::StatusOr<Node> Unary();
  absl::StatusOr<Node> Primary();
  absl::StatusOr<Node> Postfix(Node node);
  absl::StatusOr<Node> Subscript(Node node);
  absl::StatusOr<Node> Call(Node node);
  absl::StatusOr<Node> Filter(Node node);
  absl::StatusOr<Node> Test(Node node);
  absl::StatusOr<Node> List(absl::string_view end, ExpressionKind kind);
  absl::Status Arguments(Expression& node);
  absl::StatusOr<Node> Binary(Rule operand, std::initializer_list<std::pair<absl::string_view, Operation>> operations);
  absl::StatusOr<Node> Constant();
  bool AtTupleEnd() const;
  absl::Status CheckDepth();
  Node Make(ExpressionKind kind) const;

  TokenStream& tokens_;
  int depth_ = 0;
  int num_safe_ = 0;
  std::map<std::string, int> names_read_, functions_called_;
};

}  // namespace trainyard::templates
