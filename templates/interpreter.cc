#include "templates/interpreter.h"

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "templates/filters.h"
#include "templates/operations.h"
#include "templates/scope.h"

namespace trainyard::templates {
namespace {

constexpr int64_t kRangeMax = 100'000;  // as in jinja2's sandbox

class Interpreter {
 public:
  explicit Interpreter(const Context& context) {
    for (const auto& [name, value] : context) globals_.Set(name, value);
    globals_.Set("range", Value::Of(Function::kRange));
    globals_.Set("namespace", Value::Of(Function::kNamespace));
    globals_.Set("raise_exception", Value::Of(Function::kRaise));
    globals_.Set("strftime_now", Value::Of(Function::kDate));
  }

  absl::StatusOr<Rendered> Run(const ParsedTemplate& parsed) {
    Scope root(&globals_);
    Rendered rendered;
    generated_ = &rendered.generated;
    ASSIGN_OR_RETURN(const Flow flow, Execute(parsed.body, root, rendered.text));
    (void)flow;
    rendered.steps = budget_.steps();
    return rendered;
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Adds the line of the innermost expression or statement to an error.
  absl::Status Located(absl::Status status, int line) {
    if (is_located_) return status;
    is_located_ = true;
    return absl::Status(status.code(), absl::StrCat("line ", line, ": ", status.message()));
  }

  // ---- Statements

  absl::StatusOr<Flow> Execute(const Body& body, Scope& scope, std::string& out) {
    for (const auto& statement : body) {
      absl::Status entered = budget_.Enter();
      entered.Update(budget_.Spend(1));
      absl::StatusOr<Flow> flow = entered.ok() ? ExecuteOne(*statement, scope, out) : absl::StatusOr<Flow>(entered);
      budget_.Leave();
      if (!flow.ok()) return Located(flow.status(), statement->line);
      if (*flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  absl::StatusOr<Flow> ExecuteOne(const Statement& statement, Scope& scope, std::string& out) {
    switch (statement.kind) {
      case StatementKind::kData:
        out += statement.text;
        RETURN_IF_ERROR(budget_.Make(statement.text.size()));
        return Flow::kNext;
      case StatementKind::kOutput: {
        ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expressions[0], scope));
        RETURN_IF_ERROR(AppendTextOf(value, out));
        return Flow::kNext;
      }
      case StatementKind::kIf:
        return ExecuteIf(statement, scope, out);
      case StatementKind::kFor:
        return ExecuteFor(statement, scope, out);
      case StatementKind::kSet: {
        ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expressions[0], scope));
        RETURN_IF_ERROR(Assign(statement, value, scope));
        return Flow::kNext;
      }
      case StatementKind::kSetBlock:
      case StatementKind::kFilterBlock:
        return ExecuteBlock(statement, scope, out);
      case StatementKind::kWith: {
        Scope inner(&scope);
        for (size_t i = 0; i < statement.targets.size(); ++i) {
          ASSIGN_OR_RETURN(Value value, Evaluate(*statement.expressions[i], scope));
          inner.Set(statement.targets[i], std::move(value));
        }
        return Execute(statement.body, inner, out);
      }
      case StatementKind::kMacro: {
        auto macro = std::make_shared<Macro>(Macro{.definition = &statement, .scope = &scope});
        scope.Set(statement.name, Value::Of(std::shared_ptr<const Macro>(std::move(macro))));
        return Flow::kNext;
      }
      case StatementKind::kGeneration: {
        Scope inner(&scope);
        const size_t begin = out.size();
        RETURN_IF_ERROR(Execute(statement.body, inner, out).status());
        generated_->emplace_back(begin, out.size());
        return Flow::kNext;
      }
      case StatementKind::kBreak:
        return Flow::kBreak;
      case StatementKind::kContinue:
        return Flow::kContinue;
    }
    return Flow::kNext;
  }

  absl::Status AppendTextOf(const Value& value, std::string& out) {
    ASSIGN_OR_RETURN(const std::string text, TextOf(value, budget_));
    out += text;
    return absl::OkStatus();
  }

  // Branches have no scope of their own.
  absl::StatusOr<Flow> ExecuteIf(const Statement& statement, Scope& scope, std::string& out) {
    for (const auto& branch : statement.branches) {
      if (!branch->expressions.empty()) {
        ASSIGN_OR_RETURN(const Value condition, Evaluate(*branch->expressions[0], scope));
        if (!condition.truth()) continue;
      }
      return Execute(branch->body, scope, out);
    }
    return Flow::kNext;
  }

