// A trainyard-coordinator as a child process of the bench: starts, kills and restarts it with the same folder and port,
// and measures its CPU and memory. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace trainyard::bench {

class CoordinatorProcess {
 public:
  // `program`: path of trainyard-coordinator; `folder`: for its state and log.
  CoordinatorProcess(std::string program, std::string folder)
      : program_(std::move(program)), folder_(std::move(folder)) {}
  ~CoordinatorProcess() { Kill(); }
  CoordinatorProcess(const CoordinatorProcess&) = delete;
  CoordinatorProcess& operator=(const CoordinatorProcess&) = delete;

  // Returns once the coordinator is ready; uses the same port when called again. Possible errors: Unavailable: it
  // exited before it was ready; see its log.
  absl::Status Start();
  // Sends SIGKILL to the coordinator and waits until it has exited.
  void Kill();

  const std::string& address() const { return address_; }
  // CPU time (user and system) of the running process since its start, and its resident memory in bytes.
  absl::Duration cpu_time() const;
  int64_t resident_bytes() const;

 private:
  absl::Status AwaitReady(int fd);

  const std::string program_;
  const std::string folder_;
  std::string address_;
  pid_t pid_ = -1;
};

// The median time of writing 4 KiB to a file of `folder` with fdatasync: a lower bound for durable operations.
absl::Duration MeasureDataSync(const std::string& folder);

}  // namespace trainyard::bench
