#include "checkpoint/manifest_json.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/hash.h"
#include "common/status_macros.h"

namespace trainyard::manifest_json {
namespace {

// Every text begins with these characters, followed by the 32 hex digits of the hash.
constexpr absl::string_view kHead = "{\n \"hash\": \"";
constexpr size_t kHashDigits = 32;

absl::Status DocumentError(absl::string_view document, absl::string_view problem) {
  return absl::DataLossError(absl::StrCat(document, ": ", problem));
}

Json PieceJson(const ManifestPiece& piece) {
  return {{"file", piece.file},
          {"start", piece.start},
          {"size", piece.size},
          {"elements", {piece.first_element, piece.last_element}},
          {"bytes", {piece.first_byte, piece.last_byte}},
          {"hash", piece.hash}};
}

absl::StatusOr<ManifestPiece> ReadPiece(const Json& json, std::string where) {
  ManifestPiece piece;
  ObjectReader reader(json, std::move(where));
  reader.Read("file", piece.file);
  reader.Read("start", piece.start);
  reader.Read("size", piece.size);
  reader.ReadRange("elements", piece.first_element, piece.last_element);
  reader.ReadRange("bytes", piece.first_byte, piece.last_byte);
  reader.Read("hash", piece.hash);
  RETURN_IF_ERROR(reader.Finish());
  return piece;
}

}  // namespace

std::string TextWithHash(Json json) {
  json["hash"] = std::string(kHashDigits, '0');
  std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  text.replace(kHead.size(), kHashDigits, HashHex(text));
  return text;
}

std::string HashInText(absl::string_view text) {
  if (!absl::StartsWith(text, kHead) || text.size() < kHead.size() + kHashDigits) return "";
  return std::string(text.substr(kHead.size(), kHashDigits));
}

absl::StatusOr<Json> ParseWithHash(absl::string_view text, absl::string_view document) {
  const std::string hash = HashInText(text);
  if (hash.empty()) return DocumentError(document, "it does not begin with its own hash");
  std::string zeroed(text);
  zeroed.replace(kHead.size(), kHashDigits, std::string(kHashDigits, '0'));
  if (HashHex(zeroed) != hash) {
    return DocumentError(
        document, absl::StrCat("its bytes have the hash ", HashHex(zeroed), ", but it begins with the hash ", hash));
  }
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return DocumentError(document, "it is not JSON");
  return json;
}

ObjectReader::ObjectReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
  if (!json.is_object()) Fail("is not an object");
}

void ObjectReader::Read(const char* key, std::string& value) {
  if (const Json* found = Find(key, "a string", &Json::is_string)) value = found->get<std::string>();
}

void ObjectReader::Read(const char* key, uint64_t& value) {
  if (const Json* found = Find(key, "a count", &Json::is_number_unsigned)) value = found->get<uint64_t>();
}

void ObjectReader::Read(const char* key, double& value) {
  if (const Json* found = Find(key, "a number", &Json::is_number)) value = found->get<double>();
}

void ObjectReader::Read(const char* key, std::vector<int64_t>& values) {
  const Json* found = Find(key, "a list", &Json::is_array);
  if (found == nullptr) return;
  for (const Json& value : *found) {
    if (!value.is_number_unsigned()) return Fail(absl::StrCat("'", key, "' contains a value that is not a count"));
    values.push_back(value.get<int64_t>());
  }
}

void ObjectReader::Read(const char* key, std::vector<std::string>& values) {
  const Json* found = Find(key, "a list", &Json::is_array);
  if (found == nullptr) return;
  for (const Json& value : *found) {
    if (!value.is_string()) return Fail(absl::StrCat("'", key, "' is not a list of names"));
    values.push_back(value.get<std::string>());
  }
}

void ObjectReader::ReadRange(const char* key, uint64_t& first, uint64_t& last) {
  std::vector<int64_t> values;
  Read(key, values);
  if (values.size() != 2) return Fail(absl::StrCat("'", key, "' is not a list of two counts"));
  first = static_cast<uint64_t>(values[0]);
  last = static_cast<uint64_t>(values[1]);
}

const Json& ObjectReader::Inner(const char* key, bool list) {
  static const Json& nothing = *new Json();
  const Json* found = list ? Find(key, "a list", &Json::is_array) : Find(key, "an object", &Json::is_object);
  return found == nullptr ? nothing : *found;
}

absl::Status ObjectReader::Finish() {
  if (status_.ok() && num_read_ != json_.size()) Fail("has keys that this version does not know");
  return status_;
}

const Json* ObjectReader::Find(const char* key, const char* expected, bool (Json::*is)() const noexcept) {
  if (!status_.ok()) return nullptr;
  auto found = json_.find(key);
  if (found == json_.end() || !((*found).*is)()) {
    Fail(absl::StrCat("'", key, "' is missing or not ", expected));
    return nullptr;
  }
  ++num_read_;
  return &*found;
}

void ObjectReader::Fail(absl::string_view what) {
  if (status_.ok()) status_ = absl::DataLossError(absl::StrCat(where_, " ", what));
}

Json FilesJson(const std::vector<ManifestFile>& files) {
  Json json = Json::array();
  for (const ManifestFile& file : files) {
    json.push_back({{"name", file.name}, {"bytes", file.bytes}, {"hash", file.hash}});
  }
  return json;
}

Json TensorsJson(const std::vector<ManifestTensor>& tensors) {
  Json json = Json::array();
  for (const ManifestTensor& tensor : tensors) {
    Json pieces = Json::array();
    for (const ManifestPiece& piece : tensor.pieces) pieces.push_back(PieceJson(piece));
    json.push_back({{"name", tensor.name},
                    {"role", tensor.role},
                    {"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"pieces", std::move(pieces)}});
  }
  return json;
}

absl::Status ReadFiles(const Json& json, absl::string_view document, std::vector<ManifestFile>& files) {
  for (const Json& entry : json) {
    ManifestFile& file = files.emplace_back();
    ObjectReader reader(entry, absl::StrCat(document, ": a file"));
    reader.Read("name", file.name);
    reader.Read("bytes", file.bytes);
    reader.Read("hash", file.hash);
    RETURN_IF_ERROR(reader.Finish());
  }
  return absl::OkStatus();
}

absl::Status ReadTensors(const Json& json, absl::string_view document, std::vector<ManifestTensor>& tensors) {
  for (const Json& entry : json) {
    ManifestTensor& tensor = tensors.emplace_back();
    ObjectReader reader(entry, absl::StrCat(document, ": tensor"));
    reader.Read("name", tensor.name);
    reader.Read("role", tensor.role);
    reader.Read("dtype", tensor.dtype);
    reader.Read("shape", tensor.shape);
    const Json& pieces = reader.Inner("pieces", /*list=*/true);
    RETURN_IF_ERROR(reader.Finish());
    for (const Json& piece : pieces) {
      ASSIGN_OR_RETURN(ManifestPiece read,
                       ReadPiece(piece, absl::StrCat(document, ": a piece of '", tensor.name, "'")));
      tensor.pieces.push_back(std::move(read));
    }
  }
  return absl::OkStatus();
}

}  // namespace trainyard::manifest_json
