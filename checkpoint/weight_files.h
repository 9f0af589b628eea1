// The weights of a model in the form of the Python library transformers: model.safetensors of a folder, or the several
// files that its model.safetensors.index.json lists. Nothing here is trusted: an index may name any file.
// Immutable once opened, and thread-safe.
//
//   ASSIGN_OR_RETURN(auto files, WeightFiles::Open("/models/llama"));
//   const Weight* norm = files->Find("model.norm.weight");
//   RETURN_IF_ERROR(files->ReadRange(*norm, 0, 8, "F32", bytes));   // reads 8 values and no more
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "checkpoint/safetensors.h"

namespace trainyard {

inline constexpr char kWeightsName[] = "model.safetensors";
inline constexpr char kWeightsIndexName[] = "model.safetensors.index.json";

struct Weight {
  TensorInfo info;
  const SafetensorsFile* file = nullptr;
};

class WeightFiles {
 public:
  // `path` is a folder or a safetensors file. As in transformers, model.safetensors is preferred to an index. Fails
  // with NotFound if there is neither (the message names the weights that the folder has instead), with the errors of
  // SafetensorsFile::Open, and with DataLoss, which lists every problem, if the index is not valid: a name with '/', a
  // missing file, a tensor that is in two files or not in the file that the index names.
  static absl::StatusOr<std::unique_ptr<WeightFiles>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::map<std::string, Weight, std::less<>>& weights() const { return weights_; }
  const Weight* Find(absl::string_view name) const;  // null: no such tensor

  // Writes elements [first, first + count) to `out`, converted to `dtype`. Fails with OutOfRange if the tensor has
  // fewer elements, and with InvalidArgument if one of the types is not floating or `out` has another size.
  static absl::Status ReadRange(const Weight& weight, uint64_t first, uint64_t count, absl::string_view dtype,
                                absl::Span<char> out);

  // A hash of the names, sizes and headers of all files and of some of each tensor's values. It distinguishes versions
  // of a model without reading all bytes; versions that differ only in the other values have the same hash.
  std::string Identity() const;

 private:
  explicit WeightFiles(std::string path) : path_(std::move(path)) {}
  absl::Status AddFile(const std::string& path, std::vector<std::string>& problems);
  absl::Status OpenIndex(const std::string& index_path, const std::string& folder);

  const std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Weight, std::less<>> weights_;
};

}  // namespace trainyard
