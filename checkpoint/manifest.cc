#include "checkpoint/manifest.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/manifest_json.h"
#include "checkpoint/safetensors.h"
#include "common/box.h"
#include "common/hash.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

using manifest_json::Json;
using manifest_json::ObjectReader;

constexpr char kManifestDocument[] = "manifest";

std::string InManifest(absl::string_view text) { return absl::StrCat(kManifestDocument, ": ", text); }

absl::Status ManifestError(absl::string_view problem) { return absl::DataLossError(InManifest(problem)); }

// The length of each file, by name.
using FileBytes = absl::flat_hash_map<std::string, uint64_t>;

absl::Status CheckPiece(const ManifestTensor& tensor, const ManifestPiece& piece, const FileBytes& files) {
  std::string where = absl::StrCat(tensor.role, " '", tensor.name, "' in ", piece.file);
  auto file = files.find(piece.file);
  if (file == files.end()) return ManifestError(absl::StrCat(where, ": the manifest does not list that file"));
  if (!IsWithin({.start = piece.start, .size = piece.size}, tensor.shape)) {
    return ManifestError(absl::StrCat(where, ": box ", ShapeText(piece.start), " + ", ShapeText(piece.size),
                                      " is not within ", ShapeText(tensor.shape)));
  }
  ASSIGN_OR_RETURN(uint64_t box, CountElements(piece.size), << where);
  if (piece.first_element > piece.last_element || piece.last_element > box) {
    return ManifestError(absl::StrCat(where, ": elements [", piece.first_element, ", ", piece.last_element,
                                      ") are not within a box of ", box, " elements"));
  }
  // CountElements limits the number of elements, so this product cannot overflow.
  uint64_t bytes = (piece.last_element - piece.first_element) * DtypeBytes(tensor.dtype);
  if (piece.last_byte > file->second || piece.first_byte > piece.last_byte ||
      piece.last_byte - piece.first_byte != bytes) {
    return ManifestError(absl::StrCat(where, ": expected a range of ", bytes, " bytes in a file of ", file->second,
                                      " bytes, found [", piece.first_byte, ", ", piece.last_byte, ")"));
  }
  return absl::OkStatus();
}

// Returns whether any two pieces may share an element: pieces of the same box if their ranges overlap, other pieces if
// their boxes overlap. There may be many boxes, and many pieces of one box, so not every pair is compared.
bool AnyMayOverlap(const std::vector<ManifestPiece>& pieces) {
  std::vector<const ManifestPiece*> sorted;
  for (const ManifestPiece& piece : pieces) {
    if (piece.first_element < piece.last_element) sorted.push_back(&piece);
  }
  std::sort(sorted.begin(), sorted.end(), [](const ManifestPiece* a, const ManifestPiece* b) {
    return std::tie(a->start, a->size, a->first_element) < std::tie(b->start, b->size, b->first_element);
  });
  std::vector<Box> boxes;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const ManifestPiece& piece = *sorted[i];
    const bool same_box = i > 0 && piece.start == sorted[i - 1]->start && piece.size == sorted[i - 1]->size;
    if (!same_box) {
      boxes.push_back({.start = piece.start, .size = piece.size});
    } else if (piece.first_element < sorted[i - 1]->last_element) {
      return true;
    }
  }
  return AnyIntersect(std::move(boxes));
}

