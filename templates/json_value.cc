#include "templates/json_value.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/status_macros.h"

namespace trainyard::templates {
namespace {

// A floating-point number of this size or above may have been a whole number that lost digits when it was parsed.
constexpr double kExactMax = 9e15;

}  // namespace

absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json) {
  if (json.is_null()) return Value::None();
  if (json.is_boolean()) return Value::Bool(json.get<bool>());
  if (json.is_string()) return Value::Text(json.get_ref<const std::string&>());
  if (json.is_number_float()) {
    const double number = json.get<double>();
    if (std::fabs(number) < kExactMax) return Value::Float(number);
    return absl::InvalidArgumentError("a number is larger than 9e15, so it may not be exact");
  }
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
    return absl::InvalidArgumentError("a number has more than 63 bits");
  }
  if (json.is_number()) return Value::Integer(json.get<int64_t>());
  if (json.is_array()) {
    std::vector<Value> items;
    for (const auto& item : json) {
      ASSIGN_OR_RETURN(Value value, FromJson(item));
      items.push_back(std::move(value));
    }
    return Value::List(std::move(items));
  }
  auto dict = std::make_shared<Dict>();
  for (const auto& [key, item] : json.items()) {
    ASSIGN_OR_RETURN(Value value, FromJson(item));
    // The keys of an object differ from each other, so no search for an equal key is needed.
    dict->depth = std::max(dict->depth, value.depth() + 1);
    dict->pairs.emplace_back(Value::Text(key), std::move(value));
  }
  return Value::Of(std::shared_ptr<const Dict>(std::move(dict)));
}

}  // namespace trainyard::templates
