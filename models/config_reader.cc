#include "models/config_reader.h"

#include "absl/strings/str_cat.h"
#include "common/json_nesting.h"

namespace trainyard {
namespace {

constexpr int kDepthMax = 32;

}  // namespace

int64_t ConfigReader::ReadSize(const char* key) {
  if (Has(key)) return ReadSize(key, 1);
  AddProblem(key, "a positive whole number");
  return 1;
}

int64_t ConfigReader::ReadSize(const char* key, int64_t missing) {
  if (!Has(key)) return missing;
  const nlohmann::json& value = json_.at(key);
  if (value.is_number_unsigned() && value.get<uint64_t>() > 0 && value.get<uint64_t>() < 1 << 30) {
    return value.get<int64_t>();
  }
  AddProblem(key, "a positive whole number");
  return 1;
}

double ConfigReader::ReadPositive(const char* key, double missing) {
  if (!Has(key)) return missing;
  const nlohmann::json& value = json_.at(key);
  if (value.is_number() && value.get<double>() > 0) return value.get<double>();
  AddProblem(key, "a positive number");
  return 1;
}

double ConfigReader::ReadProbability(const char* key, double missing) {
  if (!Has(key)) return missing;
  const nlohmann::json& value = json_.at(key);
  if (value.is_number() && value.get<double>() >= 0 && value.get<double>() < 1) return value.get<double>();
  AddProblem(key, "a number from 0 to below 1");
  return 0;
}

bool ConfigReader::ReadFlag(const char* key, bool missing) {
  if (!Has(key)) return missing;
  if (json_.at(key).is_boolean()) return json_.at(key).get<bool>();
  AddProblem(key, "true or false");
  return missing;
}

void ConfigReader::CheckOptional(const char* key, const nlohmann::json& value) {
  if (Has(key) && json_.at(key) != value) AddProblem(key, value.dump());
}

bool ConfigReader::Has(const char* key) const {
  const auto it = json_.find(key);
  return it != json_.end() && !it->is_null();
}

void ConfigReader::AddProblem(const char* key, absl::string_view expected) {
  constexpr size_t kShown = 100;
  const auto it = json_.find(key);
  const std::string found = it == json_.end()
                                ? "nothing"
                                : it->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, kShown);
  AddProblem(absl::StrCat(key, ": expected ", expected, ", found ", found));
}

absl::StatusOr<nlohmann::json> ParseConfigObject(absl::string_view text, absl::string_view path) {
  if (JsonNestsDeeperThan(text, kDepthMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has more than ", kDepthMax, " levels of nested objects and lists"));
  }
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON object"));
  return json;
}

std::string TorchTypeName(absl::string_view dtype) {
  if (dtype == "F64") return "float64";
  if (dtype == "F16") return "float16";
  return dtype == "BF16" ? "bfloat16" : "float32";
}

}  // namespace trainyard
