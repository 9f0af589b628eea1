#include "worker/checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/hash.h"
#include "common/status_macros.h"
#include "worker/checkpoint/safetensors.h"

namespace trainyard {
namespace {

using Json = nlohmann::ordered_json;

// The text begins so, with 32 hex digits after it: that is where the hash stands, whatever else the file holds.
constexpr absl::string_view kHead = "{\n \"hash\": \"";
constexpr size_t kHashDigits = 32;

absl::Status Wrong(absl::string_view what) { return absl::DataLossError(absl::StrCat("manifest: ", what)); }

// Reads keys of one object, remembers the first problem, and at the end says whether any key was left over.
class ObjectReader {
 public:
  ObjectReader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) Fail("is not an object");
  }

  void Read(const char* key, std::string& value) {
    if (const Json* found = Take(key, "a string", &Json::is_string)) value = found->get<std::string>();
  }
  void Read(const char* key, uint64_t& value) {
    if (const Json* found = Take(key, "a count", &Json::is_number_unsigned)) value = found->get<uint64_t>();
  }
  void Read(const char* key, double& value) {
    if (const Json* found = Take(key, "a number", &Json::is_number)) value = found->get<double>();
  }
  // Whether a key is there that need not be.
  bool Has(const char* key) const { return json_.is_object() && json_.contains(key); }
  void Read(const char* key, std::vector<int64_t>& values) {
    const Json* found = Take(key, "a list", &Json::is_array);
    if (found == nullptr) return;
    for (const Json& value : *found) {
      if (!value.is_number_unsigned()) return Fail(absl::StrCat("'", key, "' holds what is not a count"));
      values.push_back(value.get<int64_t>());
    }
  }
  void ReadRange(const char* key, uint64_t& first, uint64_t& last) {
    std::vector<int64_t> values;
    Read(key, values);
    if (values.size() != 2) return Fail(absl::StrCat("'", key, "' is not two counts"));
    first = static_cast<uint64_t>(values[0]);
    last = static_cast<uint64_t>(values[1]);
  }
  // The object or list at `key`; an empty one after an error.
  const Json& Inner(const char* key, bool list) {
    static const Json& nothing = *new Json();
    const Json* found = list ? Take(key, "a list", &Json::is_array) : Take(key, "an object", &Json::is_object);
    return found == nullptr ? nothing : *found;
  }

  absl::Status Finish() {
    if (status_.ok() && num_taken_ != json_.size()) Fail("has keys this version does not know");
    return status_;
  }

 private:
  const Json* Take(const char* key, const char* expected, bool (Json::*is)() const noexcept) {
    if (!status_.ok()) return nullptr;
    auto found = json_.find(key);
    if (found == json_.end() || !((*found).*is)()) {
      Fail(absl::StrCat("'", key, "' is not there, or is not ", expected));
      return nullptr;
    }
    ++num_taken_;
    return &*found;
  }
  void Fail(absl::string_view what) {
    if (status_.ok()) status_ = Wrong(absl::StrCat(where_, " ", what));
  }

  const Json& json_;
  const std::string where_;
  size_t num_taken_ = 0;
  absl::Status status_;
};

Json PieceJson(const ManifestPiece& piece) {
  return {{"file", piece.file},
          {"start", piece.start},
          {"size", piece.size},
          {"elements", {piece.first_element, piece.last_element}},
          {"bytes", {piece.first_byte, piece.last_byte}},
          {"hash", piece.hash}};
}

Json TensorJson(const ManifestTensor& tensor) {
  Json pieces = Json::array();
  for (const ManifestPiece& piece : tensor.pieces) pieces.push_back(PieceJson(piece));
  return {{"name", tensor.name},
          {"role", tensor.role},
          {"dtype", tensor.dtype},
          {"shape", tensor.shape},
          {"pieces", pieces}};
}

