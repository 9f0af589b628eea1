#include "templates/value.h"

#include <algorithm>

namespace trainyard::templates {

Value Value::Undefined(absl::string_view name) {
  Value value(Kind::kUndefined);
  value.data_ = std::make_shared<const std::string>(name);
  return value;
}

Value Value::Bool(bool value) {
  Value made(Kind::kBool);
  made.integer_ = value ? 1 : 0;
  return made;
}

Value Value::Integer(int64_t value) {
  Value made(Kind::kInteger);
  made.integer_ = value;
  return made;
}

Value Value::Float(double value) {
  Value made(Kind::kFloat);
  made.number_ = value;
  return made;
}

Value Value::Text(std::string text) {
  Value value(Kind::kText);
  value.data_ = std::make_shared<const std::string>(std::move(text));
  return value;
}

Value Value::Items(Kind kind, std::vector<Value> items) {
  Value value(kind);
  auto sequence = std::make_shared<Sequence>();
  for (const Value& item : items) sequence->depth = std::max(sequence->depth, 1 + item.depth());
  sequence->items = std::move(items);
  value.data_ = std::move(sequence);
  return value;
}

Value Value::Of(std::shared_ptr<const Dict> dict) {
  Value value(Kind::kDict);
  value.data_ = std::move(dict);
  return value;
}

Value Value::Of(std::shared_ptr<Namespace> space) {
  Value value(Kind::kNamespace);
  value.data_ = std::move(space);
  return value;
}

Value Value::Of(std::shared_ptr<Loop> loop) {
  Value value(Kind::kLoop);
  value.data_ = std::move(loop);
  return value;
}

Value Value::Of(std::shared_ptr<const Macro> macro) {
  Value value(Kind::kMacro);
  value.data_ = std::move(macro);
  return value;
}

Value Value::Of(Function function) {
  Value value(Kind::kFunction);
  value.integer_ = static_cast<int64_t>(function);
  return value;
}

const std::vector<Value>& Value::items() const { return static_cast<const Sequence*>(data_.get())->items; }
size_t& Value::next() const { return static_cast<const Sequence*>(data_.get())->next; }

Namespace& Value::space() const { return *static_cast<Namespace*>(const_cast<void*>(data_.get())); }
Loop& Value::loop() const { return *static_cast<Loop*>(const_cast<void*>(data_.get())); }

int Value::depth() const {
  if (is_sequence()) return static_cast<const Sequence*>(data_.get())->depth;
  return is(Kind::kDict) ? dict().depth : 0;
}

bool Value::truth() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInteger:
      return integer_ != 0;
    case Kind::kFloat:
      return number_ != 0;
    case Kind::kText:
      return !text().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return !items().empty();
    case Kind::kDict:
      return !dict().pairs.empty();
    default:
      return true;
  }
}

absl::string_view Value::type_name() const {
  switch (kind_) {
    case Kind::kUndefined:
      return "undefined";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return "bool";
    case Kind::kInteger:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kText:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kRange:
      return "range";
    case Kind::kView:
      return "view of a dict";
    case Kind::kGenerator:
      return "generator";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "namespace";
    case Kind::kLoop:
      return "loop";
    case Kind::kMacro:
      return "macro";
    case Kind::kFunction:
      return "function";
  }
  return "";
}

const Value* Dict::Find(const Value& key) const {
  for (const auto& [name, value] : pairs) {
    if (Equal(name, key)) return &value;
  }
  return nullptr;
}

const Value* Dict::Find(absl::string_view key) const {
  for (const auto& [name, value] : pairs) {
    if (name.is(Kind::kText) && name.text() == key) return &value;
  }
  return nullptr;
}

void Dict::Set(const Value& key, Value value) {
  depth = std::max(depth, 1 + value.depth());
  for (auto& [name, old] : pairs) {
    if (!Equal(name, key)) continue;
    old = std::move(value);
    return;
  }
  pairs.emplace_back(key, std::move(value));
}

void Namespace::Set(const std::string& name, Value value) {
  for (auto& [known, old] : attributes) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  attributes.emplace_back(name, std::move(value));
}

bool Equal(const Value& left, const Value& right) {
  if (left.is_whole() && right.is_whole()) return left.integer() == right.integer();
  if (left.is_number() && right.is_number()) return left.number() == right.number();
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kText:
      return left.text() == right.text();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
      return std::equal(left.items().begin(), left.items().end(), right.items().begin(), right.items().end(), Equal);
    case Kind::kDict: {
      if (left.dict().pairs.size() != right.dict().pairs.size()) return false;
      for (const auto& [key, value] : left.dict().pairs) {
        const Value* other = right.dict().Find(key);
        if (other == nullptr || !Equal(value, *other)) return false;
      }
      return true;
    }
    case Kind::kFunction:
      return left.function() == right.function();
    default:
      return false;  // objects that templates compare only by mistake
  }
}

}  // namespace trainyard::templates
