#include "checkpoint/weight_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/dtype_convert.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/json_nesting.h"
#include "common/name_exists.h"
#include "common/plural.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr uint64_t kIndexBytesMax = 64 << 20;
constexpr size_t kFilesMax = 10'000;
constexpr size_t kIndexProblemsShown = 20;
constexpr int kIndexDepthMax = 8;
constexpr size_t kSampledBytes = 4096;  // at the beginning, middle and end of a tensor

bool IsFolder(const std::string& path) {
  struct stat st;
  return stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

// Names the weights that the folder has instead, because most users who see this error have weights in another format.
absl::Status NoWeights(const std::string& folder) {
  std::vector<std::string> parts, other_formats;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    if (absl::EndsWith(name, ".safetensors")) parts.push_back(name);
    for (const char* suffix : {".bin", ".pth", ".pt", ".gguf", ".h5"}) {
      if (absl::EndsWith(name, suffix)) other_formats.push_back(name);
    }
  }
  std::sort(parts.begin(), parts.end());
  std::sort(other_formats.begin(), other_formats.end());
  const std::string save_there = "save the model there with save_pretrained of transformers";
  std::string found = absl::StrCat("; ", save_there);
  if (!parts.empty()) {
    found = absl::StrCat("; it has ", JoinFirst(parts, 5), ": if these are the parts of the model, copy ",
                         kWeightsIndexName, " there, too; otherwise ", save_there);
  } else if (!other_formats.empty()) {
    found = absl::StrCat("; it has ", JoinFirst(other_formats, 5),
                         ", which is another format: open the folder with from_pretrained of transformers and save it "
                         "with save_pretrained");
  }
  return absl::NotFoundError(absl::StrCat(folder, " has neither ", kWeightsName, " nor ", kWeightsIndexName, found));
}

// Returns the file of each tensor. The text is not trusted: any program may have written it.
absl::StatusOr<std::map<std::string, std::string>> ParseWeightMap(const std::string& text, const std::string& path) {
  if (text.empty()) return absl::DataLossError(absl::StrCat(path, " is empty: copy it again from its source"));
  if (JsonNestsDeeperThan(text, kIndexDepthMax)) {
    return absl::DataLossError(absl::StrCat(path, " is not an index: it has more than ", kIndexDepthMax, " levels"));
  }
  std::set<std::string> keys;
  std::vector<std::string> problems;
  const auto check = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    if (event == nlohmann::json::parse_event_t::key && depth == 2 && !keys.insert(parsed.get<std::string>()).second) {
      problems.push_back(absl::StrCat("'", parsed.get<std::string>(), "' occurs twice"));
    }
    return true;
  };
  const nlohmann::json index = nlohmann::json::parse(text, check, /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return absl::DataLossError(
        absl::StrCat(path, " is not an index: expected a JSON object with the object weight_map"));
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const std::string file_name = file.is_string() ? file.get<std::string>() : "";
    if (file_name.empty() || file_name.find('/') != std::string::npos || file_name.find('\0') != std::string::npos ||
        !absl::EndsWith(file_name, ".safetensors")) {
      problems.push_back(absl::StrCat("'", name, "' is not in a file *.safetensors of the same folder, but in '",
                                      file_name.substr(0, 100), "'"));
    } else {
      files[name] = file_name;
    }
  }
  if (files.empty() && problems.empty()) problems.push_back("weight_map is empty");
  if (problems.empty()) return files;
  return absl::DataLossError(absl::StrCat(path, ": ", JoinFirst(problems, kIndexProblemsShown, "; ", "; ", "problem")));
}

}  // namespace

