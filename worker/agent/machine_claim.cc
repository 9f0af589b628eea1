#include "worker/agent/machine_claim.h"

#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

namespace trainyard::agent {

MachineClaim::MachineClaim(absl::string_view name) : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
  if (fd_ < 0) return;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name = name.substr(0, sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // a first byte of 0 makes the name abstract
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(fd_, reinterpret_cast<const sockaddr*>(&address), size) == 0) return;
  close(fd_);
  fd_ = -1;
}

MachineClaim::~MachineClaim() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace trainyard::agent
