#include "tokenizers/json_part.h"

#include "absl/strings/str_cat.h"

namespace trainyard {
namespace {

const nlohmann::json& NullJson() {
  static const auto* const null = new nlohmann::json(nullptr);
  return *null;
}

const nlohmann::json& ValueOf(const nlohmann::json& json, const char* key) {
  if (!json.is_object()) return NullJson();
  const auto found = json.find(key);
  return found == json.end() ? NullJson() : *found;
}

}  // namespace

bool JsonPart::Has(const char* key) const { return !ValueOf(json_, key).is_null(); }

bool JsonPart::Bool(const char* key, bool otherwise) const {
  const nlohmann::json& value = ValueOf(json_, key);
  if (value.is_null()) return otherwise;
  if (value.is_boolean()) return value.get<bool>();
  At(key).Problem("expected true or false");
  return otherwise;
}

std::string JsonPart::String(const char* key, absl::string_view otherwise) const {
  const nlohmann::json& value = ValueOf(json_, key);
  if (value.is_null()) return std::string(otherwise);
  if (value.is_string()) return value.get<std::string>();
  At(key).Problem("expected a text");
  return std::string(otherwise);
}

int64_t JsonPart::Int(const char* key, int64_t otherwise) const {
  const nlohmann::json& value = ValueOf(json_, key);
  if (value.is_null()) return otherwise;
  if (value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX)) {
    return value.get<int64_t>();
  }
  At(key).Problem("expected an integer");
  return otherwise;
}

Pattern JsonPart::PatternAt(const char* key) const {
  const JsonPart part = At(key);
  if (part.Has("String")) return Pattern::Literal(part.String("String"));
  if (!part.Has("Regex")) {
    part.Problem("expected {\"String\": text} or {\"Regex\": pattern}");
    return Pattern::Literal("");
  }
  absl::StatusOr<Pattern> pattern = Pattern::Regex(part.String("Regex"));
  if (pattern.ok()) return *std::move(pattern);
  part.Problem(pattern.status().message());
  return Pattern::Literal("");
}

JsonPart JsonPart::At(const char* key) const {
  return {ValueOf(json_, key), where_.empty() ? key : absl::StrCat(where_, ".", key), problems_};
}

std::vector<JsonPart> JsonPart::Elements(const char* key) const {
  std::vector<JsonPart> elements;
  const nlohmann::json& value = ValueOf(json_, key);
  if (value.is_null()) return elements;
  if (!value.is_array()) {
    At(key).Problem("expected a list");
    return elements;
  }
  const std::string name = At(key).where();
  for (size_t i = 0; i < value.size(); ++i) elements.emplace_back(value[i], absl::StrCat(name, "[", i, "]"), problems_);
  return elements;
}

void JsonPart::Problem(absl::string_view what) const { problems_.push_back(absl::StrCat(where_, ": ", what)); }

void JsonPart::Unsupported(absl::string_view what, absl::string_view type, absl::string_view known) const {
  Problem(absl::StrCat("the ", what, " '", type, "' is not supported (supported: ", known, ")"));
}

}  // namespace trainyard
