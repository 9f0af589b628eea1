// The syntax tree of a template. Immutable after it was parsed.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "templates/value.h"

namespace trainyard::templates {

enum class Operation {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kRemainder,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessOrEqual,
  kGreater,
  kGreaterOrEqual,
  kIn,
  kNotIn,
};

enum class ExpressionKind {
  kConstant,   // value
  kName,       // name
  kList,       // parts
  kTuple,      // parts
  kDict,       // parts: keys and values in turn
  kAttribute,  // parts[0].name
  kItem,       // parts[0][parts[1]]
  kSlice,      // parts[0][parts[1]:parts[2]:parts[3]], each of which may be null
  kCall,       // parts[0](...)
  kFilter,     // parts[0] | name(...); parts[0] is null for the text of a block
  kTest,       // parts[0] is name(...)
  kNegative,   // -parts[0]
  kPositive,   // +parts[0]
  kBinary,     // parts[0] operations[0] parts[1]
  kCompare,    // parts[0] operations[0] parts[1] operations[1] parts[2] ...
  kConcat,     // parts[0] ~ parts[1] ~ ...
  kAnd,
  kOr,
  kNot,
  kChoice,  // parts[1] if parts[0] else parts[2], which may be null
};

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

struct Expression {
  ExpressionKind kind;
  int line = 0;
  std::string name = {};
  Value value = {};
  std::vector<ExpressionPtr> parts = {};
  std::vector<Operation> operations = {};
  // Arguments of a call, a filter or a test.
  std::vector<ExpressionPtr> arguments = {};
  std::vector<std::pair<std::string, ExpressionPtr>> named = {};
};

enum class StatementKind {
  kData,         // text
  kOutput,       // expressions[0]
  kIf,           // branches, each with its condition in expressions[0]; one without a condition is the else
  kFor,          // targets in expressions[0] if expressions[1], which may be null
  kSet,          // targets or name.attribute = expressions[0]
  kSetBlock,     // targets = body through the filter expressions[0], which may be null
  kFilterBlock,  // body through expressions[0]
  kWith,         // targets = expressions, in body
  kMacro,        // name(targets), whose last ones have the defaults in expressions
  kGeneration,   // body
  kBreak,
  kContinue,
};

struct Statement;
using Body = std::vector<std::unique_ptr<const Statement>>;

struct Statement {
  StatementKind kind;
  int line = 0;
  std::string text = {};
  std::string name = {};
  std::string attribute = {};  // not empty: of a namespace
  std::vector<std::string> targets = {};
  bool unpacks = false;  // the targets are a tuple
  std::vector<ExpressionPtr> expressions = {};
  Body body = {};
  Body otherwise = {};  // executed if a loop has no items
  Body branches = {};
};

struct Macro {
  const Statement* definition = nullptr;
  void* scope = nullptr;  // the interpreter's scope in which the macro was defined
};

}  // namespace trainyard::templates
