#include "checkpoint/safetensors.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

using HeaderJson = nlohmann::json;

// The limit of the format's reference implementation.
constexpr uint64_t kHeaderBytesMax = 100'000'000;
// The number of bytes of so many elements of any dtype fits into 64 bits.
constexpr uint64_t kElementsMax = uint64_t{1} << 60;

struct Dtype {
  const char* name;
  uint64_t bits;
};
constexpr Dtype kDtypes[] = {{"F64", 64},    {"F32", 32},    {"F16", 16},    {"BF16", 16},   {"I64", 64},
                             {"I32", 32},    {"I16", 16},    {"I8", 8},      {"U8", 8},      {"BOOL", 8},
                             {"U64", 64},    {"U32", 32},    {"U16", 16},    {"C64", 64},    {"F8_E4M3", 8},
                             {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};

// Returns the bits of one element, 0 for an unknown dtype.
uint64_t DtypeBits(absl::string_view dtype) {
  for (const Dtype& known : kDtypes) {
    if (dtype == known.name) return known.bits;
  }
  return 0;
}

// The format is little-endian on every machine.
uint64_t LoadLength(absl::string_view bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

std::string StoreLength(uint64_t value) {
  std::string bytes(8, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(value & 0xff);
    value >>= 8;
  }
  return bytes;
}

// Reads one entry of the header. `where` names file and tensor.
absl::StatusOr<TensorInfo> ReadEntry(const std::string& name, const HeaderJson& entry, const std::string& where) {
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
      !entry.contains("data_offsets")) {
    return absl::DataLossError(absl::StrCat(where, ": expected exactly dtype, shape and data_offsets"));
  }
  TensorInfo info;
  info.name = name;
  if (!entry["dtype"].is_string()) return absl::DataLossError(absl::StrCat(where, ": dtype is not a string"));
  info.dtype = entry["dtype"].get<std::string>();
  const uint64_t bits = DtypeBits(info.dtype);
  if (bits == 0) return absl::DataLossError(absl::StrCat(where, ": unknown dtype '", info.dtype, "'"));
  if (!entry["shape"].is_array()) return absl::DataLossError(absl::StrCat(where, ": shape is not a list"));
  for (const HeaderJson& size : entry["shape"]) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > kElementsMax) {
      return absl::DataLossError(absl::StrCat(where, ": shape contains a value that is not a size"));
    }
    info.shape.push_back(size.get<int64_t>());
  }
  const HeaderJson& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return absl::DataLossError(absl::StrCat(where, ": data_offsets is not a list of two numbers"));
  }
  info.begin = offsets[0].get<uint64_t>();
  info.end = offsets[1].get<uint64_t>();
  ASSIGN_OR_RETURN(uint64_t elements, CountElements(info.shape), << where);
  const bool is_sized = elements <= kElementsMax / bits && elements * bits % 8 == 0;
  if (info.end < info.begin || !is_sized || info.end - info.begin != elements * bits / 8) {
    const std::string bytes = is_sized ? absl::StrCat(elements * bits / 8, " bytes") : "no whole number of bytes";
    return absl::DataLossError(absl::StrCat(where, ": ", info.dtype, " ", ShapeText(info.shape), " takes ", bytes,
                                            ", but its range is [", info.begin, ", ", info.end, ")"));
  }
  return info;
}

