#include "templates/scope.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace trainyard::templates {

absl::Status Loop::FindNext() {
  for (; !found_next_ && next_item < items.size(); ++next_item) {
    bool is_accepted = true;
    if (accepts) {
      ASSIGN_OR_RETURN(is_accepted, accepts(items[next_item]));
    }
    if (!is_accepted) continue;
    found_next_ = true;
    break;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Loop::Advance() {
  RETURN_IF_ERROR(FindNext());
  if (next_item >= items.size()) return false;
  previous = index0 < 0 ? Value::Undefined("there is no previous item") : current;
  current = items[next_item++];
  found_next_ = false;
  ++index0;
  return true;
}

// Without a condition all items are known. With a condition, the rest of the items is filtered now, as in jinja2.
absl::StatusOr<size_t> Loop::Length() {
  if (accepts) {
    RETURN_IF_ERROR(FindNext());
    std::vector<Value> rest;
    while (next_item < items.size()) {
      rest.push_back(items[next_item++]);
      found_next_ = false;
      RETURN_IF_ERROR(FindNext());
    }
    items = std::move(rest);
    next_item = 0;
    found_next_ = !items.empty();
    accepts = nullptr;
    can_count = false;
    length_ = static_cast<size_t>(index0 + 1) + items.size();
  }
  return can_count ? items.size() : length_;
}

absl::StatusOr<Value> Loop::Attribute(const std::string& name) {
  if (name == "index0") return Value::Integer(index0);
  if (name == "index") return Value::Integer(index0 + 1);
  if (name == "first") return Value::Bool(index0 == 0);
  if (name == "previtem") return previous;
  if (name == "last" || name == "nextitem") {
    RETURN_IF_ERROR(FindNext());
    const bool is_last = next_item >= items.size();
    if (name == "last") return Value::Bool(is_last);
    return is_last ? Value::Undefined("there is no next item") : items[next_item];
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    ASSIGN_OR_RETURN(const size_t length, Length());
    const auto size = static_cast<int64_t>(length);
    return Value::Integer(name == "length" ? size : name == "revindex" ? size - index0 : size - index0 - 1);
  }
  return absl::InvalidArgumentError(absl::StrCat("'loop.", name, "' is not supported"));
}

}  // namespace trainyard::templates
