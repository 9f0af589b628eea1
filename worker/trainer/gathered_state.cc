#include "worker/trainer/gathered_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/status_macros.h"
#include "worker/trainer/state.h"

namespace trainyard {
namespace {

uint64_t BytesOf(const TensorHeader& header) {
  return CountElements(header.shape).value_or(0) * DtypeBytes(header.dtype);
}

bool IsWanted(const TensorHeader& header, const WholeFiles& wanted) {
  return header.role == kParameterRole ? wanted.parameters : wanted.optimizer;
}

std::string CopyName(const std::string& dtype) {
  return dtype == "BF16" ? "weights-bf16.safetensors" : "weights-fp16.safetensors";
}

bool IsBeyondRange(const at::Tensor& values, const at::Tensor& rounded) {
  return at::isfinite(values).logical_and(at::isfinite(rounded).logical_not()).any().item<bool>();
}

// Appends tensors to files of a task, one behind the other in one piece of memory.
struct Appender {
  char* bytes;
  int64_t size;
  int64_t at = 0;

  absl::Status Add(const TensorHeader& header, const at::Tensor& values, SaveTask::File& file) {
    const int64_t length = static_cast<int64_t>(values.nbytes());
    if (at + length > size) return absl::InternalError("more state was gathered than there is");
    std::memcpy(bytes + at, values.cpu().const_data_ptr(), values.nbytes());
    file.ranges.push_back({.entry = {.tensor = header, .count = static_cast<uint64_t>(values.numel())},
                           .bytes = bytes + at,
                           .stays = true});
    at += length;
    return absl::OkStatus();
  }
};

}  // namespace

std::vector<TensorHeader> CopyHeaders(const DataParallel& strategy, const std::string& copy_dtype) {
  std::vector<TensorHeader> copies;
  if (copy_dtype.empty()) return copies;
  for (TensorHeader& header : StateHeaders(strategy)) {
    if (header.role != kParameterRole) continue;
    header.role = kCopyRole;
    header.dtype = copy_dtype;
    copies.push_back(std::move(header));
  }
  return copies;
}

absl::Status GatheredState::AddTo(DataParallel& strategy, const WholeFiles& wanted, bool writes, SaveTask& task) {
  SaveTask::File weights{.name = "model.safetensors"}, state{.name = "optimizer.safetensors"};
  SaveTask::File copy{.name = CopyName(wanted.copy_dtype), .derived = true};
  const std::vector<TensorHeader> headers = StateHeaders(strategy), copies = CopyHeaders(strategy, wanted.copy_dtype);
  absl::flat_hash_map<std::string, const TensorHeader*> known, known_copies;
  int64_t bytes = 0;
  for (const TensorHeader& header : headers) {
    known[ShardTensorName(header.role, header.name)] = &header;
    if (IsWanted(header, wanted)) bytes += static_cast<int64_t>(BytesOf(header));
  }
  for (const TensorHeader& header : copies) {
    known_copies[header.name] = &header;
    bytes += static_cast<int64_t>(BytesOf(header));
  }
  // A writer that hangs still reads the one before.
  if (writes && (!bytes_.defined() || bytes_.use_count() > 1 || bytes_.numel() < bytes)) {
    bytes_ = at::empty({bytes}, at::kByte);
  }
  beyond_range_.clear();
  Appender appender{.bytes = writes ? static_cast<char*>(bytes_.mutable_data_ptr()) : nullptr, .size = bytes};
  auto take = [&](absl::string_view role, const NamedTensor& entry) -> absl::Status {
    if (!writes) return absl::OkStatus();
    const TensorHeader& header = *known.at(ShardTensorName(role, entry.name));
    const bool is_parameter = role == kParameterRole;
    if (IsWanted(header, wanted)) {
      RETURN_IF_ERROR(appender.Add(header, entry.tensor, is_parameter ? weights : state));
    }
    if (!is_parameter || copies.empty()) return absl::OkStatus();
    const at::Tensor rounded = entry.tensor.to(wanted.copy_dtype == "BF16" ? at::kBFloat16 : at::kHalf);
    if (beyond_range_.empty() && IsBeyondRange(entry.tensor, rounded)) beyond_range_ = entry.name;
    return appender.Add(*known_copies.at(entry.name), rounded, copy);
  };
  RETURN_IF_ERROR(wanted.optimizer ? strategy.VisitState(take) : strategy.VisitParameters(take));
  if (!writes) return absl::OkStatus();
  task.owner = std::make_shared<at::Tensor>(bytes_);
  for (SaveTask::File* file : {&weights, &state, &copy}) {
    if (!file->ranges.empty()) task.files.push_back(std::move(*file));
  }
  return absl::OkStatus();
}

}  // namespace trainyard
