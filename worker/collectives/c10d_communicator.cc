#include "worker/collectives/c10d_communicator.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace trainyard {

absl::Status StatusFromException(const std::exception& error) {
  const auto* with_stack = dynamic_cast<const c10::Error*>(&error);
  std::string text = with_stack != nullptr ? with_stack->what_without_backtrace() : error.what();
  std::replace(text.begin(), text.end(), '\n', ' ');
  const std::string lower = absl::AsciiStrToLower(text);
  if (absl::StrContains(lower, "timed out") || absl::StrContains(lower, "timeout")) {
    return absl::DeadlineExceededError(text);
  }
  return absl::UnavailableError(text);
}

std::unique_ptr<Collective> C10dCommunicator::AllReduceSum(const at::Tensor& tensor) {
  return NewHandle(Start("all-reduce", tensor, [&] {
    std::vector<at::Tensor> tensors{tensor.detach()};
    return group_.allreduce(tensors);
  }));
}

std::unique_ptr<Collective> C10dCommunicator::Broadcast(const at::Tensor& tensor, int root) {
  return NewHandle(Start("broadcast", tensor, [&] {
    std::vector<at::Tensor> tensors{tensor.detach()};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return group_.broadcast(tensors, options);
  }));
}

std::unique_ptr<Collective> C10dCommunicator::AllGather(const at::Tensor& out, const at::Tensor& in) {
  return NewHandle(Start("all-gather", in, [&] {
    at::Tensor to = out.detach().view(-1), from = in.detach().view(-1);  // flat, because LibTorch compares shapes
    return group_._allgather_base(to, from);
  }));
}

C10dCommunicator::Started C10dCommunicator::Start(absl::string_view kind, const at::Tensor& tensor,
                                                  absl::FunctionRef<WorkPointer()> launch) {
  AdvanceOperations();
  Started started{.name = log_.Start(kind, tensor), .work = nullptr, .status = log_.error()};
  if (!started.status.ok()) return started;
  c10::NoGradGuard no_grad;
  try {
    started.work = launch();
  } catch (const std::exception& error) {
    started.status = Break(AnnotateFailure(started.name, *this, StatusFromException(error)));
  }
  return started;
}

}  // namespace trainyard
