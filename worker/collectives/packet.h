// The bytes of a packet (channel.h): a description of the packet, a description of each tensor, and the contents of the
// tensors, each at a multiple of 64 bytes. Both ranks run the same program on the same kind of machine, so the fields
// have the byte order of that machine.
//
// Stateless functions; any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/collectives/channel.h"

namespace trainyard {

// How tensors on the ranks' devices travel. All other tensors are in host memory and travel in the packet.
struct PacketDevice {
  std::optional<at::Device> device = {};  // unset: the ranks compute on CPUs
  bool direct = false;                    // the packet describes the device's tensors, but does not contain them

  bool IsDirect(const at::Tensor& tensor) const { return direct && tensor.device() == *device; }
};

// Possible error: InvalidArgument if a tensor cannot travel, with its number and what is wrong.
absl::Status CheckPacket(const std::vector<at::Tensor>& tensors, const PacketDevice& device);

// The size of the packet. REQUIRES, like WritePacket: CheckPacket accepts the tensors.
size_t PacketBytes(const std::vector<at::Tensor>& tensors, const PacketDevice& device);

// Writes PacketBytes bytes. `number` counts the packets of the channel from 1.
void WritePacket(uint64_t number, const PacketHeader& header, const std::vector<at::Tensor>& tensors,
                 const PacketDevice& device, std::byte* to);

struct ReceivedPacket {
  std::vector<at::Tensor> tensors;  // new tensors; the content of those in `direct` is not set
  std::vector<size_t> direct;       // indices of the tensors whose content follows from device to device
};

// Reads what WritePacket wrote. Possible errors: Unavailable if it is not packet `number` for `expected`, or not a
// packet at all.
absl::StatusOr<ReceivedPacket> ReadPacket(const std::byte* from, uint64_t number, const PacketHeader& expected,
                                          const PacketDevice& device);

}  // namespace trainyard