  absl::Status AssignTargets(const Statement& statement, const Value& value, Scope& scope) {
    if (!statement.unpacks) {
      scope.Set(statement.targets[0], value);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(std::vector<Value> items, ItemsOf(value, budget_));
    if (items.size() != statement.targets.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a value of ", items.size(), " items is assigned to ", statement.targets.size(), " names"));
    }
    for (size_t i = 0; i < items.size(); ++i) scope.Set(statement.targets[i], std::move(items[i]));
    return absl::OkStatus();
  }

  absl::Status Assign(const Statement& statement, const Value& value, Scope& scope) {
    if (statement.attribute.empty()) return AssignTargets(statement, value, scope);
    const Value* space = scope.Find(statement.name);
    if (space == nullptr || !space->is(Kind::kNamespace)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", statement.name, "' is not a namespace, so it has no attribute to set"));
    }
    return SetAttribute(space->space(), statement.attribute, value);
  }

  absl::Status SetAttribute(Namespace& space, const std::string& name, const Value& value) {
    if (name[0] == '_') return absl::InvalidArgumentError(absl::StrCat("the attribute '", name, "' begins with _"));
    if (!value.is_data()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a value of type ", value.type_name(), " in a namespace is not supported"));
    }
    RETURN_IF_ERROR(budget_.Spend(1 + space.attributes.size()));
    space.Set(name, value);
    return absl::OkStatus();
  }

  absl::StatusOr<Flow> ExecuteFor(const Statement& statement, Scope& scope, std::string& out) {
    ASSIGN_OR_RETURN(const Value iterated, Evaluate(*statement.expressions[0], scope));
    auto loop = std::make_shared<Loop>();
    ASSIGN_OR_RETURN(loop->items, ItemsOf(iterated, budget_));
    loop->can_count = !statement.expressions[1];
    if (statement.expressions[1]) {
      // As in jinja2, the condition is evaluated when the next item is needed.
      loop->accepts = [this, &statement, &scope](const Value& item) -> absl::StatusOr<bool> {
        Scope inner(&scope);
        RETURN_IF_ERROR(AssignTargets(statement, item, inner));
        ASSIGN_OR_RETURN(const Value result, Evaluate(*statement.expressions[1], inner));
        return result.truth();
      };
    }
    while (true) {
      ASSIGN_OR_RETURN(const bool has_next, loop->Advance());
      if (!has_next) break;
      RETURN_IF_ERROR(budget_.Spend(1));
      Scope inner(&scope);
      RETURN_IF_ERROR(AssignTargets(statement, loop->current, inner));
      inner.Set("loop", Value::Of(loop));
      ASSIGN_OR_RETURN(const Flow flow, Execute(statement.body, inner, out));
      if (flow == Flow::kBreak) break;
    }
    loop->accepts = nullptr;  // it refers to `scope`, so it must not be called later
    if (loop->index0 >= 0 || statement.otherwise.empty()) return Flow::kNext;
    Scope inner(&scope);
    return Execute(statement.otherwise, inner, out);
  }

  // Executes a {% set %} or {% filter %} block: the text of its body passes through the filters of the block, if there
  // are any, and is then assigned or written.
  absl::StatusOr<Flow> ExecuteBlock(const Statement& statement, Scope& scope, std::string& out) {
    std::string text;
    Scope inner(&scope);
    RETURN_IF_ERROR(Execute(statement.body, inner, text).status());
    ASSIGN_OR_RETURN(Value value, MakeText(std::move(text), budget_));
    if (statement.expressions[0]) {
      block_texts_.push_back(std::move(value));
      const absl::Cleanup forget = [this] { block_texts_.pop_back(); };
      ASSIGN_OR_RETURN(value, Evaluate(*statement.expressions[0], scope));
    }
    if (statement.kind == StatementKind::kSetBlock) {
      RETURN_IF_ERROR(Assign(statement, value, scope));
    } else {
      RETURN_IF_ERROR(AppendTextOf(value, out));
    }
    return Flow::kNext;
  }

  // ---- Expressions

  absl::StatusOr<Value> Evaluate(const Expression& expression, Scope& scope) {
    absl::Status entered = budget_.Enter();
    entered.Update(budget_.Spend(1));
    absl::StatusOr<Value> value = entered.ok() ? EvaluateOne(expression, scope) : absl::StatusOr<Value>(entered);
    budget_.Leave();
    if (!value.ok()) return Located(value.status(), expression.line);
    return value;
  }

  absl::StatusOr<Value> EvaluateOne(const Expression& expression, Scope& scope) {
    const auto part = [&](size_t i) { return Evaluate(*expression.parts[i], scope); };
    switch (expression.kind) {
      case ExpressionKind::kConstant:
        return expression.value;
      case ExpressionKind::kName: {
        const Value* value = scope.Find(expression.name);
        return value != nullptr ? *value : Value::Undefined(expression.name);
      }
      case ExpressionKind::kList:
      case ExpressionKind::kTuple: {
        ASSIGN_OR_RETURN(std::vector<Value> items, All(expression.parts, scope));
        return MakeItems(expression.kind == ExpressionKind::kList ? Kind::kList : Kind::kTuple, std::move(items),
                         budget_);
      }
      case ExpressionKind::kDict:
        return EvaluateDict(expression, scope);
      case ExpressionKind::kAttribute: {
        ASSIGN_OR_RETURN(const Value value, part(0));
        if (value.is(Kind::kLoop)) return value.loop().Attribute(expression.name);
        return AttributeOf(value, expression.name, budget_);
      }
      case ExpressionKind::kItem: {
        ASSIGN_OR_RETURN(const Value value, part(0));
        ASSIGN_OR_RETURN(const Value key, part(1));
        return ItemOf(value, key, budget_);
      }
      case ExpressionKind::kSlice:
        return EvaluateSlice(expression, scope);
      case ExpressionKind::kCall:
        return EvaluateCall(expression, scope);
      case ExpressionKind::kFilter: {
        Value value;
        if (expression.parts[0]) {
          ASSIGN_OR_RETURN(value, part(0));
        } else {
          value = block_texts_.back();
        }
        ASSIGN_OR_RETURN(const CallArguments arguments, ArgumentsOf(expression, scope));
        return ApplyFilter(expression.name, value, arguments, budget_);
      }
      case ExpressionKind::kTest: {
        ASSIGN_OR_RETURN(const Value value, part(0));
        ASSIGN_OR_RETURN(const CallArguments arguments, ArgumentsOf(expression, scope));
        ASSIGN_OR_RETURN(const bool passes, ApplyTest(expression.name, value, arguments, budget_));
        return Value::Bool(passes);
      }
      default:
        return EvaluateOperator(expression, scope);
    }
  }

  absl::StatusOr<Value> EvaluateOperator(const Expression& expression, Scope& scope) {
    ASSIGN_OR_RETURN(const Value first, Evaluate(*expression.parts[0], scope));
    switch (expression.kind) {
      case ExpressionKind::kNegative:
      case ExpressionKind::kPositive:
        // As the left operand, -0.0 gives the right sign even if `first` is a zero.
        return Calculate(expression.kind == ExpressionKind::kNegative ? Operation::kSubtract : Operation::kAdd,
                         first.is(Kind::kFloat) ? Value::Float(-0.0) : Value::Integer(0), first, budget_);
      case ExpressionKind::kBinary: {
        ASSIGN_OR_RETURN(const Value second, Evaluate(*expression.parts[1], scope));
        return Calculate(expression.operations[0], first, second, budget_);
      }
      case ExpressionKind::kCompare:
        return EvaluateCompare(expression, first, scope);
      case ExpressionKind::kConcat: {
        ASSIGN_OR_RETURN(std::string text, TextOf(first, budget_));
        for (size_t i = 1; i < expression.parts.size(); ++i) {
          ASSIGN_OR_RETURN(const Value next, Evaluate(*expression.parts[i], scope));
          RETURN_IF_ERROR(AppendTextOf(next, text));
        }
        return MakeText(std::move(text), budget_);
      }
      case ExpressionKind::kAnd:
        return first.truth() ? Evaluate(*expression.parts[1], scope) : first;
      case ExpressionKind::kOr:
        return first.truth() ? first : Evaluate(*expression.parts[1], scope);
      case ExpressionKind::kNot:
        return Value::Bool(!first.truth());
      default:  // kChoice
        if (first.truth()) return Evaluate(*expression.parts[1], scope);
        if (expression.parts[2]) return Evaluate(*expression.parts[2], scope);
        return Value::Undefined("the result of an if without else");
    }
  }

  absl::StatusOr<Value> EvaluateCompare(const Expression& expression, Value left, Scope& scope) {
    for (size_t i = 0; i < expression.operations.size(); ++i) {
      ASSIGN_OR_RETURN(Value right, Evaluate(*expression.parts[i + 1], scope));
      ASSIGN_OR_RETURN(const bool holds, Compare(expression.operations[i], left, right, budget_));
      if (!holds) return Value::Bool(false);
      left = std::move(right);
    }
    return Value::Bool(true);
  }

  absl::StatusOr<std::vector<Value>> All(const std::vector<ExpressionPtr>& expressions, Scope& scope) {
    std::vector<Value> values;
    for (const ExpressionPtr& expression : expressions) {
      ASSIGN_OR_RETURN(Value value, Evaluate(*expression, scope));
      values.push_back(std::move(value));
    }
    return values;
  }

  absl::StatusOr<Value> EvaluateDict(const Expression& expression, Scope& scope) {
    ASSIGN_OR_RETURN(const std::vector<Value> values, All(expression.parts, scope));
    // Only to check the values and to charge the budget, as for a list of all keys and values.
    RETURN_IF_ERROR(MakeItems(Kind::kList, values, budget_).status());
    auto dict = std::make_shared<Dict>();
    for (size_t i = 0; i < values.size(); i += 2) {
      const Value& key = values[i];
      if (!key.is_number() && !key.is(Kind::kNone) && !key.is(Kind::kText)) {
        return absl::InvalidArgumentError(
            absl::StrCat("a value of type ", key.type_name(), " as a key is not supported"));
      }
      dict->Set(key, values[i + 1]);
    }
    return Value::Of(std::shared_ptr<const Dict>(std::move(dict)));
  }

  absl::StatusOr<Value> EvaluateSlice(const Expression& expression, Scope& scope) {
    ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.parts[0], scope));
    Value bounds[3];
    const Value* given[3] = {};
    for (size_t i = 0; i < 3; ++i) {
      if (!expression.parts[i + 1]) continue;
      ASSIGN_OR_RETURN(bounds[i], Evaluate(*expression.parts[i + 1], scope));
      given[i] = &bounds[i];
    }
    return SliceOf(value, given[0], given[1], given[2], budget_);
  }

