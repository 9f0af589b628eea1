// A communicator for ranks that compute on devices and also exchange tensors in host memory (losses, requests,
// agreements). Tensors on a rank's device take one of two paths; all other tensors use the host's communicator:
//
//   device to device      through a communicator of the device (NCCL), one device per rank
//   through host memory   for ranks that share a device, which NCCL refuses: tensors are copied to the host when the
//                         operation is started, and back when it is waited for. This costs one more copy each way, but
//                         works with any transport of the host
//
// Barrier and MonitoredBarrier use the host's communicator. Threads and errors: the same as for Communicator.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "absl/status/status.h"
#include "worker/collectives/communicator.h"

namespace trainyard {

// Both communicators have the same ranks. If `on_device` is null, device tensors go through host memory.
std::unique_ptr<Communicator> NewDeviceCommunicator(at::Device device, std::unique_ptr<Communicator> host,
                                                    std::unique_ptr<Communicator> on_device);

// Like WarmUp, with tensors on `device`.
absl::Status WarmUpOn(Communicator& communicator, at::Device device);

}  // namespace trainyard