// Checks that every element is in exactly one piece: no pieces overlap, and their lengths add up to the tensor.
absl::Status CheckTensor(const ManifestTensor& tensor, const FileBytes& files) {
  std::string where = absl::StrCat(tensor.role, " '", tensor.name, "'");
  if (DtypeBytes(tensor.dtype) == 0)
    return ManifestError(absl::StrCat(where, " has unknown dtype '", tensor.dtype, "'"));
  const absl::StatusOr<uint64_t> counted = CountElements(tensor.shape);
  if (!counted.ok()) return ManifestError(absl::StrCat(where, ": ", counted.status().message()));
  const uint64_t elements = *counted;
  uint64_t covered = 0;
  for (const ManifestPiece& piece : tensor.pieces) {
    RETURN_IF_ERROR(CheckPiece(tensor, piece, files));
    covered += piece.last_element - piece.first_element;
  }
  if (AnyMayOverlap(tensor.pieces)) return ManifestError(absl::StrCat(where, " has pieces that overlap"));
  if (covered != elements) {
    return ManifestError(absl::StrCat(where, " has ", elements, " elements, but its pieces hold ", covered));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckManifest(const Manifest& manifest) {
  FileBytes files;
  for (const ManifestFile& file : manifest.files) {
    bool plain = !file.name.empty() && file.name != "." && file.name != ".." && !absl::StrContains(file.name, '/');
    if (!plain) return ManifestError(absl::StrCat("'", file.name, "' is not the name of a file"));
    if (!files.emplace(file.name, file.bytes).second)
      return ManifestError(absl::StrCat("file '", file.name, "' is listed twice"));
  }
  std::set<std::string> tensors;
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (!tensors.insert(absl::StrCat(tensor.role, " ", tensor.name)).second) {
      return ManifestError(absl::StrCat(tensor.role, " '", tensor.name, "' is listed twice"));
    }
    RETURN_IF_ERROR(CheckTensor(tensor, files));
  }
  return absl::OkStatus();
}

namespace {

absl::Status ReadBuckets(const Json& json, Manifest& manifest) {
  for (const Json& bucket : json) {
    std::vector<std::string>& names = manifest.bucket_order.emplace_back();
    if (!bucket.is_array()) return ManifestError("a bucket is not a list of names");
    for (const Json& name : bucket) {
      if (!name.is_string()) return ManifestError("a bucket is not a list of names");
      names.push_back(name.get<std::string>());
    }
  }
  return absl::OkStatus();
}

absl::Status ReadDataList(const Json& json, ManifestData& data) {
  for (const Json& entry : json) {
    ManifestDataFile& file = data.list.emplace_back();
    ObjectReader reader(entry, InManifest("an entry of data.list"));
    reader.Read("path", file.path);
    reader.Read("bytes", file.bytes);
    reader.Read("hash", file.hash);
    RETURN_IF_ERROR(reader.Finish());
  }
  return absl::OkStatus();
}

void ReadIfPresent(ObjectReader& reader, const char* key, std::optional<double>& value) {
  if (reader.Has(key)) reader.Read(key, value.emplace());
}

absl::Status ReadEvaluation(const Json& json, uint64_t version, ManifestEvaluation& evaluation) {
  ObjectReader reader(json, InManifest("evaluation"));
  ReadIfPresent(reader, "loss", evaluation.loss);
  reader.Read("tokens", evaluation.tokens);
  if (version > 3 && reader.Has("data_hash")) reader.Read("data_hash", evaluation.data_hash);
  ReadIfPresent(reader, "best_loss", evaluation.best_loss);
  reader.Read("best_step", evaluation.best_step);
  reader.Read("without_improvement", evaluation.without_improvement);
  ReadIfPresent(reader, "lowest_saved", evaluation.lowest_saved);
  return reader.Finish();
}

Json EvaluationJson(const ManifestEvaluation& evaluation) {
  Json json = Json::object();
  if (evaluation.loss.has_value()) json["loss"] = *evaluation.loss;
  json["tokens"] = evaluation.tokens;
  if (!evaluation.data_hash.empty()) json["data_hash"] = evaluation.data_hash;
  if (evaluation.best_loss.has_value()) json["best_loss"] = *evaluation.best_loss;
  json["best_step"] = evaluation.best_step;
  json["without_improvement"] = evaluation.without_improvement;
  if (evaluation.lowest_saved.has_value()) json["lowest_saved"] = *evaluation.lowest_saved;
  return json;
}

absl::StatusOr<Manifest> ReadManifest(const Json& json) {
  ObjectReader top(json, InManifest("the file"));
  std::string hash, format;
  uint64_t version = 0;
  top.Read("hash", hash);
  top.Read("format", format);
  top.Read("version", version);
  if (format == "trainyard-checkpoint" && version > kManifestVersion) {
    return absl::UnimplementedError(
        InManifest(absl::StrCat("its version is ", version, ", but this program reads versions up to ",
                                kManifestVersion, "; use a newer trainyard")));
  }
  if (format != "trainyard-checkpoint" || version == 0) {
    return ManifestError(absl::StrCat("expected format 'trainyard-checkpoint' of version 1 to ", kManifestVersion,
                                      ", found format '", format, "' of version ", version));
  }
  Manifest m;
  top.Read("step", m.step);
  top.Read("generation", m.generation);

  ObjectReader job(top.Inner("job", false), InManifest("job"));
  job.Read("id", m.job_id);
  job.Read("name", m.job_name);
  ObjectReader spec(top.Inner("spec", false), InManifest("spec"));
  std::string base64;
  spec.Read("base64", base64);
  spec.Read("digest", m.spec_digest);
  ObjectReader random(top.Inner("random", false), InManifest("random"));
  random.Read("seed", m.seed);
  ObjectReader optimizer(top.Inner("optimizer", false), InManifest("optimizer"));
  optimizer.Read("updates", m.optimizer_updates);
  if (optimizer.Has("loss_scale")) {
    ObjectReader scale(optimizer.Inner("loss_scale", false), InManifest("optimizer.loss_scale"));
    scale.Read("scale", m.loss_scale.scale);
    scale.Read("good_steps", m.loss_scale.good_steps);
    scale.Read("hysteresis_left", m.loss_scale.hysteresis_left);
    RETURN_IF_ERROR(scale.Finish());
  }
  ObjectReader data(top.Inner("data", false), InManifest("data"));
  data.Read("consumed_samples", m.data.consumed_samples);
  data.Read("epoch", m.data.epoch);
  data.Read("files", m.data.num_files);
  data.Read("bytes", m.data.num_bytes);
  data.Read("files_hash", m.data.files_hash);
  data.Read("content_hash", m.data.content_hash);
  if (version > 1) {
    RETURN_IF_ERROR(ReadDataList(data.Inner("list", true), m.data));
    top.Read("nonfinite", m.nonfinite);
  }
  if (version > 4 && data.Has("samples")) data.Read("samples", m.data.samples);
  if (version > 2 && top.Has("evaluation")) {
    RETURN_IF_ERROR(ReadEvaluation(top.Inner("evaluation", false), version, m.evaluation.emplace()));
  }
  ObjectReader layout(top.Inner("layout", false), InManifest("layout"));
  layout.Read("strategy", m.strategy);
  layout.Read("world_size", m.world_size);
  const Json& buckets = layout.Inner("bucket_order", true);
  const Json& files = top.Inner("files", true);
  const Json& tensors = top.Inner("tensors", true);
  for (ObjectReader* reader : {&top, &job, &spec, &random, &optimizer, &data, &layout})
    RETURN_IF_ERROR(reader->Finish());

  if (!absl::Base64Unescape(base64, &m.spec) || HashHex(m.spec) != m.spec_digest) {
    return ManifestError("the spec does not match its digest");
  }
  RETURN_IF_ERROR(ReadBuckets(buckets, m));
  RETURN_IF_ERROR(manifest_json::ReadFiles(files, kManifestDocument, m.files));
  RETURN_IF_ERROR(manifest_json::ReadTensors(tensors, kManifestDocument, m.tensors));
  return m;
}

}  // namespace

std::string ManifestText(const Manifest& m) {
  Json list = Json::array();
  for (const ManifestDataFile& file : m.data.list) {
    list.push_back({{"path", file.path}, {"bytes", file.bytes}, {"hash", file.hash}});
  }
  Json json = {
      {"hash", ""},
      {"format", "trainyard-checkpoint"},
      {"version", m.data.samples.empty() ? kManifestVersionWithoutSamples : kManifestVersion},
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
      {"files", manifest_json::FilesJson(m.files)},
      {"tensors", manifest_json::TensorsJson(m.tensors)},
  };
  if (m.loss_scale.scale > 0) {
    json["optimizer"]["loss_scale"] = {{"scale", m.loss_scale.scale},
                                       {"good_steps", m.loss_scale.good_steps},
                                       {"hysteresis_left", m.loss_scale.hysteresis_left}};
  }
  if (!m.data.samples.empty()) json["data"]["samples"] = m.data.samples;
  if (m.evaluation.has_value()) json["evaluation"] = EvaluationJson(*m.evaluation);
  return manifest_json::TextWithHash(std::move(json));
}

std::string ManifestHash(absl::string_view text) { return manifest_json::HashInText(text); }

absl::StatusOr<Manifest> ParseManifest(absl::string_view text) {
  ASSIGN_OR_RETURN(Json json, manifest_json::ParseWithHash(text, kManifestDocument));
  ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(json));
  RETURN_IF_ERROR(CheckManifest(manifest));
  return manifest;
}

}  // namespace trainyard
