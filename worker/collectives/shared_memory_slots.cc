#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/collectives/packet_slots.h"

namespace trainyard {
namespace {

constexpr int kSender = 0, kReceiver = 1;  // ranks of the segment

// The segment transfers numbered pieces; the number of a piece is its ticket. Each packet has one ticket. The packet is
// in the sender's input space of that ticket if it fits there, otherwise in a buffer of its slot. The sender signals
// kArrived for the ticket, and the receiver kDone.
class SharedMemorySlots final : public PacketSlots {
 public:
  explicit SharedMemorySlots(std::unique_ptr<SharedSegment> segment) : segment_(std::move(segment)) {}

  absl::StatusOr<std::byte*> AwaitRoom(uint64_t number, size_t bytes) override {
    const uint32_t ticket = TicketOf(number);
    RETURN_IF_ERROR(segment_->Await(kReceiver, SharedSegment::kDone, ticket - 2));
    if (bytes <= segment_->piece_bytes()) return segment_->InputSpace(kSender, ticket);
    std::shared_ptr<SharedBuffer>& buffer = buffers_[number % kPacketSlots];
    if (buffer != nullptr && buffer->size() >= bytes) return buffer->data();
    // Grows by at least a half, because the segment has a limited number of buffers.
    const size_t wanted = std::max(bytes, buffer == nullptr ? 0 : buffer->size() / 2 * 3);
    buffer = segment_->NewBuffer(wanted);
    if (buffer != nullptr) return buffer->data();
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", wanted, " bytes of shared memory for a slot"));
  }

  absl::Status Publish(uint64_t number, size_t bytes) override {
    const uint32_t ticket = TicketOf(number);
    const bool fits = bytes <= segment_->piece_bytes();
    segment_->SetLocation(ticket, fits ? nullptr : buffers_[number % kPacketSlots]->data(), bytes);
    segment_->Signal(SharedSegment::kArrived, ticket);
    return absl::OkStatus();
  }

  absl::StatusOr<const std::byte*> AwaitPacket(uint64_t number) override {
    const uint32_t ticket = TicketOf(number);
    RETURN_IF_ERROR(segment_->Await(kSender, SharedSegment::kArrived, ticket));
    ASSIGN_OR_RETURN(const std::byte* buffer, segment_->LocationOf(kSender, ticket));
    return buffer != nullptr ? buffer : segment_->InputSpace(kSender, ticket);
  }

  absl::Status Release(uint64_t number) override {
    segment_->Signal(SharedSegment::kDone, TicketOf(number));
    return absl::OkStatus();
  }

  void Break(absl::string_view) override { segment_->Break(); }

 private:
  // The first two tickets are used by SharedSegment::Join.
  static uint32_t TicketOf(uint64_t number) { return static_cast<uint32_t>(number + 2); }

  const std::unique_ptr<SharedSegment> segment_;
  std::array<std::shared_ptr<SharedBuffer>, kPacketSlots> buffers_;  // of the sender, for packets larger than a piece
};

}  // namespace

std::unique_ptr<PacketSlots> NewSharedMemorySlots(std::unique_ptr<SharedSegment> segment) {
  return std::make_unique<SharedMemorySlots>(std::move(segment));
}

}  // namespace trainyard
