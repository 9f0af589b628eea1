// A group whose ranks compute on devices of their own and also tell each other what lies in host memory (losses,
// requests, agreements): tensors on the device go one way, all others another, as ever.
//
//   device to device      through a communicator of the device (NCCL), one device a rank
//   through host memory   for ranks that share a device, which NCCL refuses: copied out when the operation is started,
//                         and back when it is waited for. One more copy each way, but any transport of the host's
//
// Barriers and meetings are the host's. Threads and errors: those of a Communicator.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "absl/status/status.h"
#include "worker/collectives/communicator.h"

namespace trainyard {

// Both are of the same ranks. `on_device` may be null: through host memory.
std::unique_ptr<Communicator> NewDeviceCommunicator(at::Device device, std::unique_ptr<Communicator> host,
                                                    std::unique_ptr<Communicator> on_device);

// WarmUp with tensors on `device`.
absl::Status WarmUpOn(Communicator& communicator, at::Device device);

}  // namespace trainyard
