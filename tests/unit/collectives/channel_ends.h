// Both ends of a channel between ranks that are threads, over every transport, for tests of channels.
#pragma once

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "tests/unit/collectives/transports.h"
#include "worker/collectives/channel.h"

namespace trainyard {

inline ChannelOptions ChannelOf(const TransportCase& test_case, int rank, MemoryStore& store, int from = 0,
                                int to = 1) {
  ChannelOptions options{.group = OptionsOf(test_case, rank, store), .from = from, .to = to};
  options.group.name = "activations";
  return options;
}

// Both ends of a channel 0->1.
struct Ends {
  std::unique_ptr<MemoryStore> store = std::make_unique<MemoryStore>();
  std::unique_ptr<Channel> sender, receiver;
};

class Channels : public testing::TestWithParam<TransportCase> {
 protected:
  Ends Join(absl::Duration timeout = absl::Minutes(1)) {
    Ends ends;
    absl::Status status = absl::UnknownError("");
    // A busy machine may delay an end by a short timeout: one attempt in five must succeed.
    const int attempts = timeout < absl::Seconds(10) ? 5 : 1;
    for (int attempt = 0; attempt < attempts && !status.ok(); ++attempt) {
      ends.sender.reset();
      ends.receiver.reset();
      ends.store = std::make_unique<MemoryStore>();
      status = OnRanks(2, [&](int rank) -> absl::Status {
        ChannelOptions options = ChannelOf(GetParam(), rank, *ends.store);
        options.group.timeout = timeout;
        std::unique_ptr<Channel>& end = rank == 0 ? ends.sender : ends.receiver;
        ASSIGN_OR_RETURN(end, NewChannel(options));
        return absl::OkStatus();
      });
    }
    EXPECT_EQ(status, absl::OkStatus());
    return ends;
  }
};

// Over every transport, in host memory and on a simulated device.
inline const auto kChannelCases = testing::Values(
    TransportCase{Transport::kShared, 2}, TransportCase{Transport::kGloo, 2},
    TransportCase{Transport::kShared, 2, DevicePath::kStaged},
    TransportCase{Transport::kShared, 2, DevicePath::kDirect}, TransportCase{Transport::kGloo, 2, DevicePath::kDirect});
inline std::string NameOfCase(const testing::TestParamInfo<TransportCase>& info) { return NameOf(info.param); }

inline at::Tensor Numbers(int64_t count, at::ScalarType type, double first = 0) {
  return at::arange(count, at::kDouble).add(first).to(type);
}

// Waits until another thread waits in the channel, and returns the operation in which it waits.
inline std::string AwaitWait(const Channel& channel, const std::atomic<bool>& has_returned) {
  std::string waits_in;
  while (waits_in.empty() && !has_returned) {
    waits_in = channel.progress().waits_in;
    std::this_thread::yield();
  }
  return waits_in;
}

}  // namespace trainyard
