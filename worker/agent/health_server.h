// The gRPC health service of the daemon (grpc.health.v1), for tools that monitor hosts. Two services are reported: ""
// is SERVING while the daemon can start trainers, "trainyard.v1.AgentService" while it is also attached to its
// coordinator. Thread-safe.
#pragma once

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace trainyard::agent {

class HealthServer {
 public:
  // `address` is host:port; port 0: any free port. `may_use_free_port`: the user did not choose the port; if it is in
  // use, a free one is used, and `warning()` reports that. Possible errors: Unavailable: the port is still in use
  // after a short wait. InvalidArgument: the address is invalid, or not an address of this host. PermissionDenied:
  // the port is reserved.
  static absl::StatusOr<std::unique_ptr<HealthServer>> Start(absl::string_view address, bool may_use_free_port);
  ~HealthServer();
  HealthServer(const HealthServer&) = delete;
  HealthServer& operator=(const HealthServer&) = delete;

  void SetAttached(bool attached);
  // `trouble`: no trainer can be started on this host, so neither service is SERVING.
  void SetTrouble(bool trouble);

  const std::string& address() const { return address_; }
  // A sentence that the caller should log, or empty.
  const std::string& warning() const { return warning_; }

 private:
  HealthServer() = default;

  void PublishStatus() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TryListen(const std::string& address, int* port);

  // Refuses all calls except those of the health service. gRPC starts no server without an added service; its built-in
  // health service does not count. A service can belong to one server only, so each attempt to listen creates another.
  std::unique_ptr<grpc::CallbackGenericService> refusing_service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::string warning_;
  absl::Mutex mu_;
  bool attached_ ABSL_GUARDED_BY(mu_) = false;
  bool trouble_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace trainyard::agent
