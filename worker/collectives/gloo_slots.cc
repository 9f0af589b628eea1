#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/collectives/packet_slots.h"

namespace trainyard {
namespace {

constexpr int kSendingEnd = 0, kReceivingEnd = 1;  // ranks of the group
constexpr size_t kInitialSlotBytes = size_t{64} << 10;

// Every message starts with this struct, whose alignment keeps what follows aligned.
struct alignas(64) MessageStart {
  // 0: a packet follows. Otherwise the message announces that later messages may have up to this size.
  uint64_t new_slot_bytes;
};

at::Tensor NewMessage(size_t bytes) { return at::empty({static_cast<int64_t>(bytes)}, at::kByte); }

// Replaces `message` if it is smaller than `bytes`.
absl::Status MakeRoom(at::Tensor& message, size_t bytes) {
  if (message.defined() && static_cast<size_t>(message.numel()) >= bytes) return absl::OkStatus();
  try {
    message = NewMessage(bytes);
  } catch (const c10::Error&) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes for a packet"));
  }
  return absl::OkStatus();
}

std::byte* DataOf(const at::Tensor& message) { return static_cast<std::byte*>(message.data_ptr()); }

// gloo matches messages by order, and a message must fit into the receive that waits for it. A larger packet is
// therefore preceded by announcements, one for each of the receives that are already posted.
class GlooSender final : public PacketSlots {
 public:
  explicit GlooSender(std::unique_ptr<PeerCommunicator> peers) : peers_(std::move(peers)) {}

  absl::StatusOr<std::byte*> AwaitRoom(uint64_t number, size_t bytes) override {
    Slot& slot = slots_[number % kPacketSlots];
    if (slot.acknowledgement != nullptr) {
      RETURN_IF_ERROR(slot.acknowledgement->Wait());
    }
    for (const std::unique_ptr<Collective>& send : slot.sends) RETURN_IF_ERROR(send->Wait());
    slot.sends.clear();
    const size_t needed = sizeof(MessageStart) + bytes;
    if (needed > slot_bytes_) {
      slot_bytes_ = std::max(needed, slot_bytes_ / 2 * 3);
      for (uint64_t i = 0; i < kPacketSlots; ++i) slot.sends.push_back(Announce());
    }
    RETURN_IF_ERROR(MakeRoom(slot.message, slot_bytes_));
    return DataOf(slot.message) + sizeof(MessageStart);
  }

  absl::Status Publish(uint64_t number, size_t bytes) override {
    Slot& slot = slots_[number % kPacketSlots];
    const MessageStart start{.new_slot_bytes = 0};
    std::memcpy(DataOf(slot.message), &start, sizeof(start));
    slot.acknowledgement = peers_->ReceiveFrom(slot.acknowledged, kReceivingEnd);
    const auto size = static_cast<int64_t>(sizeof(start) + bytes);
    slot.sends.push_back(peers_->SendTo(slot.message.narrow(0, 0, size), kReceivingEnd));
    return absl::OkStatus();
  }

  absl::StatusOr<const std::byte*> AwaitPacket(uint64_t) override {
    return absl::InternalError("the sending end has no packets");
  }
  absl::Status Release(uint64_t) override { return absl::InternalError("the sending end has no packets"); }

  void Break(absl::string_view reason) override { peers_->Abort(reason); }

 private:
  struct Slot {
    at::Tensor message;
    at::Tensor acknowledged = NewMessage(1);
    std::unique_ptr<Collective> acknowledgement;  // of the packet in this slot; null: no packet was sent
    std::vector<std::unique_ptr<Collective>> sends;
  };

  std::unique_ptr<Collective> Announce() {
    at::Tensor message = NewMessage(sizeof(MessageStart));
    const MessageStart start{.new_slot_bytes = slot_bytes_};
    std::memcpy(DataOf(message), &start, sizeof(start));
    return peers_->SendTo(message, kReceivingEnd);
  }

  const std::unique_ptr<PeerCommunicator> peers_;
  std::array<Slot, kPacketSlots> slots_;   // destroyed before the connection that their operations use
  size_t slot_bytes_ = kInitialSlotBytes;  // the maximum size of a message
};

class GlooReceiver final : public PacketSlots {
 public:
  explicit GlooReceiver(std::unique_ptr<PeerCommunicator> peers) : peers_(std::move(peers)) {
    for (Slot& slot : slots_) {
      slot.message = NewMessage(slot_bytes_);
      slot.receive = peers_->ReceiveFrom(slot.message, kSendingEnd);
    }
  }

  absl::StatusOr<std::byte*> AwaitRoom(uint64_t, size_t) override {
    return absl::InternalError("the receiving end sends no packets");
  }
  absl::Status Publish(uint64_t, size_t) override { return absl::InternalError("the receiving end sends no packets"); }

  absl::StatusOr<const std::byte*> AwaitPacket(uint64_t) override {
    while (true) {
      Slot& slot = slots_[next_];
      RETURN_IF_ERROR(slot.receive->Wait());
      MessageStart start;
      std::memcpy(&start, DataOf(slot.message), sizeof(start));
      if (start.new_slot_bytes == 0) return DataOf(slot.message) + sizeof(start);
      slot_bytes_ = start.new_slot_bytes;
      RETURN_IF_ERROR(PostNext());
    }
  }

  absl::Status Release(uint64_t) override {
    RETURN_IF_ERROR(PostNext());
    if (acknowledgement_ != nullptr) {
      RETURN_IF_ERROR(acknowledgement_->Wait());
    }
    acknowledgement_ = peers_->SendTo(acknowledged_, kSendingEnd);
    return absl::OkStatus();
  }

  void Break(absl::string_view reason) override { peers_->Abort(reason); }

 private:
  struct Slot {
    at::Tensor message;
    std::unique_ptr<Collective> receive;
  };

  // Posts another receive in the slot whose message was read, and moves on to the next slot.
  absl::Status PostNext() {
    Slot& slot = slots_[next_];
    RETURN_IF_ERROR(MakeRoom(slot.message, slot_bytes_));
    slot.receive = peers_->ReceiveFrom(slot.message, kSendingEnd);
    next_ = (next_ + 1) % kPacketSlots;
    return absl::OkStatus();
  }

  const std::unique_ptr<PeerCommunicator> peers_;
  std::array<Slot, kPacketSlots> slots_;  // each has a posted receive; destroyed before the connection
  size_t next_ = 0;                       // the slot that receives the next message
  size_t slot_bytes_ = kInitialSlotBytes;
  const at::Tensor acknowledged_ = NewMessage(1).zero_();
  std::unique_ptr<Collective> acknowledgement_;  // of the newest released packet
};

}  // namespace

std::unique_ptr<PacketSlots> NewGlooSlots(std::unique_ptr<PeerCommunicator> peers) {
  if (peers->rank() == kSendingEnd) return std::make_unique<GlooSender>(std::move(peers));
  return std::make_unique<GlooReceiver>(std::move(peers));
}

}  // namespace trainyard