  // ---- Calls

  absl::StatusOr<CallArguments> ArgumentsOf(const Expression& expression, Scope& scope) {
    CallArguments arguments;
    ASSIGN_OR_RETURN(arguments.values, All(expression.arguments, scope));
    for (const auto& [name, value] : expression.named) {
      ASSIGN_OR_RETURN(Value evaluated, Evaluate(*value, scope));
      arguments.named.emplace_back(name, std::move(evaluated));
    }
    return arguments;
  }

  absl::StatusOr<Value> EvaluateCall(const Expression& expression, Scope& scope) {
    const Expression& callee = *expression.parts[0];
    if (callee.kind == ExpressionKind::kAttribute) {
      ASSIGN_OR_RETURN(const Value value, Evaluate(*callee.parts[0], scope));
      ASSIGN_OR_RETURN(const CallArguments arguments, ArgumentsOf(expression, scope));
      return CallMethod(value, callee.name, arguments, budget_);
    }
    ASSIGN_OR_RETURN(const Value function, Evaluate(callee, scope));
    ASSIGN_OR_RETURN(const CallArguments arguments, ArgumentsOf(expression, scope));
    if (function.is(Kind::kMacro)) return CallMacro(function.macro(), arguments);
    if (function.is(Kind::kFunction)) return CallFunction(function.function(), arguments);
    if (function.is(Kind::kUndefined))
      return absl::InvalidArgumentError(absl::StrCat("'", function.text(), "' is undefined"));
    return absl::InvalidArgumentError(absl::StrCat("a value of type ", function.type_name(), " cannot be called"));
  }

