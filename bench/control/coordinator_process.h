// A trainyard-coordinator as a child of the bench: started, killed, started again on the same folder and port, and its
// use of CPU and memory. One thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace trainyard::bench {

class CoordinatorProcess {
 public:
  // `program` is trainyard-coordinator; `folder` takes its state and its log.
  CoordinatorProcess(std::string program, std::string folder)
      : program_(std::move(program)), folder_(std::move(folder)) {}
  ~CoordinatorProcess() { Kill(); }
  CoordinatorProcess(const CoordinatorProcess&) = delete;
  CoordinatorProcess& operator=(const CoordinatorProcess&) = delete;

  // Returns once it serves; the second time on the port of the first. Possible errors: Unavailable: it ended instead,
  // see its log.
  absl::Status Start();
  // SIGKILL, and waits for its end.
  void Kill();

  const std::string& address() const { return address_; }
  // Of the process that runs: user and system time so far; bytes of memory that are its own now.
  absl::Duration cpu_time() const;
  int64_t resident_bytes() const;

 private:
  absl::Status AwaitReady(int fd);

  const std::string program_;
  const std::string folder_;
  std::string address_;
  pid_t pid_ = -1;
};

// The median time of writing 4 KiB into a file of `folder` and making it durable: what every durable figure stands on.
absl::Duration MeasureDataSync(const std::string& folder);

}  // namespace trainyard::bench
