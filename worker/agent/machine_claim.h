// Decides which of the daemons of a machine may assume that its ranks alone use the cores: the one that has claimed the
// machine. A claim is an abstract Unix socket, which the kernel removes when its process ends. All users of a network
// namespace see it. Thread-safe.
#pragma once

#include "absl/strings/string_view.h"

namespace trainyard::agent {

class MachineClaim {
 public:
  // Claims the machine, unless another daemon has claimed it. `name`: of the socket, at most 100 bytes.
  explicit MachineClaim(absl::string_view name = "trainyard-worker-cores");
  ~MachineClaim();
  MachineClaim(const MachineClaim&) = delete;
  MachineClaim& operator=(const MachineClaim&) = delete;

  bool held() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace trainyard::agent
