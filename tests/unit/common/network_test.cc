// Addresses as text, for trainctl, the coordinator and the daemon.
#include "common/network.h"

#include <gtest/gtest.h>

namespace trainyard {
namespace {

struct Row {
  const char* text;
  const char* host;
  uint32_t port;
};

TEST(SplitHostPort, NamesAndAddresses_AreSplit) {
  for (const Row& row : {Row{"127.0.0.1:7070", "127.0.0.1", 7070}, Row{"w1.example:1", "w1.example", 1},
                         Row{"[::1]:65535", "::1", 65535}, Row{"[fe80::1]:80", "fe80::1", 80}}) {
    auto split = SplitHostPort(row.text);
    ASSERT_TRUE(split.has_value()) << row.text;
    EXPECT_EQ(split->host, row.host);
    EXPECT_EQ(split->port, row.port);
  }
}

TEST(SplitHostPort, OtherText_IsRejected) {
  for (const char* bad : {"", "host", ":7070", "host:", "host:0", "host:65536", "host:x", "host: 80", "host:+80",
                          "::1:7070", "[]:80", "[::1:80", "host:99999999999"}) {
    EXPECT_FALSE(SplitHostPort(bad).has_value()) << bad;
  }
}

TEST(SplitHostPort, Port0_IsValidForListening) {
  EXPECT_EQ(SplitHostPort("127.0.0.1:0", /*port_min=*/0)->port, 0u);
  EXPECT_FALSE(SplitHostPort("127.0.0.1:", /*port_min=*/0).has_value());
}

TEST(LoopbackHosts, OnlyLoopbackAddressesAndLocalhost_AreThisMachine) {
  for (const char* good : {"localhost", "::1", "127.0.0.1", "127.9.8.7"}) EXPECT_TRUE(IsLoopbackHost(good)) << good;
  for (const char* bad : {"", "127.evil.example", "10.0.0.1", "::2"}) EXPECT_FALSE(IsLoopbackHost(bad)) << bad;
}

TEST(GrpcTargets, OfUnixSockets_AreUris) {
  EXPECT_EQ(GrpcTarget("127.0.0.1:7070"), "127.0.0.1:7070");
  EXPECT_EQ(GrpcTarget("unix:/run/a b/socket"), "unix:/run/a b/socket");
  EXPECT_EQ(GrpcTarget("unix:/c#/50%/a?/%23"), "unix:/c%23/50%25/a%3F/%2523");
}

}  // namespace
}  // namespace trainyard
