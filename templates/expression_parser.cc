#include "templates/expression_parser.h"

#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/escape.h"
#include "common/status_macros.h"
#include "templates/names.h"

namespace trainyard::templates {
namespace {

// Each level of brackets uses up to twenty frames of the stack.
constexpr int kExpressionDepthMax = 32;
constexpr size_t kTokenShown = 40;
// Limits chains such as `a + b + c`, `a | b | c` and `a.b.c`: they need no nested brackets, so kExpressionDepthMax does
// not limit them, but a chain becomes a tree as deep as the chain is long.
constexpr int kChainMax = 100;

std::string Described(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kOutputEnd:
      return "'}}'";
    case TokenKind::kTagEnd:
      return "'%}'";
    case TokenKind::kData:
      return "text";
    default:
      return absl::StrCat("'", EscapeText(absl::string_view(token.text).substr(0, kTokenShown)), "'");
  }
}

std::optional<Operation> ComparisonOf(const Token& token) {
  static constexpr std::pair<absl::string_view, Operation> kComparisons[] = {
      {"==", Operation::kEqual},       {"!=", Operation::kNotEqual}, {"<", Operation::kLess},
      {"<=", Operation::kLessOrEqual}, {">", Operation::kGreater},   {">=", Operation::kGreaterOrEqual}};
  for (const auto& [text, operation] : kComparisons) {
    if (token.is_operator(text)) return operation;
  }
  return std::nullopt;
}

}  // namespace

bool TokenStream::SkipIfOperator(absl::string_view name) {
  if (!current().is_operator(name)) return false;
  Skip();
  return true;
}

bool TokenStream::SkipIfName(absl::string_view name) {
  if (!current().is_name(name)) return false;
  Skip();
  return true;
}

absl::Status TokenStream::Fail(absl::string_view reason) const {
  return absl::InvalidArgumentError(absl::StrCat("line ", current().line, ": ", reason));
}

absl::Status TokenStream::FailExpected(absl::string_view expected) const {
  return Fail(absl::StrCat("expected ", expected, ", found ", Described(current())));
}

absl::Status TokenStream::ExpectOperator(absl::string_view name) {
  return SkipIfOperator(name) ? absl::OkStatus() : FailExpected(absl::StrCat("'", name, "'"));
}

absl::StatusOr<std::string> TokenStream::ExpectName() {
  if (current().kind != TokenKind::kName) return FailExpected("a name");
  std::string name = current().text;
  Skip();
  return name;
}

ExpressionParser::Node ExpressionParser::Make(ExpressionKind kind) const {
  return std::make_unique<Expression>(Expression{.kind = kind, .line = tokens_.current().line});
}

bool ExpressionParser::AtTupleEnd() const {
  const Token& token = tokens_.current();
  return token.kind == TokenKind::kOutputEnd || token.kind == TokenKind::kTagEnd || token.is_operator(")");
}