absl::StatusOr<std::unique_ptr<WeightFiles>> WeightFiles::Open(const std::string& path) {
  std::unique_ptr<WeightFiles> files(new WeightFiles(path));
  const std::string single = JoinPath(path, kWeightsName), index = JoinPath(path, kWeightsIndexName);
  // A link whose target is missing counts, so that opening it reports the error: the cache of Hugging Face consists of
  // links.
  if (IsFolder(path) && !NameExists(single)) {
    if (!NameExists(index)) return NoWeights(path);
    RETURN_IF_ERROR(files->OpenIndex(index, path));
    return files;
  }
  std::vector<std::string> problems;  // stays empty: one file names each tensor once
  RETURN_IF_ERROR(files->AddFile(IsFolder(path) ? single : path, problems));
  return files;
}

absl::Status WeightFiles::AddFile(const std::string& path, std::vector<std::string>& problems) {
  ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file, SafetensorsFile::Open(path));
  for (const TensorInfo& info : file->tensors()) {
    auto [it, is_new] = weights_.insert({info.name, {.info = info, .file = file.get()}});
    if (!is_new)
      problems.push_back(absl::StrCat("'", info.name, "' is in ", it->second.file->path(), " and in ", path));
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status WeightFiles::OpenIndex(const std::string& index_path, const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(index_path, kIndexBytesMax));
  ASSIGN_OR_RETURN(auto file_of, ParseWeightMap(text, index_path));
  std::set<std::string> names;
  for (const auto& [name, file] : file_of) names.insert(file);
  if (names.size() > kFilesMax) {
    return absl::DataLossError(
        absl::StrCat(index_path, " names ", names.size(), " files; at most ", kFilesMax, " are accepted"));
  }
  std::vector<std::string> problems;
  for (const std::string& name : names) {
    if (absl::Status added = AddFile(JoinPath(folder, name), problems); !added.ok()) {
      problems.push_back(std::string(added.message()));
    }
  }
  if (problems.empty()) {
    for (const auto& [name, file] : file_of) {
      const Weight* weight = Find(name);
      if (weight != nullptr && weight->file->path() == JoinPath(folder, file)) continue;
      problems.push_back(absl::StrCat("'", name, "' is not in ", file));
    }
  }
  if (problems.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(index_path, ": ", JoinFirst(problems, kIndexProblemsShown, "; ", "; ", "problem")));
}

const Weight* WeightFiles::Find(absl::string_view name) const {
  auto it = weights_.find(name);
  return it == weights_.end() ? nullptr : &it->second;
}

absl::Status WeightFiles::ReadRange(const Weight& weight, uint64_t first, uint64_t count, absl::string_view dtype,
                                    absl::Span<char> out) {
  if (!IsFloating(weight.info.dtype) || !IsFloating(dtype) || out.size() != count * DtypeBytes(dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(weight.info.name, ": cannot read ", count, " values of type ",
                                                   weight.info.dtype, " as ", out.size(), " bytes of ", dtype));
  }
  const uint64_t width = DtypeBytes(weight.info.dtype), elements = (weight.info.end - weight.info.begin) / width;
  if (first > elements || count > elements - first) {
    return absl::OutOfRangeError(
        absl::StrCat(weight.info.name, " has ", elements, " elements; cannot read ", count, " from element ", first));
  }
  ConvertInto(weight.file->Bytes(weight.info).substr(first * width, count * width), weight.info.dtype, dtype, out);
  return absl::OkStatus();
}

std::string WeightFiles::Identity() const {
  Hasher hasher;
  for (const auto& file : files_) {
    const std::string name = file->path().substr(file->path().rfind('/') + 1);
    hasher.Add(absl::StrCat(name, "\n", file->whole().size(), "\n"));
    hasher.Add(file->header());
    for (const TensorInfo& tensor : file->tensors()) {
      const absl::string_view bytes = file->Bytes(tensor);
      for (size_t begin : {size_t{0}, bytes.size() / 2, bytes.size() - std::min(bytes.size(), kSampledBytes)}) {
        hasher.Add(bytes.substr(begin, kSampledBytes));
      }
    }
  }
  return hasher.Hex();
}

}  // namespace trainyard