absl::StatusOr<ManifestTensor> ReadTensor(const Json& json) {
  ManifestTensor tensor;
  ObjectReader reader(json, "tensor");
  reader.Read("name", tensor.name);
  reader.Read("role", tensor.role);
  reader.Read("dtype", tensor.dtype);
  reader.Read("shape", tensor.shape);
  const Json& pieces = reader.Inner("pieces", /*list=*/true);
  RETURN_IF_ERROR(reader.Finish());
  for (const Json& entry : pieces) {
    ManifestPiece piece;
    ObjectReader piece_reader(entry, absl::StrCat("a piece of '", tensor.name, "'"));
    piece_reader.Read("file", piece.file);
    piece_reader.Read("start", piece.start);
    piece_reader.Read("size", piece.size);
    piece_reader.ReadRange("elements", piece.first_element, piece.last_element);
    piece_reader.ReadRange("bytes", piece.first_byte, piece.last_byte);
    piece_reader.Read("hash", piece.hash);
    RETURN_IF_ERROR(piece_reader.Finish());
    tensor.pieces.push_back(std::move(piece));
  }
  return tensor;
}

bool BoxesMeet(const ManifestPiece& a, const ManifestPiece& b) {
  for (size_t d = 0; d < a.start.size(); ++d) {
    if (a.start[d] >= b.start[d] + b.size[d] || b.start[d] >= a.start[d] + a.size[d]) return false;
  }
  return true;
}

// Two pieces share an element only when their boxes meet; of one and the same box, only when their ranges do.
bool PiecesMeet(const ManifestPiece& a, const ManifestPiece& b) {
  if (a.start == b.start && a.size == b.size) {
    return a.first_element < b.last_element && b.first_element < a.last_element;
  }
  return BoxesMeet(a, b);
}

absl::Status CheckPiece(const ManifestTensor& tensor, const ManifestPiece& piece, const Manifest& manifest) {
  std::string where = absl::StrCat(tensor.role, " '", tensor.name, "' in ", piece.file);
  auto file = std::find_if(manifest.files.begin(), manifest.files.end(),
                           [&](const ManifestFile& candidate) { return candidate.name == piece.file; });
  if (file == manifest.files.end()) return Wrong(absl::StrCat(where, ": that file is not listed"));
  bool fits = piece.start.size() == tensor.shape.size() && piece.size.size() == tensor.shape.size();
  for (size_t d = 0; fits && d < tensor.shape.size(); ++d) {
    fits = piece.start[d] <= tensor.shape[d] && piece.size[d] <= tensor.shape[d] - piece.start[d];
  }
  if (!fits) {
    return Wrong(absl::StrCat(where, ": box ", ShapeText(piece.start), " + ", ShapeText(piece.size), " is not within ",
                              ShapeText(tensor.shape)));
  }
  ASSIGN_OR_RETURN(uint64_t box, CountElements(piece.size), << where);
  if (piece.first_element > piece.last_element || piece.last_element > box) {
    return Wrong(
        absl::StrCat(where, ": elements [", piece.first_element, ", ", piece.last_element, ") of a box of ", box));
  }
  uint64_t bytes = (piece.last_element - piece.first_element) * DtypeBytes(tensor.dtype);
  if (piece.last_byte > file->bytes || piece.first_byte > piece.last_byte ||
      piece.last_byte - piece.first_byte != bytes) {
    return Wrong(absl::StrCat(where, ": bytes [", piece.first_byte, ", ", piece.last_byte, ") for ", bytes,
                              " in a file of ", file->bytes));
  }
  return absl::OkStatus();
}

// Every element of the tensor in exactly one piece: none shared, and as many as there are.
absl::Status CheckTensor(const ManifestTensor& tensor, const Manifest& manifest) {
  std::string where = absl::StrCat(tensor.role, " '", tensor.name, "'");
  if (DtypeBytes(tensor.dtype) == 0) return Wrong(absl::StrCat(where, " has unknown dtype '", tensor.dtype, "'"));
  ASSIGN_OR_RETURN(uint64_t elements, CountElements(tensor.shape), << where);
  uint64_t covered = 0;
  for (size_t i = 0; i < tensor.pieces.size(); ++i) {
    RETURN_IF_ERROR(CheckPiece(tensor, tensor.pieces[i], manifest));
    covered += tensor.pieces[i].last_element - tensor.pieces[i].first_element;
    for (size_t j = 0; j < i; ++j) {
      if (PiecesMeet(tensor.pieces[i], tensor.pieces[j])) return Wrong(absl::StrCat(where, " has pieces that overlap"));
    }
  }
  if (covered != elements) {
    return Wrong(absl::StrCat(where, " has ", elements, " elements, its pieces hold ", covered));
  }
  return absl::OkStatus();
}

