#include "worker/saving/gathered_state.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "checkpoint/dtype_convert.h"
#include "common/status_macros.h"
#include "worker/saving/state.h"

namespace trainyard {
namespace {

uint64_t BytesOf(const TensorHeader& header) {
  return CountElements(header.shape).value_or(0) * DtypeBytes(header.dtype);
}

bool IsWanted(const TensorHeader& header, const WholeFiles& wanted) {
  return header.role == kParameterRole ? wanted.parameters : wanted.optimizer;
}

// Appends tensors to the files of a task; their values are stored one after the other in one block of memory.
struct Appender {
  char* bytes;
  int64_t size;
  int64_t at = 0;  // where the next tensor begins

  // Converts `values` to the header's type, rounding once, to nearest, ties to even.
  absl::Status Add(const TensorHeader& header, const at::Tensor& values, SaveTask::File& file) {
    const int64_t length = static_cast<int64_t>(BytesOf(header));
    if (at + length > size)
      return absl::InternalError("the gathered tensors are larger than the memory that was allocated for them");
    if (header.role == kCopyRole && values.scalar_type() == at::kDouble) {
      // torch would convert through fp32 and so round twice.
      const at::Tensor host = values.cpu();
      const std::string narrow =
          ConvertValues({static_cast<const char*>(host.const_data_ptr()), host.nbytes()}, "F64", header.dtype);
      std::memcpy(bytes + at, narrow.data(), narrow.size());
    } else {
      const at::ScalarType type = header.role != kCopyRole ? values.scalar_type()
                                  : header.dtype == "BF16" ? at::kBFloat16
                                                           : at::kHalf;
      at::from_blob(bytes + at, values.sizes(), at::TensorOptions().dtype(type)).copy_(values);
    }
    file.ranges.push_back({.entry = {.tensor = header, .count = static_cast<uint64_t>(values.numel())},
                           .bytes = bytes + at,
                           .is_stable = true});
    at += length;
    return absl::OkStatus();
  }
};

}  // namespace

std::vector<TensorHeader> CopyHeaders(const ParallelState& state, const std::string& copy_dtype) {
  std::vector<TensorHeader> copies;
  if (copy_dtype.empty()) return copies;
  for (TensorHeader& header : StateHeaders(state.Entries())) {
    if (header.role != kParameterRole) continue;
    header.role = kCopyRole;
    header.dtype = copy_dtype;
    copies.push_back(std::move(header));
  }
  return copies;
}

int64_t GatheredBytes(const ParallelState& state, const WholeFiles& wanted) {
  uint64_t bytes = 0;
  for (const TensorHeader& header : StateHeaders(state.Entries()))
    bytes += IsWanted(header, wanted) ? BytesOf(header) : 0;
  for (const TensorHeader& header : CopyHeaders(state, wanted.copy_dtype)) bytes += BytesOf(header);
  return static_cast<int64_t>(bytes);
}

void GatheredState::Reserve(int64_t bytes) {
  // A writer that hangs may still read the previous memory.
  if (bytes_.defined() && bytes_.use_count() == 1 && bytes_.numel() >= bytes) return;
  bytes_ = TrackTensor(ledger_, MemoryKind::kSnapshots, held_, [&] { return at::zeros({bytes}, at::kByte); });
}

absl::Status GatheredState::AddTo(ParallelState& state, const WholeFiles& wanted, bool writes, SaveTask& task) {
  SaveTask::File weights{.name = "model.safetensors"}, optimizer{.name = "optimizer.safetensors"};
  SaveTask::File copy{.name = wanted.copy_dtype == "BF16" ? "weights-bf16.safetensors" : "weights-fp16.safetensors",
                      .derived = true};
  const std::vector<TensorHeader> headers = StateHeaders(state.Entries()),
                                  copies = CopyHeaders(state, wanted.copy_dtype);
  absl::flat_hash_map<std::string, const TensorHeader*> known, known_copies;
  for (const TensorHeader& header : headers) known[ShardTensorName(header.role, header.name)] = &header;
  for (const TensorHeader& header : copies) known_copies[header.name] = &header;
  const int64_t bytes = GatheredBytes(state, wanted);
  if (writes) Reserve(bytes);
  Appender appender{.bytes = writes ? static_cast<char*>(bytes_.mutable_data_ptr()) : nullptr, .size = bytes};
  auto add = [&](const StateEntry& entry, const at::Tensor& values) -> absl::Status {
    if (!writes) return absl::OkStatus();
    const TensorHeader& header = *known.at(ShardTensorName(entry.role, entry.name));
    const bool is_parameter = entry.role == kParameterRole;
    if (IsWanted(header, wanted)) {
      RETURN_IF_ERROR(appender.Add(header, values, is_parameter ? weights : optimizer));
    }
    if (!is_parameter || copies.empty()) return absl::OkStatus();
    return appender.Add(*known_copies.at(entry.name), values, copy);
  };
  RETURN_IF_ERROR(wanted.optimizer ? state.Visit(add) : state.VisitParameters(add));
  if (!writes) return absl::OkStatus();
  task.owner = std::make_shared<at::Tensor>(bytes_);
  for (SaveTask::File* file : {&weights, &optimizer, &copy}) {
    if (!file->ranges.empty()) task.files.push_back(std::move(*file));
  }
  return absl::OkStatus();
}

}  // namespace trainyard
