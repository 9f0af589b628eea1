// The values of a template: those of Python that chat templates can have. Values are immutable, so copies share their
// content. Exceptions are namespaces, loops and the position of a generator.
//
// Not thread-safe: a value belongs to one rendering.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace trainyard::templates {

enum class Kind {
  kUndefined,  // a name, attribute or item that does not exist
  kNone,
  kBool,
  kInteger,
  kFloat,
  kText,
  kList,
  kTuple,
  kRange,
  kView,       // of a dictionary: its keys, values or items
  kGenerator,  // the result of filters such as `map`, which can be read once
  kDict,
  kNamespace,
  kLoop,
  kMacro,
  kFunction,
};

struct Sequence;
struct Dict;
struct Namespace;
struct Loop;
struct Macro;
enum class Function { kRange, kNamespace, kRaise, kDate };

class Value {
 public:
  Value() = default;  // undefined

  static Value Undefined(absl::string_view name);  // `name`: for messages
  static Value None() { return Value(Kind::kNone); }
  static Value Bool(bool value);
  static Value Integer(int64_t value);
  static Value Float(double value);
  static Value Text(std::string text);
  static Value List(std::vector<Value> items) { return Items(Kind::kList, std::move(items)); }
  static Value Tuple(std::vector<Value> items) { return Items(Kind::kTuple, std::move(items)); }
  // `kind`: one of those for which is_sequence() is true.
  static Value Items(Kind kind, std::vector<Value> items);
  static Value Of(std::shared_ptr<const Dict> dict);
  static Value Of(std::shared_ptr<Namespace> space);
  static Value Of(std::shared_ptr<Loop> loop);
  static Value Of(std::shared_ptr<const Macro> macro);
  static Value Of(Function function);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_sequence() const { return kind_ >= Kind::kList && kind_ <= Kind::kGenerator; }
  // Whether the value may be stored in another one: every value but a namespace, loop, macro or function.
  bool is_data() const { return kind_ <= Kind::kDict; }
  bool is_number() const { return kind_ >= Kind::kBool && kind_ <= Kind::kFloat; }
  bool is_whole() const { return kind_ == Kind::kBool || kind_ == Kind::kInteger; }

  // REQUIRES of each accessor: the value is of its kind; of number(): is_number(); of integer(): is_whole().
  int64_t integer() const { return integer_; }
  double number() const { return kind_ == Kind::kFloat ? number_ : static_cast<double>(integer_); }
  const std::string& text() const { return *static_cast<const std::string*>(data_.get()); }  // or an undefined's name
  const std::vector<Value>& items() const;
  size_t& next() const;  // of a generator: the first item that was not read
  const Dict& dict() const { return *static_cast<const Dict*>(data_.get()); }
  Namespace& space() const;
  Loop& loop() const;
  const Macro& macro() const { return *static_cast<const Macro*>(data_.get()); }
  Function function() const { return static_cast<Function>(integer_); }

  // How deep lists and dictionaries are nested: 0 for other values.
  int depth() const;
  // Whether the value counts as true in Python. An object, such as a function or a namespace, is always true.
  bool truth() const;
  // The name of the type in messages: that of Python.
  absl::string_view type_name() const;

 private:
  explicit Value(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kUndefined;
  union {
    int64_t integer_ = 0;
    double number_;
  };
  std::shared_ptr<const void> data_;
};

struct Sequence {
  std::vector<Value> items;
  int depth = 1;
  mutable size_t next = 0;
};

// Pairs in the order in which the keys were inserted. Keys are None, numbers or texts.
struct Dict {
  std::vector<std::pair<Value, Value>> pairs;
  int depth = 1;

  // Null: there is no such key.
  const Value* Find(const Value& key) const;
  const Value* Find(absl::string_view key) const;
  // Replaces the value of a key that exists.
  void Set(const Value& key, Value value);
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> attributes;
  void Set(const std::string& name, Value value);
};

// Whether two values are equal as in Python: numbers of all types are compared by value, lists and dictionaries by
// their content.
bool Equal(const Value& left, const Value& right);

}  // namespace trainyard::templates
