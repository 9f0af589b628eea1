// One value of a tokenizer.json, with functions that read it. Errors are added to a list of problems, so that all of
// them are reported together. Not thread-safe.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tokenizers/pattern.h"

namespace trainyard {

class JsonPart {
 public:
  // `json` may be of any kind; anything but an object has no values.
  JsonPart(const nlohmann::json& json, std::string where, std::vector<std::string>& problems)
      : json_(json), where_(std::move(where)), problems_(problems) {}

  const std::string& where() const { return where_; }
  bool is_null() const { return json_.is_null(); }
  bool Has(const char* key) const;

  // Return the value of `key`, or `otherwise` if it is absent or null. A value of another type adds a problem.
  bool Bool(const char* key, bool otherwise) const;
  std::string String(const char* key, absl::string_view otherwise = "") const;
  int64_t Int(const char* key, int64_t otherwise) const;
  // The value {"String": text} or {"Regex": text} of `key`.
  Pattern PatternAt(const char* key) const;

  JsonPart At(const char* key) const;
  // The elements of an array. A value that is neither an array nor absent adds a problem.
  std::vector<JsonPart> Elements(const char* key) const;
  const nlohmann::json& json() const { return json_; }

  void Problem(absl::string_view what) const;
  // Adds the problem that `what`, such as "normalizer", has a type that is not supported. `known`: the supported types.
  void Unsupported(absl::string_view what, absl::string_view type, absl::string_view known) const;

 private:
  const nlohmann::json& json_;
  std::string where_;
  std::vector<std::string>& problems_;
};

}  // namespace trainyard