absl::Status CheckContent(const Manifest& manifest) {
  std::set<std::string> names;
  for (const ManifestFile& file : manifest.files) {
    bool plain = !file.name.empty() && file.name != "." && file.name != ".." && !absl::StrContains(file.name, '/');
    if (!plain) return Wrong(absl::StrCat("'", file.name, "' is not the name of a file"));
    if (!names.insert(file.name).second) return Wrong(absl::StrCat("file '", file.name, "' is listed twice"));
  }
  std::set<std::string> tensors;
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (!tensors.insert(absl::StrCat(tensor.role, " ", tensor.name)).second) {
      return Wrong(absl::StrCat(tensor.role, " '", tensor.name, "' is listed twice"));
    }
    RETURN_IF_ERROR(CheckTensor(tensor, manifest));
  }
  return absl::OkStatus();
}

absl::Status ReadBuckets(const Json& json, Manifest& manifest) {
  for (const Json& bucket : json) {
    std::vector<std::string>& names = manifest.bucket_order.emplace_back();
    if (!bucket.is_array()) return Wrong("a bucket is not a list of names");
    for (const Json& name : bucket) {
      if (!name.is_string()) return Wrong("a bucket is not a list of names");
      names.push_back(name.get<std::string>());
    }
  }
  return absl::OkStatus();
}

absl::Status ReadDataList(const Json& json, ManifestData& data) {
  for (const Json& entry : json) {
    ManifestDataFile& file = data.list.emplace_back();
    ObjectReader reader(entry, "a file of the data");
    reader.Read("path", file.path);
    reader.Read("bytes", file.bytes);
    reader.Read("hash", file.hash);
    RETURN_IF_ERROR(reader.Finish());
  }
  return absl::OkStatus();
}

