#include "worker/collectives/channel.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status_macros.h"
#include "worker/collectives/group_member.h"
#include "worker/collectives/operation_log.h"
#include "worker/collectives/packet.h"
#include "worker/collectives/packet_slots.h"
#include "worker/collectives/peer_communicator.h"
#include "worker/collectives/shared_segment.h"

namespace trainyard {
namespace {

constexpr int kFromRank = 0;  // the sender's rank in the group of two

struct ChannelEnds {
  std::string name;
  int from = 0, to = 0;
  bool sends = false;
};

class PacketChannel final : public Channel {
 public:
  // `direct` connects the devices of the two ranks; null: there is no such path.
  PacketChannel(ChannelEnds ends, std::optional<at::Device> device, std::unique_ptr<PacketSlots> slots,
                std::unique_ptr<Communicator> direct)
      : ends_(std::move(ends)),
        device_{.device = device, .direct = direct != nullptr},
        direct_(std::move(direct)),
        slots_(std::move(slots)) {}

  ~PacketChannel() override { (void)Break(absl::AbortedError("the channel was closed")); }

  const std::string& name() const override { return ends_.name; }
  int from() const override { return ends_.from; }
  int to() const override { return ends_.to; }

  absl::Status Send(const PacketHeader& header, const std::vector<at::Tensor>& tensors) override {
    if (!ends_.sends) return WrongEnd("receives", "send", ends_.from);
    RETURN_IF_ERROR(log_.error());
    const std::string details = DescribePacket(header);
    const std::string packet = log_.Start("packet", details);
    const uint64_t number = ++number_;
    if (absl::Status status = CheckPacket(tensors, device_); !status.ok()) return Fail(packet, status);
    const std::string operation = absl::StrCat("room for packet ", number, " (", details, ")");
    if (absl::Status status = SendPacket(number, header, tensors, operation); !status.ok()) {
      return Fail(operation, status);
    }
    log_.Complete();
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<at::Tensor>> Receive(const PacketHeader& expected) override {
    if (ends_.sends) return WrongEnd("sends", "receive", ends_.to);
    RETURN_IF_ERROR(log_.error());
    const std::string details = DescribePacket(expected);
    log_.Start("packet", details);
    const uint64_t number = ++number_;
    const std::string operation = absl::StrCat("receive ", number, " (", details, ")");
    absl::StatusOr<std::vector<at::Tensor>> tensors = ReceivePacket(number, expected, operation);
    if (!tensors.ok()) return Fail(operation, tensors.status());
    log_.Complete();
    return tensors;
  }

  void Abort(absl::string_view reason) override { (void)Break(absl::AbortedError(reason)); }

  CollectiveProgress progress() const override { return log_.progress(); }

  double waited_s() const override {
    absl::MutexLock lock(&mu_);
    return std::chrono::duration<double>(waited_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Marks the time during which the rank waits for its peer.
  class Waiting {
   public:
    Waiting(PacketChannel& channel, absl::string_view operation) : channel_(channel) {
      channel_.log_.WaitBegins(operation);
    }
    ~Waiting() {
      channel_.log_.WaitEnds();
      absl::MutexLock lock(&channel_.mu_);
      channel_.waited_ += Clock::now() - start_;
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    PacketChannel& channel_;
    const Clock::time_point start_ = Clock::now();
  };

  // A copy of the tensors that travel from device to device, and the operations that read it.
  struct DirectSlot {
    std::vector<at::Tensor> copies;
    std::vector<std::unique_ptr<Collective>> broadcasts;
  };

  absl::Status SendPacket(uint64_t number, const PacketHeader& header, const std::vector<at::Tensor>& tensors,
                          absl::string_view operation) {
    const size_t bytes = PacketBytes(tensors, device_);
    DirectSlot& direct = direct_slots_[number % kPacketSlots];
    std::byte* to = nullptr;
    {
      Waiting waiting(*this, operation);
      ASSIGN_OR_RETURN(to, slots_->AwaitRoom(number, bytes));
      // The peer has started to receive the tensors of this slot, so these waits are short.
      for (const std::unique_ptr<Collective>& broadcast : direct.broadcasts) RETURN_IF_ERROR(broadcast->Wait());
    }
    direct = DirectSlot();
    WritePacket(number, header, tensors, device_, to);
    for (const at::Tensor& tensor : tensors) {
      if (!device_.IsDirect(tensor) || tensor.numel() == 0) continue;
      c10::NoGradGuard no_grad;
      const at::Tensor& copy =
          direct.copies.emplace_back(at::empty(tensor.sizes(), tensor.options()).copy_(tensor.detach()));
      direct.broadcasts.push_back(direct_->Broadcast(copy, kFromRank));
    }
    return slots_->Publish(number, bytes);
  }

  absl::StatusOr<std::vector<at::Tensor>> ReceivePacket(uint64_t number, const PacketHeader& expected,
                                                        absl::string_view operation) {
    const std::byte* from = nullptr;
    {
      Waiting waiting(*this, operation);
      ASSIGN_OR_RETURN(from, slots_->AwaitPacket(number));
    }
    ASSIGN_OR_RETURN(ReceivedPacket packet, ReadPacket(from, number, expected, device_));
    if (!packet.direct.empty()) {
      Waiting waiting(*this, operation);
      std::vector<std::unique_ptr<Collective>> broadcasts;
      for (size_t i : packet.direct) {
        if (packet.tensors[i].numel() > 0) broadcasts.push_back(direct_->Broadcast(packet.tensors[i], kFromRank));
      }
      for (const std::unique_ptr<Collective>& broadcast : broadcasts) RETURN_IF_ERROR(broadcast->Wait());
    }
    RETURN_IF_ERROR(slots_->Release(number));
    return std::move(packet.tensors);
  }

  absl::Status WrongEnd(absl::string_view does, absl::string_view call, int right) const {
    const int self = ends_.sends ? ends_.from : ends_.to;
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", self, " ", does, " over channel '", ends_.name, "'; only rank ", right, " can ", call));
  }

  absl::Status Fail(absl::string_view operation, const absl::Status& status) {
    if (absl::IsAborted(status)) return Break(status);
    return Break(
        absl::Status(status.code(), absl::StrCat(operation, " of channel '", ends_.name, "' failed on rank ",
                                                 ends_.sends ? ends_.from : ends_.to, ": ", status.message())));
  }

  // The first error is permanent, and ends the waits of the peer. Returns the first error.
  absl::Status Break(absl::Status status) {
    const std::string reason(status.message());
    if (log_.Fail(std::move(status))) {
      if (direct_ != nullptr) direct_->Abort(reason);
      slots_->Break(reason);
    }
    return log_.error();
  }

  const ChannelEnds ends_;
  const PacketDevice device_;
  const std::unique_ptr<Communicator> direct_;
  const std::unique_ptr<PacketSlots> slots_;
  std::array<DirectSlot, kPacketSlots> direct_slots_;  // of the sender; destroyed before direct_
  uint64_t number_ = 0;                                // of the newest packet
  OperationLog log_;
  mutable absl::Mutex mu_;
  Clock::duration waited_ ABSL_GUARDED_BY(mu_) = {};
};

absl::StatusOr<std::unique_ptr<PacketSlots>> JoinSlots(const GroupMember& member) {
  const GroupOptions& options = member.options;
  bool shared = options.shared_memory;
  if (shared) {
    ASSIGN_OR_RETURN(std::vector<std::string> places, ExchangePlaces(member));
    shared = ChooseTransport(places) == Transport::kShared;
  }
  if (!shared) {
    ASSIGN_OR_RETURN(auto peers, NewGlooPeers({.rank = member.rank,
                                               .world_size = member.size(),
                                               .address = options.address,
                                               .store = options.store,
                                               .prefix = member.prefix,
                                               .timeout = options.timeout}));
    return NewGlooSlots(std::move(peers));
  }
  constexpr size_t kSmallPacketBytes = size_t{16} << 10;  // larger packets get memory that grows with them
  ASSIGN_OR_RETURN(auto segment, SharedSegment::Join({.rank = member.rank,
                                                      .world_size = member.size(),
                                                      .store = options.store,
                                                      .prefix = member.prefix,
                                                      .timeout = options.timeout,
                                                      .piece_bytes = kSmallPacketBytes,
                                                      .world_ranks = member.members}));
  return NewSharedMemorySlots(std::move(segment));
}

// Returns null if the ranks share a device. A device's group connects in its first operation, which waits for the peer.
// So the first operation is a broadcast here, not the first Send.
absl::StatusOr<std::unique_ptr<Communicator>> JoinDirect(const GroupMember& member) {
  const GroupDevice& device = *member.options.device;
  ASSIGN_OR_RETURN(std::vector<std::string> names, Exchange(member, "device", device.name));
  if (names.front() == names.back()) return nullptr;
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> direct, device.join(member.rank, member.size(), member.prefix));
  RETURN_IF_ERROR(direct->Broadcast(at::zeros({1}, at::TensorOptions().device(device.device)), kFromRank)->Wait());
  return direct;
}

absl::StatusOr<std::unique_ptr<Channel>> JoinChannel(const GroupOptions& group, ChannelEnds ends) {
  ASSIGN_OR_RETURN(GroupMember member, MemberOf(group));
  ASSIGN_OR_RETURN(std::unique_ptr<PacketSlots> slots, JoinSlots(member));
  std::optional<at::Device> device;
  std::unique_ptr<Communicator> direct;
  if (group.device.has_value()) {
    device = group.device->device;
    ASSIGN_OR_RETURN(direct, JoinDirect(member));
  }
  return std::make_unique<PacketChannel>(std::move(ends), device, std::move(slots), std::move(direct));
}

}  // namespace

std::string DescribePacket(const PacketHeader& header) {
  return absl::StrCat("chunk ", header.chunk, ", micro-batch ", header.micro_batch);
}

absl::StatusOr<std::unique_ptr<Channel>> NewChannel(const ChannelOptions& options) {
  ChannelEnds ends{.name = absl::StrCat(options.group.name, " ", options.from, "->", options.to),
                   .from = options.from,
                   .to = options.to,
                   .sends = options.group.rank == options.from};
  if (options.from == options.to) {
    return absl::InvalidArgumentError(absl::StrCat("channel '", ends.name, "': rank ", options.from,
                                                   " needs no channel to itself; pass the tensors on"));
  }
  GroupOptions group = options.group;
  group.name = ends.name;
  group.members = {options.from, options.to};
  const std::string label = absl::StrCat("channel '", ends.name, "': ");
  absl::StatusOr<std::unique_ptr<Channel>> channel = JoinChannel(group, std::move(ends));
  if (channel.ok()) return channel;
  return absl::Status(channel.status().code(), absl::StrCat(label, channel.status().message()));
}

}  // namespace trainyard
