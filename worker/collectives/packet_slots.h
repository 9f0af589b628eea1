// The two slots through which the packets of a channel (channel.h) travel from one process to another, as bytes: the
// transport of a channel. Packets are numbered from 1, and packet n uses the same slot as packet n - 2.
//
// The sender calls AwaitRoom and Publish for each packet, the receiver AwaitPacket and Release.
//
// Threads: one thread calls these functions; any other thread may call Break at any time.
// Possible errors of all functions: Unavailable if the peer has exited or left, Aborted after Break, DeadlineExceeded
// after the timeout of the group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/collectives/peer_communicator.h"
#include "worker/collectives/shared_segment.h"

namespace trainyard {

// The number of packets that may be under way.
inline constexpr uint64_t kPacketSlots = 2;

class PacketSlots {
 public:
  virtual ~PacketSlots() = default;

  // Returns memory for packet `number` once packet `number` - 2 has been released. Additional error: ResourceExhausted
  // if there is not enough memory.
  virtual absl::StatusOr<std::byte*> AwaitRoom(uint64_t number, size_t bytes) = 0;
  // Passes on the packet, which the caller has written into the memory that AwaitRoom returned.
  virtual absl::Status Publish(uint64_t number, size_t bytes) = 0;

  // Returns the content of packet `number`, which is valid until Release.
  virtual absl::StatusOr<const std::byte*> AwaitPacket(uint64_t number) = 0;
  virtual absl::Status Release(uint64_t number) = 0;

  // Ends every current and future wait, here and at the peer. Idempotent.
  virtual void Break(absl::string_view reason) = 0;
};

// In both implementations, rank 0 sends and rank 1 receives.

// Slots in memory of the sender that the receiver maps: one copy into a slot and one out of it. Slots grow to the
// largest packet.
std::unique_ptr<PacketSlots> NewSharedMemorySlots(std::unique_ptr<SharedSegment> segment);

// Slots at both ends, connected by messages. The receiver has posted a receive for each slot that was released, so that
// packets arrive while its program computes; Release acknowledges a packet.
std::unique_ptr<PacketSlots> NewGlooSlots(std::unique_ptr<PeerCommunicator> peers);

}  // namespace trainyard
