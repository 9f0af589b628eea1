#include "worker/trainer/gathered_state.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/status_macros.h"
#include "worker/trainer/state.h"

namespace trainyard {

absl::Status GatheredState::AddTo(DataParallel& strategy, bool optimizer, bool writes, SaveTask& task) {
  SaveTask::File weights{.name = "model.safetensors"}, state{.name = "optimizer.safetensors"};
  const std::vector<TensorHeader> headers = StateHeaders(strategy);
  absl::flat_hash_map<std::string, const TensorHeader*> known;
  int64_t bytes = 0, at = 0;
  for (const TensorHeader& header : headers) {
    known[ShardTensorName(header.role, header.name)] = &header;
    if (!optimizer && header.role != kParameterRole) continue;
    bytes += static_cast<int64_t>(CountElements(header.shape).value_or(0) * DtypeBytes(header.dtype));
  }
  // A writer that hangs still reads the one before.
  if (writes && (!bytes_.defined() || bytes_.use_count() > 1 || bytes_.numel() < bytes)) {
    bytes_ = at::empty({bytes}, at::kByte);
  }
  auto take = [&](absl::string_view role, const NamedTensor& entry) -> absl::Status {
    if (!writes) return absl::OkStatus();
    const int64_t length = static_cast<int64_t>(entry.tensor.nbytes());
    if (at + length > bytes) return absl::InternalError("more state was gathered than there is");
    char* to = static_cast<char*>(bytes_.mutable_data_ptr()) + at;
    std::memcpy(to, entry.tensor.const_data_ptr(), entry.tensor.nbytes());
    at += length;
    const TensorHeader& header = *known.at(ShardTensorName(role, entry.name));
    (role == kParameterRole ? weights : state)
        .ranges.push_back({.entry = {.tensor = header, .count = static_cast<uint64_t>(entry.tensor.numel())},
                           .bytes = to,
                           .stays = true});
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(optimizer ? strategy.VisitState(take) : strategy.VisitParameters(take));
  if (!writes) return absl::OkStatus();
  task.owner = std::make_shared<at::Tensor>(bytes_);
  task.files.push_back(std::move(weights));
  if (!state.ranges.empty()) task.files.push_back(std::move(state));
  return absl::OkStatus();
}

}  // namespace trainyard
