#include "worker/collectives/communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/collectives/device_communicator.h"

namespace trainyard {
namespace {

// Fails unless every element of `result` is `expected`.
absl::Status Expect(const at::Tensor& result, double expected, absl::string_view operation) {
  const at::Tensor tensor = result.cpu();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    double found = tensor.const_data_ptr<double>()[i];
    if (found != expected) {
      return absl::InternalError(absl::StrCat("the first ", operation, " gave ", found, " where ", expected,
                                              " was expected; the ranks do not run the same operations"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

at::Tensor Communicator::NewBuffer(int64_t numel, at::ScalarType type) { return at::empty({numel}, type); }

absl::Status WarmUp(Communicator& communicator) { return WarmUpOn(communicator, at::kCPU); }

absl::Status WarmUpOn(Communicator& communicator, at::Device device) {
  int64_t world = communicator.world_size();
  double sum_of_ranks = static_cast<double>(world * (world - 1)) / 2;
  auto filled = [device](int64_t size, double value) {
    return at::full({size}, value, at::TensorOptions().dtype(at::kDouble).device(device));
  };
  double rank = communicator.rank();

  at::Tensor sum = filled(4, rank);
  RETURN_IF_ERROR(communicator.AllReduceSum(sum)->Wait());
  RETURN_IF_ERROR(Expect(sum, sum_of_ranks, "all-reduce"));

  at::Tensor from_root = filled(4, rank + 1);
  RETURN_IF_ERROR(communicator.Broadcast(from_root, /*root=*/0)->Wait());
  RETURN_IF_ERROR(Expect(from_root, 1, "broadcast"));

  at::Tensor gathered = filled(4 * world, -1);
  RETURN_IF_ERROR(communicator.AllGather(gathered, filled(4, rank))->Wait());
  for (int64_t r = 0; r < world; ++r) {
    RETURN_IF_ERROR(Expect(gathered.narrow(0, 4 * r, 4), static_cast<double>(r), "all-gather"));
  }

  at::Tensor part = filled(4, -1);
  RETURN_IF_ERROR(communicator.ReduceScatterSum(part, filled(4 * world, rank))->Wait());
  RETURN_IF_ERROR(Expect(part, sum_of_ranks, "reduce-scatter"));

  return communicator.Barrier()->Wait();
}

}  // namespace trainyard
