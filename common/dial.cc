#include "common/dial.h"

#include <errno.h>
#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "common/limits.h"
#include "common/listeners.h"
#include "common/network.h"
#include "common/rpc_credentials.h"
#include "common/status_macros.h"
#include "common/tokens.h"
#include "common/user.h"

namespace trainyard {
namespace {

// The local kernel answers immediately, unless the queue of the listener is full.
constexpr int kConnectWaitMs = 100;
// The uid that the kernel reports for a user without a uid in this user namespace: it may stand for any user.
constexpr uid_t kUnmappedUser = 65534;

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  std::string text;  // numeric
};

struct Peer {
  int fd = -1;
  std::string address;       // the address that answered, numeric
  std::vector<uid_t> users;  // the owners of the listening sockets; empty: not known
};

absl::StatusOr<std::vector<Address>> Resolve(const std::string& text) {
  const absl::optional<HostPort> split = SplitHostPort(text);
  if (!split.has_value()) return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not host:port"));
  addrinfo hints = {}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const std::string host(split->host);
  if (const int code = getaddrinfo(host.c_str(), absl::StrCat(split->port).c_str(), &hints, &found); code != 0) {
    return absl::UnavailableError(absl::StrCat("cannot find the address of ", host, ": ", gai_strerror(code)));
  }
  absl::Cleanup free_found = [found] { freeaddrinfo(found); };
  std::vector<Address> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    Address address{.storage = {}, .size = at->ai_addrlen, .text = ""};
    std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
    address.text = NumericAddress(address.storage);
    if (IsLocalAddress(address.text)) addresses.push_back(address);
  }
  return addresses;
}

// Returns a connected socket.
absl::StatusOr<int> Connect(const sockaddr* address, socklen_t size, const std::string& text) {
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot connect to ", text));
  absl::Cleanup close_fd = [fd] { close(fd); };
  int error = connect(fd, address, size) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd connected = {.fd = fd, .events = POLLOUT, .revents = 0};
    socklen_t error_size = sizeof error;
    if (poll(&connected, 1, kConnectWaitMs) != 1) {
      error = ETIMEDOUT;
    } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size) != 0) {
      error = errno;
    }
  }
  if (error != 0) return absl::UnavailableError(absl::StrCat("cannot connect to ", text, ": ", strerror(error)));
  std::move(close_fd).Cancel();
  return fd;
}

absl::StatusOr<Peer> ConnectTcp(const Address& address) {
  ASSIGN_OR_RETURN(const std::vector<uid_t> before, ListeningUsers(address.storage));
  ASSIGN_OR_RETURN(const int fd,
                   Connect(reinterpret_cast<const sockaddr*>(&address.storage), address.size, address.text));
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  absl::StatusOr<std::vector<uid_t>> after = ListeningUsers(address.storage);
  if (!after.ok()) {
    close(fd);
    return after.status();
  }
  absl::StatusOr<std::vector<uid_t>> users = UsersOfTwoLooks(before, *after, address.text);
  if (!users.ok()) {
    close(fd);
    return users.status();
  }
  return Peer{.fd = fd, .address = address.text, .users = *std::move(users)};
}

absl::StatusOr<Peer> ConnectUnix(absl::string_view path, const std::string& text) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() > limits::kSocketPathBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "': expected unix: and a path of 1 to ", limits::kSocketPathBytes, " bytes"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  ASSIGN_OR_RETURN(const int fd, Connect(reinterpret_cast<const sockaddr*>(&address), sizeof address, text));
  Peer peer{.fd = fd, .address = text, .users = {}};
  ucred credentials = {};
  socklen_t size = sizeof credentials;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0) peer.users = {credentials.uid};
  return peer;
}

// `owner` is the owner of the token file that the user named.
absl::Status CheckPeer(const Peer& peer, const std::optional<uid_t>& owner) {
  if (peer.users.empty() && !owner.has_value()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the kernel does not report which user listens at ", peer.address,
        ", so nothing was sent there. If the coordinator listens there, name the file with its token (token_file)"));
  }
  auto is_trusted = [&](uid_t user) {
    if (user == geteuid() || user == 0) return true;
    return owner == user && user != kUnmappedUser;
  };
  std::vector<std::string> untrusted;
  for (uid_t user : peer.users) {
    std::string text = UserText(user);
    if (!is_trusted(user) && std::count(untrusted.begin(), untrusted.end(), text) == 0) {
      untrusted.push_back(std::move(text));
    }
  }
  if (untrusted.empty()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "a program of user ", absl::StrJoin(untrusted, ", "), " listens at ", peer.address, ", but this program runs as ",
      UserText(geteuid()),
      ", so nothing was sent there. If that is the coordinator, name a token file of that user (token_file)"));
}

