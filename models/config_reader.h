// Reads keys of config.json and adapter_config.json, and collects the problems. Not thread-safe.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

class ConfigReader {
 public:
  // `json` is an object; it must outlive the reader. `prefix` precedes the keys in messages.
  explicit ConfigReader(const nlohmann::json& json, std::string prefix = "")
      : json_(json), prefix_(std::move(prefix)) {}

  // A whole number from 1 to below 2^30. The second form returns `missing` if the key is missing or null.
  int64_t ReadSize(const char* key);
  int64_t ReadSize(const char* key, int64_t missing);
  // A number above 0.
  double ReadPositive(const char* key, double missing);
  // A number from 0 to below 1.
  double ReadProbability(const char* key, double missing);
  bool ReadFlag(const char* key, bool missing);
  // Checks that the key, unless it is missing or null, has this value.
  void CheckOptional(const char* key, const nlohmann::json& value);

  bool Has(const char* key) const;  // the key exists and is not null
  const nlohmann::json& json() const { return json_; }

  void AddProblem(std::string problem) { problems_.push_back(prefix_ + std::move(problem)); }
  void AddProblem(const char* key, absl::string_view expected);
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  const nlohmann::json& json_;
  const std::string prefix_;
  std::vector<std::string> problems_;
};

// Parses the text of a file that anyone may have written; `path` is for messages. Fails with InvalidArgument if it is
// not a JSON object, or is nested too deeply.
absl::StatusOr<nlohmann::json> ParseConfigObject(absl::string_view text, absl::string_view path);

// "float32" for F32, as torch names the types of safetensors.
std::string TorchTypeName(absl::string_view dtype);

}  // namespace trainyard