absl::StatusOr<ExpressionPtr> ExpressionParser::Parse(bool with_choice) {
  ASSIGN_OR_RETURN(Node node, Choice(with_choice));
  return ExpressionPtr(std::move(node));
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseTuple(bool with_choice, bool in_brackets) {
  Node tuple = Make(ExpressionKind::kTuple);
  bool has_comma = false;
  while (!AtTupleEnd()) {
    ASSIGN_OR_RETURN(Node node, Choice(with_choice));
    tuple->parts.push_back(std::move(node));
    if (!tokens_.SkipIfOperator(",")) break;
    has_comma = true;
  }
  if (has_comma || (in_brackets && tuple->parts.empty())) return ExpressionPtr(std::move(tuple));
  if (tuple->parts.empty()) return tokens_.FailExpected("an expression");
  return std::move(tuple->parts[0]);
}

absl::StatusOr<ExpressionPtr> ExpressionParser::ParseBlockFilter() {
  Node node;
  do {
    ASSIGN_OR_RETURN(node, Filter(std::move(node)));
  } while (tokens_.SkipIfOperator("|"));
  return ExpressionPtr(std::move(node));
}

absl::Status ExpressionParser::CheckDepth() {
  if (depth_ < kExpressionDepthMax) return absl::OkStatus();
  return tokens_.Fail(absl::StrCat("brackets and signs are nested more than ", kExpressionDepthMax, " deep"));
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Choice(bool with_choice) {
  RETURN_IF_ERROR(CheckDepth());
  ++depth_;
  const absl::Cleanup leave = [this] { --depth_; };
  if (!with_choice) return Or();
  ASSIGN_OR_RETURN(Node node, Or());
  for (int count = 0; tokens_.current().is_name("if"); ++count) {
    if (count >= kChainMax) return tokens_.Fail("an expression is too long");
    Node choice = Make(ExpressionKind::kChoice);
    tokens_.Skip();
    ASSIGN_OR_RETURN(Node condition, Or());
    choice->parts.push_back(std::move(condition));
    choice->parts.push_back(std::move(node));
    Node otherwise;
    if (tokens_.SkipIfName("else")) {
      ASSIGN_OR_RETURN(otherwise, Choice(true));
    }
    choice->parts.push_back(std::move(otherwise));
    node = std::move(choice);
  }
  return node;
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Chain(ExpressionKind kind, absl::string_view word,
                                                               Rule operand) {
  ASSIGN_OR_RETURN(Node node, (this->*operand)());
  for (int count = 0; tokens_.current().is_name(word); ++count) {
    if (count >= kChainMax) return tokens_.Fail("an expression is too long");
    Node both = Make(kind);
    tokens_.Skip();
    both->parts.push_back(std::move(node));
    ASSIGN_OR_RETURN(Node right, (this->*operand)());
    both->parts.push_back(std::move(right));
    node = std::move(both);
  }
  return node;
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Or() {
  return Chain(ExpressionKind::kOr, "or", &ExpressionParser::And);
}
absl::StatusOr<ExpressionParser::Node> ExpressionParser::And() {
  return Chain(ExpressionKind::kAnd, "and", &ExpressionParser::Not);
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Not() {
  int count = 0;
  Node outer = Make(ExpressionKind::kNot);
  while (tokens_.SkipIfName("not")) ++count;
  ASSIGN_OR_RETURN(Node node, Compare());
  // A double negation only turns the value into true or false, so one or two nodes replace any number of `not`.
  for (int i = 0; i < (count == 0 ? 0 : 2 - count % 2); ++i) {
    Node negated = Make(ExpressionKind::kNot);
    negated->line = outer->line;
    negated->parts.push_back(std::move(node));
    node = std::move(negated);
  }
  return node;
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Compare() {
  Node compare = Make(ExpressionKind::kCompare);
  ASSIGN_OR_RETURN(Node first, Sum());
  compare->parts.push_back(std::move(first));
  while (true) {
    std::optional<Operation> operation = ComparisonOf(tokens_.current());
    if (!operation && tokens_.current().is_name("in")) operation = Operation::kIn;
    if (!operation && tokens_.current().is_name("not") && tokens_.next().is_name("in")) {
      tokens_.Skip();
      operation = Operation::kNotIn;
    }
    if (!operation) break;
    tokens_.Skip();
    compare->operations.push_back(*operation);
    ASSIGN_OR_RETURN(Node operand, Sum());
    compare->parts.push_back(std::move(operand));
  }
  if (!compare->operations.empty()) return compare;
  // Parts are pointers to const. This one was made as a non-const node, and nothing else owns it.
  return Node(const_cast<Expression*>(compare->parts[0].release()));
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Binary(
    Rule operand, std::initializer_list<std::pair<absl::string_view, Operation>> operations) {
  ASSIGN_OR_RETURN(Node node, (this->*operand)());
  for (int count = 0;; ++count) {
    const auto* found = operations.begin();
    while (found != operations.end() && !tokens_.current().is_operator(found->first)) ++found;
    if (found == operations.end()) return node;
    if (count >= kChainMax) return tokens_.Fail("an expression is too long");
    Node both = Make(ExpressionKind::kBinary);
    tokens_.Skip();
    both->operations.push_back(found->second);
    both->parts.push_back(std::move(node));
    ASSIGN_OR_RETURN(Node right, (this->*operand)());
    both->parts.push_back(std::move(right));
    node = std::move(both);
  }
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Sum() {
  return Binary(&ExpressionParser::Concat, {{"+", Operation::kAdd}, {"-", Operation::kSubtract}});
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Concat() {
  ASSIGN_OR_RETURN(Node first, Product());
  if (!tokens_.current().is_operator("~")) return first;
  Node concat = Make(ExpressionKind::kConcat);
  concat->parts.push_back(std::move(first));
  while (tokens_.SkipIfOperator("~")) {
    ASSIGN_OR_RETURN(Node part, Product());
    concat->parts.push_back(std::move(part));
  }
  return concat;
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Product() {
  return Binary(&ExpressionParser::Power, {{"*", Operation::kMultiply},
                                           {"/", Operation::kDivide},
                                           {"//", Operation::kFloorDivide},
                                           {"%", Operation::kRemainder}});
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Power() {
  return Binary(&ExpressionParser::Filtered, {{"**", Operation::kPower}});
}

// An operand with its filters and tests.
absl::StatusOr<ExpressionParser::Node> ExpressionParser::Filtered() {
  ASSIGN_OR_RETURN(Node node, Unary());
  for (int count = 0; count < kChainMax; ++count) {
    if (tokens_.SkipIfOperator("|")) {
      ASSIGN_OR_RETURN(node, Filter(std::move(node)));
    } else if (tokens_.current().is_name("is")) {
      ASSIGN_OR_RETURN(node, Test(std::move(node)));
    } else if (tokens_.current().is_operator("(")) {
      ASSIGN_OR_RETURN(node, Call(std::move(node)));
    } else {
      return node;
    }
  }
  return tokens_.Fail("an expression is too long");
}

// An operand without filters: as in jinja2, a sign binds more tightly than a filter.
absl::StatusOr<ExpressionParser::Node> ExpressionParser::Unary() {
  const bool negative = tokens_.current().is_operator("-");
  if (!negative && !tokens_.current().is_operator("+")) {
    ASSIGN_OR_RETURN(Node node, Primary());
    return Postfix(std::move(node));
  }
  RETURN_IF_ERROR(CheckDepth());
  ++depth_;
  const absl::Cleanup leave = [this] { --depth_; };
  Node sign = Make(negative ? ExpressionKind::kNegative : ExpressionKind::kPositive);
  tokens_.Skip();
  ASSIGN_OR_RETURN(Node node, Unary());
  sign->parts.push_back(std::move(node));
  return Postfix(std::move(sign));
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Primary() {
  const Token& token = tokens_.current();
  switch (token.kind) {
    case TokenKind::kName: {
      const std::string name = token.text;
      if (name == "true" || name == "True" || name == "false" || name == "False" || name == "none" || name == "None") {
        Node node = Make(ExpressionKind::kConstant);
        const bool is_none = name == "none" || name == "None";
        node->value = is_none ? Value::None() : Value::Bool(name == "true" || name == "True");
        tokens_.Skip();
        return node;
      }
      if (IsUnsupportedGlobal(name)) return tokens_.Fail(absl::StrCat("the name '", name, "' is not supported"));
      Node node = Make(ExpressionKind::kName);
      node->name = name;
      ++names_read_[name];
      tokens_.Skip();
      return node;
    }
    case TokenKind::kText:
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return Constant();
    default:
      break;
  }
  if (tokens_.current().is_operator("[")) return List("]", ExpressionKind::kList);
  if (tokens_.current().is_operator("{")) return List("}", ExpressionKind::kDict);
  if (!tokens_.SkipIfOperator("(")) return tokens_.FailExpected("an expression");
  ASSIGN_OR_RETURN(ExpressionPtr inner, ParseTuple(/*with_choice=*/true, /*in_brackets=*/true));
  RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
  return Node(const_cast<Expression*>(inner.release()));
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Constant() {
  Node node = Make(ExpressionKind::kConstant);
  const Token token = tokens_.current();
  tokens_.Skip();
  if (token.kind == TokenKind::kText) {
    std::string text = token.text;  // texts next to each other are one text
    for (; tokens_.current().kind == TokenKind::kText; tokens_.Skip()) text += tokens_.current().text;
    node->value = Value::Text(std::move(text));
    return node;
  }
  int64_t integer = 0;
  double number = 0;
  if (token.kind == TokenKind::kInteger && absl::SimpleAtoi(token.text, &integer)) {
    node->value = Value::Integer(integer);
  } else if (token.kind == TokenKind::kFloat && absl::SimpleAtod(token.text, &number)) {
    node->value = Value::Float(number);
  } else {
    return tokens_.Fail(absl::StrCat("the number ", token.text.substr(0, kTokenShown), " is too large"));
  }
  return node;
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::List(absl::string_view end, ExpressionKind kind) {
  Node node = Make(kind);
  tokens_.Skip();
  while (!tokens_.current().is_operator(end)) {
    ASSIGN_OR_RETURN(Node item, Choice(true));
    node->parts.push_back(std::move(item));
    if (kind == ExpressionKind::kDict) {
      RETURN_IF_ERROR(tokens_.ExpectOperator(":"));
      ASSIGN_OR_RETURN(Node value, Choice(true));
      node->parts.push_back(std::move(value));
    }
    if (!tokens_.SkipIfOperator(",")) break;
  }
  RETURN_IF_ERROR(tokens_.ExpectOperator(end));
  return node;
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Postfix(Node node) {
  for (int count = 0; count < kChainMax; ++count) {
    if (tokens_.current().is_operator(".") || tokens_.current().is_operator("[")) {
      ASSIGN_OR_RETURN(node, Subscript(std::move(node)));
    } else if (tokens_.current().is_operator("(")) {
      ASSIGN_OR_RETURN(node, Call(std::move(node)));
    } else {
      return node;
    }
  }
  return tokens_.Fail("an expression is too long");
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Subscript(Node node) {
  if (tokens_.current().is_operator(".")) {
    const bool is_number = tokens_.next().kind == TokenKind::kInteger;
    Node made = Make(is_number ? ExpressionKind::kItem : ExpressionKind::kAttribute);
    tokens_.Skip();
    made->parts.push_back(std::move(node));
    if (is_number) {
      ASSIGN_OR_RETURN(Node number, Constant());
      made->parts.push_back(std::move(number));
    } else {
      ASSIGN_OR_RETURN(made->name, tokens_.ExpectName());
    }
    return made;
  }
  Node made = Make(ExpressionKind::kItem);
  tokens_.Skip();
  made->parts.push_back(std::move(node));
  const auto at_end = [this] { return tokens_.current().is_operator("]") || tokens_.current().is_operator(":"); };
  Node part;
  if (!at_end()) {
    ASSIGN_OR_RETURN(part, Choice(true));
  } else if (tokens_.current().is_operator("]")) {
    return tokens_.FailExpected("an index");
  }
  made->parts.push_back(std::move(part));
  while (made->parts.size() < 4 && tokens_.SkipIfOperator(":")) {
    made->kind = ExpressionKind::kSlice;
    Node bound;
    if (!at_end()) {
      ASSIGN_OR_RETURN(bound, Choice(true));
    }
    made->parts.push_back(std::move(bound));
  }
  if (made->kind == ExpressionKind::kSlice) made->parts.resize(4);
  RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  return made;
}

absl::Status ExpressionParser::Arguments(Expression& node) {
  RETURN_IF_ERROR(tokens_.ExpectOperator("("));
  while (!tokens_.current().is_operator(")")) {
    if (tokens_.current().is_operator("*") || tokens_.current().is_operator("**")) {
      return tokens_.Fail("arguments from a list or a dictionary (* and **) are not supported");
    }
    if (tokens_.current().kind == TokenKind::kName && tokens_.next().is_operator("=")) {
      const std::string name = tokens_.current().text;
      for (const auto& [other, ignored] : node.named) {
        if (other == name) return tokens_.Fail(absl::StrCat("the argument '", name, "' is given twice"));
      }
      tokens_.Skip();
      tokens_.Skip();
      ASSIGN_OR_RETURN(Node value, Choice(true));
      node.named.emplace_back(name, std::move(value));
    } else {
      if (!node.named.empty()) return tokens_.Fail("an argument without a name follows one with a name");
      ASSIGN_OR_RETURN(Node value, Choice(true));
      node.arguments.push_back(std::move(value));
    }
    if (!tokens_.SkipIfOperator(",")) break;
  }
  return tokens_.ExpectOperator(")");
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Call(Node node) {
  Node call = Make(ExpressionKind::kCall);
  if (node->kind == ExpressionKind::kAttribute && !IsMethod(node->name)) {
    return tokens_.Fail(
        absl::StrCat("the method '", node->name, "' is not supported; supported are ", ListOfMethods()));
  }
  if (node->kind == ExpressionKind::kName) functions_called_.emplace(node->name, node->line);
  call->parts.push_back(std::move(node));
  RETURN_IF_ERROR(Arguments(*call));
  return call;
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Filter(Node node) {
  Node filter = Make(ExpressionKind::kFilter);
  ASSIGN_OR_RETURN(filter->name, tokens_.ExpectName());
  if (!IsFilter(filter->name)) {
    return tokens_.Fail(
        absl::StrCat("the filter '", filter->name, "' is not supported; supported are ", ListOfFilters()));
  }
  if (filter->name == "safe") ++num_safe_;
  filter->parts.push_back(std::move(node));
  if (tokens_.current().is_operator("(")) {
    RETURN_IF_ERROR(Arguments(*filter));
  }
  return filter;
}

absl::StatusOr<ExpressionParser::Node> ExpressionParser::Test(Node node) {
  Node test = Make(ExpressionKind::kTest);
  tokens_.Skip();
  const bool negated = tokens_.SkipIfName("not");
  ASSIGN_OR_RETURN(test->name, tokens_.ExpectName());
  if (!IsTest(test->name)) {
    return tokens_.Fail(absl::StrCat("the test '", test->name, "' is not supported; supported are ", ListOfTests()));
  }
  test->parts.push_back(std::move(node));
  const Token& token = tokens_.current();
  const bool has_operand =
      token.kind == TokenKind::kText || token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat ||
      token.is_operator("[") || token.is_operator("{") ||
      (token.kind == TokenKind::kName && token.text != "else" && token.text != "or" && token.text != "and");
  if (token.is_operator("(")) {
    RETURN_IF_ERROR(Arguments(*test));
  } else if (has_operand) {
    if (token.is_name("is") || token.is_name("if") || token.is_name("in") || token.is_name("not")) {
      return tokens_.Fail(absl::StrCat("'", token.text, "' after a test is not supported; use brackets"));
    }
    ASSIGN_OR_RETURN(Node operand, Primary());
    ASSIGN_OR_RETURN(operand, Postfix(std::move(operand)));
    test->arguments.push_back(std::move(operand));
  }
  if (!negated) return test;
  Node negation = Make(ExpressionKind::kNot);
  negation->parts.push_back(std::move(test));
  return negation;
}

}  // namespace trainyard::templates
