// Reads and writes the safetensors format: 8 bytes with the length of the header (little-endian), the header in JSON,
// then the raw bytes of the tensors. Shards of checkpoints and the files that `train.model.init_from` names have this
// format; the Python library `safetensors` reads what is written here.
//
// The reader does not trust the file. It refuses, with an error that names file and tensor, a header that is too long,
// not JSON or names a tensor twice, an unknown dtype, a size that does not follow from dtype and shape, and ranges that
// overlap, leave holes or do not end where the file ends. The file is mapped: if its bytes cannot be read later, the
// process ends with a message that names the file (common/mapped_file.h). Immutable once opened, and thread-safe.
//
//   ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(path));
//   const TensorInfo* wte = file->Find("wte.weight");
//   absl::string_view bytes = file->Bytes(*wte);
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/mapped_file.h"

namespace trainyard {

struct TensorInfo {
  std::string name;
  std::string dtype;  // F64, F32, F16, BF16, I64, and the other names of the format
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // from the end of the header
  uint64_t end = 0;
};

// Returns the bytes of one element, 0 for an unknown dtype and for dtypes whose elements are smaller than a byte.
uint64_t DtypeBytes(absl::string_view dtype);
// Returns the product of the dimensions. Fails with InvalidArgument if one is negative or the product exceeds 2^60.
absl::StatusOr<uint64_t> CountElements(const std::vector<int64_t>& shape);
std::string ShapeText(const std::vector<int64_t>& shape);  // "[4, 128]"

class SafetensorsFile {
 public:
  // Fails with NotFound, PermissionDenied, or DataLoss if the file does not have the format.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return file_->path(); }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of their bytes
  const TensorInfo* Find(absl::string_view name) const;                // null: no such tensor
  absl::string_view Bytes(const TensorInfo& tensor) const {
    return data_.substr(tensor.begin, tensor.end - tensor.begin);
  }
  absl::string_view whole() const { return file_->bytes(); }
  // The bytes of the file before the first tensor.
  absl::string_view header() const { return whole().substr(0, whole().size() - data_.size()); }

 private:
  explicit SafetensorsFile(std::unique_ptr<MappedFile> file) : file_(std::move(file)) {}
  absl::Status ReadHeader();

  const std::unique_ptr<MappedFile> file_;
  absl::string_view data_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
};

// Checks the header of an open file of `file_bytes` bytes, as SafetensorsFile::Open does, but reads it without a
// mapping, so that a file that shrinks meanwhile causes an error and does not end the process. Fails with DataLoss, and
// with errors of reading.
absl::Status CheckSafetensorsHeader(int fd, const std::string& path, uint64_t file_bytes);

// Returns the header of a file that holds `tensors` one after another, including its 8 bytes of length, padded so that
// the data begins at a multiple of 8. Fills `begin` and `end`. REQUIRES: dtypes are known, and the widest come first,
// so that every tensor is aligned to its elements.
std::string SafetensorsHeader(std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata);

}  // namespace trainyard