absl::Status ReadNonfinite(const Json& json, Manifest& manifest) {
  for (const Json& name : json) {
    if (!name.is_string()) return Wrong("'nonfinite' is not a list of names");
    manifest.nonfinite.push_back(name.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadFiles(const Json& json, Manifest& manifest) {
  for (const Json& entry : json) {
    ManifestFile& file = manifest.files.emplace_back();
    ObjectReader reader(entry, "a file");
    reader.Read("name", file.name);
    reader.Read("bytes", file.bytes);
    reader.Read("hash", file.hash);
    RETURN_IF_ERROR(reader.Finish());
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> ReadManifest(const Json& json) {
  ObjectReader top(json, "the file");
  std::string hash, format;
  uint64_t version = 0;
  top.Read("hash", hash);
  top.Read("format", format);
  top.Read("version", version);
  if (format == "trainyard-checkpoint" && version > kManifestVersion) {
    return absl::UnimplementedError(absl::StrCat("manifest: it is of version ", version, ", this program reads up to ",
                                                 kManifestVersion, "; use a newer trainyard"));
  }
  if (format != "trainyard-checkpoint" || version == 0) {
    return Wrong(absl::StrCat("it is of format '", format, "', version ", version));
  }
  Manifest m;
  top.Read("step", m.step);
  top.Read("generation", m.generation);

  ObjectReader job(top.Inner("job", false), "job");
  job.Read("id", m.job_id);
  job.Read("name", m.job_name);
  ObjectReader spec(top.Inner("spec", false), "spec");
  std::string base64;
  spec.Read("base64", base64);
  spec.Read("digest", m.spec_digest);
  ObjectReader random(top.Inner("random", false), "random");
  random.Read("seed", m.seed);
  ObjectReader optimizer(top.Inner("optimizer", false), "optimizer");
  optimizer.Read("updates", m.optimizer_updates);
  if (optimizer.Has("loss_scale")) {
    ObjectReader scale(optimizer.Inner("loss_scale", false), "optimizer.loss_scale");
    scale.Read("scale", m.loss_scale.scale);
    scale.Read("good_steps", m.loss_scale.good_steps);
    scale.Read("hysteresis_left", m.loss_scale.hysteresis_left);
    RETURN_IF_ERROR(scale.Finish());
  }
  ObjectReader data(top.Inner("data", false), "data");
  data.Read("consumed_samples", m.data.consumed_samples);
  data.Read("epoch", m.data.epoch);
  data.Read("files", m.data.num_files);
  data.Read("bytes", m.data.num_bytes);
  data.Read("files_hash", m.data.files_hash);
  data.Read("content_hash", m.data.content_hash);
  if (version > 1) {
    RETURN_IF_ERROR(ReadDataList(data.Inner("list", true), m.data));
    RETURN_IF_ERROR(ReadNonfinite(top.Inner("nonfinite", true), m));
  }
  ObjectReader layout(top.Inner("layout", false), "layout");
  layout.Read("strategy", m.strategy);
  layout.Read("world_size", m.world_size);
  const Json& buckets = layout.Inner("bucket_order", true);
  const Json& files = top.Inner("files", true);
  const Json& tensors = top.Inner("tensors", true);
  for (ObjectReader* reader : {&top, &job, &spec, &random, &optimizer, &data, &layout})
    RETURN_IF_ERROR(reader->Finish());

  if (!absl::Base64Unescape(base64, &m.spec) || HashHex(m.spec) != m.spec_digest) {
    return Wrong("the spec does not have the digest that stands beside it");
  }
  RETURN_IF_ERROR(ReadBuckets(buckets, m));
  RETURN_IF_ERROR(ReadFiles(files, m));
  for (const Json& entry : tensors) {
    ASSIGN_OR_RETURN(ManifestTensor tensor, ReadTensor(entry));
    m.tensors.push_back(std::move(tensor));
  }
  return m;
}

}  // namespace

std::string ManifestText(const Manifest& m) {
  Json files = Json::array();
  for (const ManifestFile& file : m.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"hash", file.hash}});
  }
  Json tensors = Json::array();
  for (const ManifestTensor& tensor : m.tensors) tensors.push_back(TensorJson(tensor));
  Json list = Json::array();
  for (const ManifestDataFile& file : m.data.list) {
    list.push_back({{"path", file.path}, {"bytes", file.bytes}, {"hash", file.hash}});
  }
  Json json = {
      {"hash", std::string(kHashDigits, '0')},
      {"format", "trainyard-checkpoint"},
      {"version", kManifestVersion},
      {"step", m.step},
      {"generation", m.generation},
      {"job", {{"id", m.job_id}, {"name", m.job_name}}},
      {"spec", {{"base64", absl::Base64Escape(m.spec)}, {"digest", m.spec_digest}}},
      {"random", {{"seed", m.seed}}},
      {"optimizer", {{"updates", m.optimizer_updates}}},
      {"data",
       {{"consumed_samples", m.data.consumed_samples},
        {"epoch", m.data.epoch},
        {"files", m.data.num_files},
        {"bytes", m.data.num_bytes},
        {"files_hash", m.data.files_hash},
        {"content_hash", m.data.content_hash},
        {"list", list}}},
      {"layout", {{"strategy", m.strategy}, {"world_size", m.world_size}, {"bucket_order", m.bucket_order}}},
      {"nonfinite", m.nonfinite},
      {"files", files},
      {"tensors", tensors},
  };
  if (m.loss_scale.scale > 0) {
    json["optimizer"]["loss_scale"] = {{"scale", m.loss_scale.scale},
                                       {"good_steps", m.loss_scale.good_steps},
                                       {"hysteresis_left", m.loss_scale.hysteresis_left}};
  }
  std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  text.replace(kHead.size(), kHashDigits, HashHex(text));
  return text;
}

std::string ManifestHash(absl::string_view text) {
  if (!absl::StartsWith(text, kHead) || text.size() < kHead.size() + kHashDigits) return "";
  return std::string(text.substr(kHead.size(), kHashDigits));
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view text) {
  std::string hash = ManifestHash(text);
  if (hash.empty()) return Wrong("it does not begin with its own hash");
  std::string zeroed(text);
  zeroed.replace(kHead.size(), kHashDigits, std::string(kHashDigits, '0'));
  if (HashHex(zeroed) != hash) {
    return Wrong(absl::StrCat("its bytes have the hash ", HashHex(zeroed), ", it says ", hash));
  }
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Wrong("it is not JSON");
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(json));
  RETURN_IF_ERROR(CheckContent(manifest));
  return manifest;
}

}  // namespace trainyard