  absl::StatusOr<Value> CallMacro(const Macro& macro, const CallArguments& arguments) {
    const Statement& definition = *macro.definition;
    Scope inner(static_cast<Scope*>(macro.scope));
    if (arguments.values.size() > definition.targets.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the macro '", definition.name, "' has ",
                                                     definition.targets.size(), " parameters, but is called with ",
                                                     arguments.values.size(), " arguments"));
    }
    const size_t num_given = arguments.values.size();
    for (const auto& [name, value] : arguments.named) {
      const auto found = std::find(definition.targets.begin(), definition.targets.end(), name);
      if (found == definition.targets.end() || static_cast<size_t>(found - definition.targets.begin()) < num_given) {
        return absl::InvalidArgumentError(
            absl::StrCat("the macro '", definition.name, "' has no parameter '", name, "', or gets it twice"));
      }
    }
    const size_t num_plain = definition.targets.size() - definition.expressions.size();
    for (size_t i = 0; i < definition.targets.size(); ++i) {
      const std::string& name = definition.targets[i];
      Value value = Value::Undefined(name);
      const auto named = std::find_if(arguments.named.begin(), arguments.named.end(),
                                      [&name](const auto& pair) { return pair.first == name; });
      if (i < num_given) {
        value = arguments.values[i];
      } else if (named != arguments.named.end()) {
        value = named->second;
      } else if (i >= num_plain) {
        ASSIGN_OR_RETURN(value, Evaluate(*definition.expressions[i - num_plain], inner));
      }
      inner.Set(name, std::move(value));
    }
    std::string text;
    RETURN_IF_ERROR(Execute(definition.body, inner, text).status());
    return MakeText(std::move(text), budget_);
  }

  absl::StatusOr<Value> CallFunction(Function function, const CallArguments& arguments) {
    switch (function) {
      case Function::kRange:
        return CallRange(arguments);
      case Function::kNamespace: {
        if (!arguments.values.empty())
          return absl::InvalidArgumentError("'namespace' is supported with named values only");
        auto space = std::make_shared<Namespace>();
        for (const auto& [name, value] : arguments.named) RETURN_IF_ERROR(SetAttribute(*space, name, value));
        RETURN_IF_ERROR(budget_.Make(sizeof(Namespace)));
        return Value::Of(std::move(space));
      }
      case Function::kRaise: {
        ASSIGN_OR_RETURN(const auto bound, BindArguments(arguments, "raise_exception", {"message"}, 1));
        ASSIGN_OR_RETURN(const std::string message, TextOf(*bound[0], budget_));
        return absl::InvalidArgumentError(absl::StrCat("the template refuses the conversation: ", message));
      }
      case Function::kDate:
        break;
    }
    return absl::InvalidArgumentError(
        "the template prints today's date, on which training data must not depend; copy the template to "
        "chat_template.jinja next to the tokenizer, and set a fixed date in its first line, such as "
        "{% set date_string = '26 Jul 2024' %}");
  }

  absl::StatusOr<Value> CallRange(const CallArguments& arguments) {
    int64_t bounds[3] = {0, 0, 1};
    const size_t count = arguments.values.size();
    if (count < 1 || count > 3 || !arguments.named.empty())
      return absl::InvalidArgumentError("'range' needs one to three whole numbers");
    for (size_t i = 0; i < count; ++i) {
      const Value& value = arguments.values[i];
      if (!value.is_whole() || value.integer() > INT32_MAX || value.integer() < INT32_MIN) {
        return absl::InvalidArgumentError("'range' needs whole numbers of at most 31 bits");
      }
      bounds[count == 1 ? 1 : i] = value.integer();
    }
    const auto [begin, end, step] = bounds;
    if (step == 0) return absl::InvalidArgumentError("the step of 'range' is 0");
    const int64_t size = step > 0 ? (end - begin + step - 1) / step : (begin - end - step - 1) / -step;
    if (size > kRangeMax) return absl::InvalidArgumentError(absl::StrCat("a range has at most ", kRangeMax, " items"));
    std::vector<Value> items;
    for (int64_t i = 0; i < size; ++i) items.push_back(Value::Integer(begin + i * step));
    return MakeItems(Kind::kRange, std::move(items), budget_);
  }

  Budget budget_;
  Scope globals_{nullptr};
  std::vector<std::pair<size_t, size_t>>* generated_ = nullptr;
  std::vector<Value> block_texts_;
  bool is_located_ = false;
};

}  // namespace

absl::StatusOr<Rendered> RenderTemplate(const ParsedTemplate& parsed, const Context& context) {
  return Interpreter(context).Run(parsed);
}

}  // namespace trainyard::templates
