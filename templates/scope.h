// The names that are visible in a part of a template (a macro, the body of a loop or another block), and the state of a
// loop. Not thread-safe.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "templates/value.h"

namespace trainyard::templates {

// Names that were set in one part, and those of the parts around it. A scope must not outlive its outer scope.
class Scope {
 public:
  explicit Scope(Scope* outer) : outer_(outer) {}
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  // Null: the name is not set.
  const Value* Find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->outer_) {
      for (const auto& [known, value] : scope->names_) {
        if (known == name) return &value;
      }
    }
    return nullptr;
  }

  void Set(const std::string& name, Value value) {
    for (auto& [known, old] : names_) {
      if (known != name) continue;
      old = std::move(value);
      return;
    }
    names_.emplace_back(name, std::move(value));
  }

 private:
  Scope* const outer_;
  std::vector<std::pair<std::string, Value>> names_;
};

// The state of a loop. The template sees a part of it as the variable `loop`.
struct Loop {
  std::vector<Value> items;
  std::function<absl::StatusOr<bool>(const Value&)> accepts;  // empty: every item
  bool can_count = true;                                      // the loop has no condition: its length is items.size()
  size_t next_item = 0;
  int64_t index0 = -1;
  Value previous, current;

  // Proceeds to the next item; false: there is none.
  absl::StatusOr<bool> Advance();
  // Returns the attribute `name` of the variable `loop`, such as loop.index. Possible errors: InvalidArgument: there is
  // no such attribute, or it is not supported.
  absl::StatusOr<Value> Attribute(const std::string& name);

 private:
  // Moves `next_item` to an item that is accepted, or to the end.
  absl::Status FindNext();
  absl::StatusOr<size_t> Length();

  bool found_next_ = false;
  size_t length_ = 0;  // set by Length if the loop has a condition
};

}  // namespace trainyard::templates
