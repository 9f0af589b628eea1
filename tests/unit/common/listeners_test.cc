// Tests how the users of listening sockets are found, with lines in the kernel's format and with a real socket.
#include "common/listeners.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/user.h"
#include "tests/unit/temporary_folder.h"

namespace trainyard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

sockaddr_storage SocketAddress(const char* address, uint16_t port) {
  sockaddr_storage storage = {};
  if (auto& v4 = reinterpret_cast<sockaddr_in&>(storage); inet_pton(AF_INET, address, &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    return storage;
  }
  auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
  EXPECT_EQ(inet_pton(AF_INET6, address, &v6.sin6_addr), 1);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  return storage;
}

// Formats a line of /proc/net/tcp. 7070 is 1B9E; the bytes of addresses are in the order of little-endian machines, the
// only ones that are supported.
std::string Line(const std::string& local, const std::string& state, int user) {
  return absl::StrCat("   0: ", local, " 00000000:0000 ", state, " 00000000:00000000 00:00000000 00000000  ", user,
                      "        0 1129 1 00000000ec1ae5d7 100 0 0 10 0");
}
const std::string kLoopback = "0100007F:1B9E";
const std::string kAnyV4 = "00000000:1B9E";
const std::string kAnyV6 = "00000000000000000000000000000000:1B9E";
const std::string kMapped = "0000000000000000FFFF00000100007F:1B9E";
const std::string kLoopbackV6 = "00000000000000000000000001000000:1B9E";

std::vector<PortOwner> ListenersIn(const std::string& line, const sockaddr_storage& address) {
  std::vector<PortOwner> found;
  EXPECT_TRUE(ParseListener(line, address, &found)) << line;
  return found;
}

TEST(ParseListener, ListenerAtTheAddressOrAtAllAddresses_IsFound) {
  const sockaddr_storage v4 = SocketAddress("127.0.0.1", 7070), v6 = SocketAddress("::1", 7070);
  for (const std::string& local : {kLoopback, kMapped}) {
    const std::vector<PortOwner> found = ListenersIn(Line(local, "0A", 1001), v4);
    ASSERT_EQ(found.size(), 1u) << local;
    EXPECT_EQ(found[0].user, 1001u);
    EXPECT_TRUE(found[0].exact);
    EXPECT_THAT(ListenersIn(Line(local, "0A", 1001), v6), IsEmpty()) << local;
  }
  for (const std::string& local : {kAnyV4, kAnyV6}) {
    ASSERT_EQ(ListenersIn(Line(local, "0A", 7), v4).size(), 1u) << local;
    EXPECT_FALSE(ListenersIn(Line(local, "0A", 7), v4)[0].exact);
  }
  EXPECT_THAT(ListenersIn(Line(kAnyV4, "0A", 7), v6), IsEmpty());
  EXPECT_EQ(ListenersIn(Line(kAnyV6, "0A", 7), v6).size(), 1u);
  EXPECT_EQ(ListenersIn(Line(kLoopbackV6, "0A", 7), v6).size(), 1u);
  EXPECT_THAT(ListenersIn(Line(kLoopbackV6, "0A", 7), v4), IsEmpty());
}

TEST(ParseListener, OtherPortsAndAddresses_AreSkipped) {
  EXPECT_THAT(ListenersIn(Line("0100007F:1B9F", "0A", 1), SocketAddress("127.0.0.1", 7070)), IsEmpty());
  EXPECT_THAT(ListenersIn(Line("0200007F:1B9E", "0A", 1), SocketAddress("127.0.0.1", 7070)), IsEmpty());
}

TEST(ParseListener, FirstLineOfAnotherState_EndsTheSearch) {
  std::vector<PortOwner> found;
  for (const std::string& line : {Line(kLoopback, "01", 1), Line("nonsense", "0A", 1), Line("0100007F", "0A", 1),
                                  std::string(), std::string("   0: 0100007F:1B9E")}) {
    EXPECT_FALSE(ParseListener(line, SocketAddress("127.0.0.1", 7070), &found)) << line;
  }
  EXPECT_THAT(found, IsEmpty());
}

TEST(ListeningUsers, OwnSocket_BelongsToThisUser_UntilItIsClosed) {
  for (const char* address : {"127.0.0.1", "0.0.0.0"}) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_storage bound = SocketAddress(address, 0);
    socklen_t size = sizeof(sockaddr_in);
    ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&bound), size), 0);
    ASSERT_EQ(listen(fd, 1), 0);
    ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size), 0);
    bound = SocketAddress("127.0.0.1", ntohs(reinterpret_cast<sockaddr_in&>(bound).sin_port));

    EXPECT_THAT(*ListeningUsers(bound), ElementsAre(geteuid())) << address;
    close(fd);
    EXPECT_THAT(*ListeningUsers(bound), IsEmpty()) << address;
  }
}

TEST(UsersOfTwoLooks, AreThoseOfBoth_AndUnknownIfOnlyOneFoundAny) {
  const std::vector<uid_t> none, stranger = {65533}, root = {0};

  EXPECT_THAT(*UsersOfTwoLooks(stranger, root, "127.0.0.1:7070"), ElementsAre(65533u, 0u));
  EXPECT_THAT(*UsersOfTwoLooks(none, none, "127.0.0.1:7070"), IsEmpty());
  for (const absl::Status& status : {UsersOfTwoLooks(stranger, none, "127.0.0.1:7070").status(),
                                     UsersOfTwoLooks(none, stranger, "127.0.0.1:7070").status()}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_NE(status.message().find("127.0.0.1:7070 has just changed"), absl::string_view::npos) << status;
  }
}

TEST(UserStateFolder, FoldersOfAnotherUser_AreSkipped) {
  const TemporaryFolder own;
  setenv("XDG_STATE_HOME", own.path().c_str(), 1);
  EXPECT_EQ(*UserStateFolder(), own.path());
  unsetenv("XDG_STATE_HOME");
  setenv("HOME", own.path().c_str(), 1);
  EXPECT_EQ(*UserStateFolder(), own.path() + "/.local/state");
  if (chown(own.path().c_str(), 65533, 65533) != 0) return;  // only root can change the owner of a folder

  absl::StatusOr<std::string> other = UserStateFolder();

  EXPECT_NE(other.value_or(""), own.path() + "/.local/state");
}

}  // namespace
}  // namespace trainyard