// A name such as localhost may have several addresses, and another user may listen at one that the coordinator does not
// use. Returns the first trusted peer; if there is none, the first peer.
absl::StatusOr<Peer> ConnectLocally(const std::string& address, const std::optional<uid_t>& owner) {
  if (auto path = SplitUnixAddress(address); path.has_value()) return ConnectUnix(*path, address);
  ASSIGN_OR_RETURN(const std::vector<Address> addresses, Resolve(address));
  absl::Status failed = absl::UnavailableError(absl::StrCat(address, " is not an address of this machine"));
  Peer untrusted;  // fd -1: there is none
  for (const Address& at : addresses) {
    absl::StatusOr<Peer> peer = ConnectTcp(at);
    if (!peer.ok()) {
      failed = peer.status();
      continue;
    }
    const bool is_trusted = CheckPeer(*peer, owner).ok();
    if (untrusted.fd >= 0) close(is_trusted ? untrusted.fd : peer->fd);
    if (is_trusted) return peer;
    if (untrusted.fd < 0) untrusted = *std::move(peer);
  }
  if (untrusted.fd < 0) return failed;
  return untrusted;
}

absl::Status AwaitGreeting(const Peer& peer, absl::Duration wait) {
  pollfd greeting = {.fd = peer.fd, .events = POLLIN, .revents = 0};
  if (poll(&greeting, 1, static_cast<int>(absl::ToInt64Milliseconds(wait))) == 1) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the program that listens at ", peer.address, " has sent nothing for ", absl::FormatDuration(wait)));
}

// Callers treat PermissionDenied as an untrusted peer, so problems with the token file become InvalidArgument.
absl::Status TokenProblem(const absl::Status& status) {
  return absl::IsPermissionDenied(status) ? absl::InvalidArgumentError(status.message()) : status;
}

// Returns the token that a coordinator of this user has written for `address`; empty if there is none.
absl::StatusOr<std::string> OwnToken(const std::string& address) {
  if (SplitUnixAddress(address).has_value()) return std::string();  // the mode of its folder decides who may call
  absl::StatusOr<std::string> folder = UserTokenFolder();
  if (!folder.ok()) return std::string();
  return ReadOwnToken(*folder, address);
}

}  // namespace

void CoordinatorChannel::Authorize(grpc::ClientContext& context) const {
  if (!token.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", token));
}

absl::StatusOr<CoordinatorChannel> DialCoordinator(const DialOptions& options,
                                                   const grpc::ChannelArguments& arguments) {
  CoordinatorChannel dialed;
  std::optional<uid_t> owner;
  if (!options.token_file.empty()) {
    absl::StatusOr<NamedToken> named = ReadNamedToken(options.token_file);
    if (!named.ok()) return TokenProblem(named.status());
    dialed.token = std::move(named->token);
    owner = named->owner;
  }
  if (!IsLocalAddress(options.address)) {
    dialed.channel = grpc::CreateCustomChannel(options.address, MakeChannelCredentials(), arguments);
    return dialed;
  }
  ASSIGN_OR_RETURN(const Peer peer, ConnectLocally(options.address, owner));
  absl::Cleanup close_fd = [fd = peer.fd] { close(fd); };
  dialed.address = peer.address;
  auto find_token_and_check_peer = [&]() -> absl::Status {
    if (!owner.has_value()) {
      absl::StatusOr<std::string> own = OwnToken(peer.address);
      if (!own.ok()) return TokenProblem(own.status());
      dialed.token = *std::move(own);
    }
    return options.requires_trusted_peer || !dialed.token.empty() ? CheckPeer(peer, owner) : absl::OkStatus();
  };
  RETURN_IF_ERROR(find_token_and_check_peer());
  if (options.greeting_wait > absl::ZeroDuration()) {
    RETURN_IF_ERROR(AwaitGreeting(peer, options.greeting_wait));
    // A coordinator writes its token before it accepts connections, so a new coordinator has written its token by now.
    RETURN_IF_ERROR(find_token_and_check_peer());
  }
  std::move(close_fd).Cancel();
  dialed.channel = grpc::CreateCustomInsecureChannelFromFd(options.address, peer.fd, arguments);
  return dialed;
}

bool TokenHasChanged(const DialOptions& options, const CoordinatorChannel& dialed) {
  absl::StatusOr<std::string> token = std::string();
  if (!options.token_file.empty()) {
    absl::StatusOr<NamedToken> named = ReadNamedToken(options.token_file);
    if (named.ok()) token = std::move(named->token);
  } else if (!dialed.address.empty()) {
    token = OwnToken(dialed.address);
  }
  return token.ok() && !token->empty() && *token != dialed.token;
}

}  // namespace trainyard
