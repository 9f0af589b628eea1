#include "worker/collectives/packet.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/collectives/type_name.h"

namespace trainyard {
namespace {

constexpr uint32_t kPacketMagic = 0x544b5031;  // "TKP1"
constexpr size_t kContentAlignment = 64;

// Where the content of a tensor is.
enum class ContentPath : uint8_t {
  kHost,    // in the packet, and in host memory at both ends
  kStaged,  // in the packet, and on the devices of the ranks
  kDirect,  // travels from device to device
};

struct WirePacket {
  uint32_t magic;
  uint32_t num_tensors;
  uint64_t number;
  int32_t chunk;
  int32_t micro_batch;
};

struct WireTensor {
  int8_t type;  // c10::ScalarType
  ContentPath path;
  uint8_t num_dimensions;
  int64_t sizes[kMaxPacketDimensions];
};

size_t AlignContent(size_t bytes) { return (bytes + kContentAlignment - 1) / kContentAlignment * kContentAlignment; }

size_t DescriptionBytes(size_t num_tensors) {
  return AlignContent(sizeof(WirePacket) + num_tensors * sizeof(WireTensor));
}

ContentPath PathOf(const at::Tensor& tensor, const PacketDevice& device) {
  if (!device.device.has_value() || tensor.device() != *device.device) return ContentPath::kHost;
  return device.direct ? ContentPath::kDirect : ContentPath::kStaged;
}

size_t ContentBytes(const at::Tensor& tensor, const PacketDevice& device) {
  return PathOf(tensor, device) == ContentPath::kDirect ? 0 : AlignContent(tensor.nbytes());
}

absl::Status CheckTensor(const at::Tensor& tensor, const PacketDevice& device) {
  if (!tensor.defined()) return absl::InvalidArgumentError("it is undefined; leave it out of the packet");
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    return absl::InvalidArgumentError("it is sparse or quantized; convert it to a dense tensor");
  }
  if (tensor.dim() > kMaxPacketDimensions) {
    return absl::InvalidArgumentError(
        absl::StrCat("it has ", tensor.dim(), " dimensions, and at most ", kMaxPacketDimensions, " can be sent"));
  }
  if (tensor.is_cpu() || (device.device.has_value() && tensor.device() == *device.device)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("it is on ", tensor.device().str(), "; expected host memory",
                                                 device.device ? absl::StrCat(" or ", device.device->str()) : ""));
}

absl::Status CheckWirePacket(const WirePacket& packet, uint64_t number, const PacketHeader& expected) {
  if (packet.magic != kPacketMagic || packet.num_tensors > kMaxPacketTensors) {
    return absl::UnavailableError("the memory does not contain a packet; the sender may run another program");
  }
  if (packet.number != number) {
    return absl::UnavailableError(absl::StrCat("packet ", packet.number, " arrived instead of packet ", number));
  }
  const PacketHeader found{.chunk = packet.chunk, .micro_batch = packet.micro_batch};
  if (found == expected) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("expected ", DescribePacket(expected), ", but the sender's packet ",
                                             number, " is for ", DescribePacket(found),
                                             "; the two ranks run different schedules"));
}

}  // namespace

absl::Status CheckPacket(const std::vector<at::Tensor>& tensors, const PacketDevice& device) {
  if (tensors.size() > kMaxPacketTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat("a packet of ", tensors.size(), " tensors; at most ", kMaxPacketTensors, " can be sent together"));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const absl::Status status = CheckTensor(tensors[i], device);
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", i, " of the packet cannot be sent: ", status.message()));
    }
  }
  return absl::OkStatus();
}

size_t PacketBytes(const std::vector<at::Tensor>& tensors, const PacketDevice& device) {
  size_t bytes = DescriptionBytes(tensors.size());
  for (const at::Tensor& tensor : tensors) bytes += ContentBytes(tensor, device);
  return bytes;
}

void WritePacket(uint64_t number, const PacketHeader& header, const std::vector<at::Tensor>& tensors,
                 const PacketDevice& device, std::byte* to) {
  c10::NoGradGuard no_grad;
  const WirePacket packet{.magic = kPacketMagic,
                          .num_tensors = static_cast<uint32_t>(tensors.size()),
                          .number = number,
                          .chunk = header.chunk,
                          .micro_batch = header.micro_batch};
  std::memcpy(to, &packet, sizeof(packet));
  std::byte* description = to + sizeof(packet);
  std::byte* content = to + DescriptionBytes(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    WireTensor wire{.type = static_cast<int8_t>(tensor.scalar_type()),
                    .path = PathOf(tensor, device),
                    .num_dimensions = static_cast<uint8_t>(tensor.dim()),
                    .sizes = {}};
    for (int64_t i = 0; i < tensor.dim(); ++i) wire.sizes[i] = tensor.size(i);
    std::memcpy(description, &wire, sizeof(wire));
    description += sizeof(wire);
    if (wire.path == ContentPath::kDirect) continue;
    if (tensor.numel() > 0) at::from_blob(content, tensor.sizes(), tensor.scalar_type()).copy_(tensor.detach());
    content += AlignContent(tensor.nbytes());
  }
}

absl::StatusOr<ReceivedPacket> ReadPacket(const std::byte* from, uint64_t number, const PacketHeader& expected,
                                          const PacketDevice& device) {
  c10::NoGradGuard no_grad;
  WirePacket packet;
  std::memcpy(&packet, from, sizeof(packet));
  RETURN_IF_ERROR(CheckWirePacket(packet, number, expected));
  const std::byte* description = from + sizeof(packet);
  const std::byte* content = from + DescriptionBytes(packet.num_tensors);
  ReceivedPacket received;
  for (size_t i = 0; i < packet.num_tensors; ++i) {
    WireTensor wire;
    std::memcpy(&wire, description, sizeof(wire));
    description += sizeof(wire);
    const bool on_device = wire.path != ContentPath::kHost;
    if (on_device != device.device.has_value() && on_device) {
      return absl::UnavailableError("the sender computes on a device and this rank does not");
    }
    const at::IntArrayRef sizes(wire.sizes, wire.num_dimensions);
    const auto type = static_cast<at::ScalarType>(wire.type);
    at::Tensor& tensor = received.tensors.emplace_back(
        at::empty(sizes, at::TensorOptions().dtype(type).device(on_device ? *device.device : at::Device(at::kCPU))));
    if (wire.path == ContentPath::kDirect) {
      received.direct.push_back(i);
      continue;
    }
    if (tensor.numel() > 0) tensor.copy_(at::from_blob(const_cast<std::byte*>(content), sizes, type));
    content += AlignContent(tensor.nbytes());
  }
  return received;
}

}  // namespace trainyard
