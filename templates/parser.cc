#include "templates/parser.h"

#include <algorithm>
#include <initializer_list>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "templates/expression_parser.h"

namespace trainyard::templates {
namespace {

constexpr int kStatementDepthMax = 50;
constexpr absl::string_view kFunctions[] = {"range", "namespace", "raise_exception", "strftime_now"};

using StatementPtr = std::unique_ptr<Statement>;
using Words = std::initializer_list<absl::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)), expressions_(tokens_) {}

  absl::StatusOr<ParsedTemplate> Run() {
    ParsedTemplate parsed;
    ASSIGN_OR_RETURN(parsed.body, ParseBody({}));
    parsed.has_generation = has_generation_;
    for (const auto& [name, count] : expressions_.names_read()) parsed.reads.insert(name);
    RETURN_IF_ERROR(CheckFunctions());
    return parsed;
  }

 private:
  absl::Status CheckFunctions() const {
    for (const auto& [name, line] : expressions_.functions_called()) {
      const bool is_known = std::find(std::begin(kFunctions), std::end(kFunctions), name) != std::end(kFunctions);
      if (is_known || assigned_.contains(name)) continue;
      return absl::InvalidArgumentError(absl::StrCat("line ", line, ": the function '", name,
                                                     "' is not supported; supported are ",
                                                     absl::StrJoin(kFunctions, ", "), " and macros of the template"));
    }
    return absl::OkStatus();
  }

  // Where a statement is, which decides what may be in it.
  struct Place {
    bool in_loop = false;     // a loop of the same macro or block is around it
    bool in_capture = false;  // its text is not written to the output at once
  };

  absl::StatusOr<Body> ParseBody(Words ends) {
    Body body;
    while (true) {
      const Token token = tokens_.current();
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() == 0) return body;
        return tokens_.FailExpected(absl::StrCat("{% ", *(ends.end() - 1), " %}"));
      }
      if (token.kind == TokenKind::kData) {
        body.push_back(std::make_unique<Statement>(
            Statement{.kind = StatementKind::kData, .line = token.line, .text = token.text}));
        tokens_.Skip();
        continue;
      }
      tokens_.Skip();
      if (token.kind == TokenKind::kOutputBegin) {
        ASSIGN_OR_RETURN(StatementPtr output, Output(token.line));
        body.push_back(std::move(output));
        continue;
      }
      const Token& name = tokens_.current();
      if (std::any_of(ends.begin(), ends.end(), [&name](absl::string_view end) { return name.is_name(end); })) {
        return body;
      }
      ASSIGN_OR_RETURN(StatementPtr statement, ParseStatement());
      body.push_back(std::move(statement));
      if (tokens_.current().kind != TokenKind::kTagEnd) return tokens_.FailExpected("'%}'");
      tokens_.Skip();
    }
  }

  // The body of a statement, up to the name of the tag that ends it, which becomes the current token.
  absl::StatusOr<Body> Inner(Words ends) {
    if (depth_ >= kStatementDepthMax) {
      return tokens_.Fail(absl::StrCat("statements are nested more than ", kStatementDepthMax, " deep"));
    }
    tokens_.SkipIfOperator(":");
    if (tokens_.current().kind != TokenKind::kTagEnd) return tokens_.FailExpected("'%}'");
    tokens_.Skip();
    ++depth_;
    const absl::Cleanup leave = [this] { --depth_; };
    return ParseBody(ends);
  }

  absl::StatusOr<Body> InnerAt(Place place, absl::string_view end) {
    const Place outer = std::exchange(place_, place);
    absl::StatusOr<Body> body = Inner({end});
    place_ = outer;
    if (body.ok()) tokens_.Skip();
    return body;
  }

  absl::StatusOr<StatementPtr> Output(int line) {
    auto output = std::make_unique<Statement>(Statement{.kind = StatementKind::kOutput, .line = line});
    const int safe_before = expressions_.num_safe();
    ASSIGN_OR_RETURN(ExpressionPtr value, expressions_.ParseTuple());
    const bool ends_safe = value->kind == ExpressionKind::kFilter && value->name == "safe";
    // `safe` as the last filter is allowed, because only operations on its result would differ from those of jinja2.
    RETURN_IF_ERROR(CheckSafe(safe_before + (ends_safe ? 1 : 0)));
    output->expressions.push_back(std::move(value));
    if (tokens_.current().kind != TokenKind::kOutputEnd) return tokens_.FailExpected("'}}'");
    tokens_.Skip();
    return output;
  }

  absl::Status CheckSafe(int allowed) const {
    if (expressions_.num_safe() <= allowed) return absl::OkStatus();
    return tokens_.Fail("the filter 'safe' is supported only as the last one of an output");
  }

  absl::StatusOr<StatementPtr> ParseStatement() {
    const int line = tokens_.current().line;
    ASSIGN_OR_RETURN(const std::string name, tokens_.ExpectName());
    auto statement = std::make_unique<Statement>(Statement{.kind = StatementKind::kIf, .line = line});
    RETURN_IF_ERROR(ParseNamed(name, *statement));
    return statement;
  }

  absl::Status ParseNamed(const std::string& name, Statement& statement) {
    if (name == "if") return If(statement);
    if (name == "for") return For(statement);
    if (name == "set") return Set(statement);
    if (name == "macro") return ParseMacro(statement);
    if (name == "with") return With(statement);
    if (name == "generation") return Generation(statement);
    if (name == "filter") {
      statement.kind = StatementKind::kFilterBlock;
      ASSIGN_OR_RETURN(ExpressionPtr filter, BlockFilter());
      statement.expressions.push_back(std::move(filter));
      ASSIGN_OR_RETURN(statement.body, InnerAt({.in_capture = true}, "endfilter"));
      return absl::OkStatus();
    }
    if (name == "break" || name == "continue") {
      if (!place_.in_loop) return tokens_.Fail(absl::StrCat("{% ", name, " %}, but not in a loop"));
      statement.kind = name == "break" ? StatementKind::kBreak : StatementKind::kContinue;
      return absl::OkStatus();
    }
    return tokens_.Fail(absl::StrCat("the statement {% ", name,
                                     " %} is not expected here, or not supported; supported are if, for, set, macro, "
                                     "with, filter, generation, raw, break and continue"));
  }

  // What `parse` returns, which may not contain the filter `safe`.
  template <typename Parse>
  absl::StatusOr<ExpressionPtr> WithoutSafe(Parse parse) {
    const int safe_before = expressions_.num_safe();
    ASSIGN_OR_RETURN(ExpressionPtr expression, parse());
    RETURN_IF_ERROR(CheckSafe(safe_before));
    return expression;
  }
  absl::StatusOr<ExpressionPtr> Condition() {
    return WithoutSafe([this] { return expressions_.ParseTuple(/*with_choice=*/false); });
  }
  absl::StatusOr<ExpressionPtr> Tuple() {
    return WithoutSafe([this] { return expressions_.ParseTuple(); });
  }
  absl::StatusOr<ExpressionPtr> Single() {
    return WithoutSafe([this] { return expressions_.Parse(); });
  }
  absl::StatusOr<ExpressionPtr> BlockFilter() {
    return WithoutSafe([this] { return expressions_.ParseBlockFilter(); });
  }

  absl::Status If(Statement& statement) {
    statement.kind = StatementKind::kIf;
    bool is_last = false;
    while (!is_last) {
      auto branch = std::make_unique<Statement>(Statement{.kind = StatementKind::kIf, .line = tokens_.current().line});
      ASSIGN_OR_RETURN(ExpressionPtr condition, Condition());
      branch->expressions.push_back(std::move(condition));
      ASSIGN_OR_RETURN(branch->body, Inner({"elif", "else", "endif"}));
      statement.branches.push_back(std::move(branch));
      is_last = !tokens_.SkipIfName("elif");
    }
    if (tokens_.SkipIfName("else")) {
      auto branch = std::make_unique<Statement>(Statement{.kind = StatementKind::kIf, .line = tokens_.current().line});
      ASSIGN_OR_RETURN(branch->body, Inner({"endif"}));
      statement.branches.push_back(std::move(branch));
    }
    tokens_.Skip();
    return absl::OkStatus();
  }

  // "a" or "a, b", maybe in brackets.
  absl::Status Targets(Statement& statement) {
    const bool in_brackets = tokens_.SkipIfOperator("(");
    while (true) {
      ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
      RETURN_IF_ERROR(CheckTarget(name));
      statement.targets.push_back(std::move(name));
      if (!tokens_.SkipIfOperator(",")) break;
      statement.unpacks = true;
    }
    if (in_brackets) return tokens_.ExpectOperator(")");
    return absl::OkStatus();
  }

  absl::Status CheckTarget(const std::string& name) {
    for (const char* reserved : {"loop",        "in",
                                 "if",          "else",
                                 "not",         "and",
                                 "or",          "is",
                                 "caller",      "varargs",
                                 "kwargs",      "self",
                                 "super",       "true",
                                 "false",       "none",
                                 "True",        "False",
                                 "None",        "range",
                                 "namespace",   "raise_exception",
                                 "strftime_now"}) {
      if (name == reserved) return tokens_.Fail(absl::StrCat("the name '", name, "' is reserved; choose another one"));
    }
    assigned_.insert(name);
    return absl::OkStatus();
  }

  int ReadsOfLoop() const {
    const auto found = expressions_.names_read().find("loop");
    return found == expressions_.names_read().end() ? 0 : found->second;
  }

  absl::Status For(Statement& statement) {
    statement.kind = StatementKind::kFor;
    RETURN_IF_ERROR(Targets(statement));
    if (!tokens_.SkipIfName("in")) return tokens_.FailExpected("'in'");
    ASSIGN_OR_RETURN(ExpressionPtr items, Condition());
    statement.expressions.push_back(std::move(items));
    ExpressionPtr condition;
    if (tokens_.SkipIfName("if")) {
      // In the condition, the name `loop` would mean the enclosing loop and not this one.
      const int before = ReadsOfLoop();
      ASSIGN_OR_RETURN(condition, Single());
      if (ReadsOfLoop() != before) {
        return tokens_.Fail("'loop' in the condition of a loop is not supported");
      }
    }
    statement.expressions.push_back(std::move(condition));
    if (tokens_.current().is_name("recursive")) return tokens_.Fail("recursive loops are not supported");
    const Place outer = place_;
    place_.in_loop = true;
    absl::StatusOr<Body> body = Inner({"else", "endfor"});
    place_ = outer;
    ASSIGN_OR_RETURN(statement.body, std::move(body));
    if (tokens_.SkipIfName("else")) {
      ASSIGN_OR_RETURN(statement.otherwise, Inner({"endfor"}));
    }
    assigned_.insert("loop");
    tokens_.Skip();
    return absl::OkStatus();
  }

  absl::Status Set(Statement& statement) {
    if (tokens_.current().kind == TokenKind::kName && tokens_.next().is_operator(".")) {
      ASSIGN_OR_RETURN(statement.name, tokens_.ExpectName());
      tokens_.Skip();
      ASSIGN_OR_RETURN(statement.attribute, tokens_.ExpectName());
      if (tokens_.current().is_operator(","))
        return tokens_.Fail("several attributes in one {% set %} are not supported");
    } else {
      RETURN_IF_ERROR(Targets(statement));
    }
    if (tokens_.SkipIfOperator("=")) {
      statement.kind = StatementKind::kSet;
      ASSIGN_OR_RETURN(ExpressionPtr value, Tuple());
      statement.expressions.push_back(std::move(value));
      return absl::OkStatus();
    }
    statement.kind = StatementKind::kSetBlock;
    if (statement.unpacks) return tokens_.Fail("a block has one value, but several names are given");
    ExpressionPtr filter;
    if (tokens_.SkipIfOperator("|")) {
      ASSIGN_OR_RETURN(filter, BlockFilter());
    }
    statement.expressions.push_back(std::move(filter));
    ASSIGN_OR_RETURN(statement.body, InnerAt({.in_capture = true}, "endset"));
    return absl::OkStatus();
  }

  absl::Status With(Statement& statement) {
    statement.kind = StatementKind::kWith;
    while (tokens_.current().kind != TokenKind::kTagEnd) {
      if (!statement.targets.empty()) {
        RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      }
      ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
      RETURN_IF_ERROR(CheckTarget(name));
      statement.targets.push_back(std::move(name));
      RETURN_IF_ERROR(tokens_.ExpectOperator("="));
      ASSIGN_OR_RETURN(ExpressionPtr value, Single());
      statement.expressions.push_back(std::move(value));
    }
    ASSIGN_OR_RETURN(statement.body, InnerAt(place_, "endwith"));
    return absl::OkStatus();
  }

  absl::Status ParseMacro(Statement& statement) {
    statement.kind = StatementKind::kMacro;
    ASSIGN_OR_RETURN(statement.name, tokens_.ExpectName());
    RETURN_IF_ERROR(CheckTarget(statement.name));
    RETURN_IF_ERROR(tokens_.ExpectOperator("("));
    while (!tokens_.current().is_operator(")")) {
      if (!statement.targets.empty()) {
        RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      }
      ASSIGN_OR_RETURN(std::string name, tokens_.ExpectName());
      RETURN_IF_ERROR(CheckTarget(name));
      const auto& targets = statement.targets;
      if (std::find(targets.begin(), targets.end(), name) != targets.end()) {
        return tokens_.Fail(absl::StrCat("the macro has two parameters '", name, "'"));
      }
      statement.targets.push_back(std::move(name));
      if (tokens_.SkipIfOperator("=")) {
        ASSIGN_OR_RETURN(ExpressionPtr value, Single());
        statement.expressions.push_back(std::move(value));
      } else if (!statement.expressions.empty()) {
        return tokens_.Fail("a parameter without a default follows one with a default");
      }
    }
    tokens_.Skip();
    ASSIGN_OR_RETURN(statement.body, InnerAt({.in_capture = true}, "endmacro"));
    return absl::OkStatus();
  }

  absl::Status Generation(Statement& statement) {
    statement.kind = StatementKind::kGeneration;
    if (place_.in_capture) {
      return tokens_.Fail(
          "{% generation %} inside a macro, {% generation %}, {% filter %} or {% set %} block is not supported: "
          "transformers marks wrong positions there");
    }
    has_generation_ = true;
    ASSIGN_OR_RETURN(statement.body, InnerAt({.in_capture = true}, "endgeneration"));
    return absl::OkStatus();
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  Place place_;
  int depth_ = 0;
  bool has_generation_ = false;
  std::set<std::string> assigned_;
};

}  // namespace

absl::StatusOr<ParsedTemplate> ParseTemplate(absl::string_view source) {
  ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace trainyard::templates