// Parses without exceptions, and refuses a key that occurs twice, because the JSON library would silently use one.
absl::StatusOr<HeaderJson> ParseHeader(absl::string_view text, const std::string& path) {
  std::set<std::string> keys;
  std::string twice;
  auto check_key = [&](int depth, HeaderJson::parse_event_t event, HeaderJson& parsed) {
    if (event == HeaderJson::parse_event_t::key && depth == 1 && !keys.insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  HeaderJson header = HeaderJson::parse(text.begin(), text.end(), check_key, /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object()) {
    return absl::DataLossError(absl::StrCat(path, ": its header is not a JSON object"));
  }
  if (!twice.empty()) return absl::DataLossError(absl::StrCat(path, ": its header names '", twice, "' twice"));
  return header;
}

// Returns the byte at which the header ends and the tensors begin. `first` are at least the first 9 bytes of a file of
// `file_bytes` bytes, or all of them.
absl::StatusOr<uint64_t> HeaderEnd(const std::string& path, absl::string_view first, uint64_t file_bytes) {
  if (file_bytes < 8) {
    return absl::DataLossError(absl::StrCat(path, " has ", file_bytes, " bytes: too short for a header"));
  }
  const uint64_t length = LoadLength(first);
  if (length > kHeaderBytesMax || file_bytes == 8 || first[8] != '{') {
    return absl::DataLossError(absl::StrCat(path, " is not a safetensors file: such a file begins with the length of ",
                                            "its header (at most ", kHeaderBytesMax, " bytes) in 8 bytes and a '{'"));
  }
  if (length > file_bytes - 8) {
    return absl::DataLossError(absl::StrCat(path, ": its first 8 bytes announce a header of ", length,
                                            " bytes, but the file has only ", file_bytes,
                                            ": it is incomplete; copy it again"));
  }
  return 8 + length;
}

// Returns the tensors of a header in the order of their bytes, of which there are `data_bytes`.
absl::StatusOr<std::vector<TensorInfo>> ParseTensors(const std::string& path, absl::string_view text,
                                                     uint64_t data_bytes) {
  ASSIGN_OR_RETURN(HeaderJson header, ParseHeader(text, path));
  std::vector<TensorInfo> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    ASSIGN_OR_RETURN(TensorInfo info, ReadEntry(name, entry, absl::StrCat(path, ", tensor '", name, "'")));
    tensors.push_back(std::move(info));
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin != at) {
      return absl::DataLossError(absl::StrCat(path, ", tensor '", tensor.name, "': begins at ", tensor.begin,
                                              ", but the tensor before it ends at ", at));
    }
    at = tensor.end;
  }
  if (at != data_bytes) {
    return absl::DataLossError(
        absl::StrCat(path, ": its tensors take ", at, " bytes, but the file contains ", data_bytes));
  }
  return tensors;
}

// Returns the first `bytes` bytes of a file.
absl::StatusOr<std::string> ReadFirst(int fd, const std::string& path, uint64_t bytes) {
  std::string first(bytes, '\0');
  for (uint64_t at = 0; at < bytes;) {
    const ssize_t n = pread(fd, first.data() + at, bytes - at, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("cannot read ", path, " at byte ", at));
    if (n == 0) return absl::DataLossError(absl::StrCat(path, " has become shorter while it was being read"));
    at += static_cast<uint64_t>(n);
  }
  return first;
}

}  // namespace

uint64_t DtypeBytes(absl::string_view dtype) { return DtypeBits(dtype) / 8; }

absl::StatusOr<uint64_t> CountElements(const std::vector<int64_t>& shape) {
  uint64_t elements = 1;
  for (int64_t size : shape) {
    if (size < 0) return absl::InvalidArgumentError(absl::StrCat("shape ", ShapeText(shape), " has a negative size"));
    if (size != 0 && elements > kElementsMax / static_cast<uint64_t>(size)) {
      return absl::InvalidArgumentError(absl::StrCat("shape ", ShapeText(shape), " has too many elements"));
    }
    elements *= static_cast<uint64_t>(size);
  }
  return elements;
}

std::string ShapeText(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> mapped, MappedFile::Open(path));
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile(std::move(mapped)));
  RETURN_IF_ERROR(file->ReadHeader());
  return file;
}

absl::Status SafetensorsFile::ReadHeader() {
  ASSIGN_OR_RETURN(const uint64_t end, HeaderEnd(path(), whole(), whole().size()));
  data_ = whole().substr(end);
  ASSIGN_OR_RETURN(tensors_, ParseTensors(path(), whole().substr(8, end - 8), data_.size()));
  for (size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
  return absl::OkStatus();
}

const TensorInfo* SafetensorsFile::Find(absl::string_view name) const {
  auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

absl::Status CheckSafetensorsHeader(int fd, const std::string& path, uint64_t file_bytes) {
  ASSIGN_OR_RETURN(const std::string first, ReadFirst(fd, path, std::min<uint64_t>(9, file_bytes)));
  ASSIGN_OR_RETURN(const uint64_t end, HeaderEnd(path, first, file_bytes));
  ASSIGN_OR_RETURN(const std::string header, ReadFirst(fd, path, end));
  return ParseTensors(path, absl::string_view(header).substr(8), file_bytes - end).status();
}

std::string SafetensorsHeader(std::vector<TensorInfo>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t at = 0;
  for (TensorInfo& tensor : tensors) {
    uint64_t elements = 1;
    for (int64_t size : tensor.shape) elements *= static_cast<uint64_t>(size);
    tensor.begin = at;
    tensor.end = at += elements * DtypeBytes(tensor.dtype);
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return StoreLength(text.size()) + text;
}

}  // namespace trainyard
