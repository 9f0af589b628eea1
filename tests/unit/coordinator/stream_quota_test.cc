// The limits of the open streams of readers.
#include "coordinator/rpc/stream_quota.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace trainyard {
namespace {

using ::testing::HasSubstr;

TEST(StreamQuota, StreamsOfOneAddress_AndAllTogether_AreLimited_UntilOneEnds) {
  std::optional<StreamQuota> quota(std::in_place, StreamLimits{.all = 3, .of_address = 2});
  absl::StatusOr<StreamQuota::Slot> first = quota->Open("ipv4:10.0.0.1:4711");
  absl::StatusOr<StreamQuota::Slot> second = quota->Open("ipv4:10.0.0.1:4712");
  ASSERT_TRUE(first.ok() && second.ok());

  absl::Status refused = quota->Open("ipv4:10.0.0.1:4713").status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("2 streams of Watch and Logs are open for programs at "
                                                        "ipv4:10.0.0.1, and one address can have no more"));
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  absl::StatusOr<StreamQuota::Slot> other = quota->Open("ipv6:[::1]:4711");
  ASSERT_TRUE(other.ok()) << other.status();
  refused = quota->Open("unix:").status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("3 streams of Watch and Logs are open, and the coordinator"));

  first->reset();
  EXPECT_TRUE(quota->Open("ipv4:10.0.0.1:4714").ok());
  EXPECT_TRUE(quota->Open("unix:").ok()) << "the stream before this one has ended";
  quota.reset();
  second->reset();  // a stream may end after the server
}

}  // namespace
}  // namespace trainyard
