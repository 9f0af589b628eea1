// A channel carries packets of tensors from one rank to another, in order. Stages of a pipeline exchange activations
// and their gradients through channels, one for each direction. Each of the two ranks has one end:
//
//   ChannelOptions options{.group = group, .from = 0, .to = 1};   // group.name: "activations"
//   ASSIGN_OR_RETURN(std::unique_ptr<Channel> channel, NewChannel(options));
//   channel->Send({.chunk = 0, .micro_batch = 3}, {hidden});                        // on rank 0
//   ASSIGN_OR_RETURN(auto tensors, channel->Receive({.chunk = 0, .micro_batch = 3}));   // on rank 1
//
// A channel has two slots. Send copies its tensors into a free slot and returns: packet n waits only until packet n - 2
// has been received, and never for anything else that the peer's program does. So two packets may be under way, and
// packets move while both ranks compute. Each packet states for which model chunk and micro-batch it is, and Receive
// compares this with what the schedule of its own rank expects.
//
// Guarantees:
//   - Packets arrive in the order in which they were sent, with the same types, shapes and bits. A packet may have any
//     size, and may be empty.
//   - Receive returns new dense tensors, never memory that the channel uses again: autograd may keep the tensors.
//   - A channel does not wait for collectives, and collectives do not wait for a channel: a channel needs no common
//     order with other operations, except on devices (NewChannel).
//   - Packets that are still under way when the sender's end of the channel is destroyed may be lost. Ranks meet in a
//     barrier before they leave.
//
// Threads: one thread sends or receives. Any other thread may call Abort(), progress() and waited_s() at any time, also
// during a wait.
//
// Possible errors of Send and Receive, as in communicator.h:
//   Aborted           Abort() was called: the generation is over.
//   Unavailable       the peer has exited or left, the connection is broken, or the packet is for another chunk or
//                     micro-batch: the generation cannot continue.
//   DeadlineExceeded  the peer received nothing (Send) or sent nothing (Receive) within the group's timeout.
//   InvalidArgument   a tensor cannot be sent. ResourceExhausted: no memory for a packet.
// After the first error the channel is unusable: every further call fails with that error.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/collectives/communicator.h"
#include "worker/collectives/group.h"

namespace trainyard {

// The model chunk and the micro-batch that a packet is for.
struct PacketHeader {
  int chunk = 0;  // of the model
  int micro_batch = 0;

  friend bool operator==(const PacketHeader&, const PacketHeader&) = default;
};

// "chunk 1, micro-batch 3"
std::string DescribePacket(const PacketHeader& header);

inline constexpr int kMaxPacketTensors = 64;
inline constexpr int kMaxPacketDimensions = 8;

// One end of a channel.
class Channel {
 public:
  virtual ~Channel() = default;

  virtual const std::string& name() const = 0;  // "activations 0->1"; the same on both ranks
  virtual int from() const = 0;                 // ranks of the world
  virtual int to() const = 0;

  // On rank `from`. The tensors may be of any strides and may require gradients, which do not travel; they may be
  // changed as soon as Send has returned. At most kMaxPacketTensors, each of at most kMaxPacketDimensions dimensions,
  // in host memory or on the device of the group. Additional error: FailedPrecondition on rank `to`, which leaves the
  // channel usable.
  virtual absl::Status Send(const PacketHeader& header, const std::vector<at::Tensor>& tensors) = 0;

  // On rank `to`. Returns the next packet, which must be for `expected`. Tensors from the sender's device are on the
  // device of this rank. Additional error: FailedPrecondition on rank `from`, which leaves the channel usable.
  virtual absl::StatusOr<std::vector<at::Tensor>> Receive(const PacketHeader& expected) = 0;

  // Ends every current and future call with Aborted: a waiting thread returns within 200 ms, whatever the peer does.
  // The peer's calls end with Unavailable. Idempotent.
  virtual void Abort(absl::string_view reason) = 0;

  // The packets that this end has begun to send or receive, and has completed. `waits_in`: "receive 17 (chunk 1,
  // micro-batch 3)" or "room for packet 19 (chunk 0, micro-batch 5)"; `last_started`, on both ends: "packet 17 (chunk
  // 1, micro-batch 3)". The sender may be two packets ahead of the receiver. From these values, policy/hang.h finds
  // the rank that blocks the others.
  virtual CollectiveProgress progress() const = 0;

  // Total time in Send and Receive spent waiting for the peer.
  virtual double waited_s() const = 0;
};

struct ChannelOptions {
  // `members` is ignored. The group's name and the two ranks identify the channel: a second channel in the same
  // direction needs another name.
  GroupOptions group;
  int from = 0, to = 0;  // ranks of the world; group.rank is one of them
};

// Returns when both ranks have joined. A rank must create its channels in the order that all ranks share, for example
// by (from, to): a rank waits for its peer. Ranks that can share memory use it, other ranks gloo. With a device per
// rank, tensors travel from device to device through a group of the two ranks (GroupDevice::join), and their
// descriptions through host memory; ranks that share a device copy tensors through host memory, too. All channels and
// collectives on the device of a rank must be started in an order that agrees with that of the other ranks, because a
// device runs them one by one.
// Possible errors: InvalidArgument for invalid ranks, also if `from` is `to`, since a rank needs no channel to itself;
// those of NewGroup, with the channel's name.
absl::StatusOr<std::unique_ptr<Channel>> NewChannel(const ChannelOptions& options);

}  // namespace trainyard
