// The text form that manifests and parts share: JSON whose first key is the hash of the text, computed with zeros in
// place of the hash. Read strictly. Only manifest.cc and part.cc include this. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/manifest.h"

namespace trainyard::manifest_json {

using Json = nlohmann::ordered_json;

// Returns `json`, whose first key must be "hash", as text that contains its hash and ends with a line feed.
std::string TextWithHash(Json json);
// Returns the hash at the beginning of such a text; empty if there is none.
std::string HashInText(absl::string_view text);
// Fails with DataLoss, in a message that begins with `document`, if the text does not begin with a hash, if that
// hash is not the hash of the text, or if the text is not JSON.
absl::StatusOr<Json> ParseWithHash(absl::string_view text, absl::string_view document);

// Reads keys of one object, records the first problem, and at the end checks that every key was read. `json` must
// outlive the reader.
class ObjectReader {
 public:
  // Every problem begins with `where`: "manifest: tensor".
  ObjectReader(const Json& json, std::string where);

  void Read(const char* key, std::string& value);
  void Read(const char* key, uint64_t& value);
  void Read(const char* key, double& value);
  void Read(const char* key, std::vector<int64_t>& values);
  void Read(const char* key, std::vector<std::string>& values);
  void ReadRange(const char* key, uint64_t& first, uint64_t& last);
  // Returns whether an optional key is present.
  bool Has(const char* key) const { return json_.is_object() && json_.contains(key); }
  // Returns the object or list at `key`; an empty one after an error.
  const Json& Inner(const char* key, bool list);

  // Fails with DataLoss, which describes the first problem.
  absl::Status Finish();

 private:
  const Json* Find(const char* key, const char* expected, bool (Json::*is)() const noexcept);
  void Fail(absl::string_view what);

  const Json& json_;
  const std::string where_;
  size_t num_read_ = 0;
  absl::Status status_;
};

Json FilesJson(const std::vector<ManifestFile>& files);
Json TensorsJson(const std::vector<ManifestTensor>& tensors);
absl::Status ReadFiles(const Json& json, absl::string_view document, std::vector<ManifestFile>& files);
absl::Status ReadTensors(const Json& json, absl::string_view document, std::vector<ManifestTensor>& tensors);

}  // namespace trainyard::manifest_json
