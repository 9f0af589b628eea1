#include "worker/agent/health_server.h"

#include <grpcpp/health_check_service_interface.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/listen.h"
#include "common/rpc_credentials.h"

namespace trainyard::agent {
namespace {

constexpr char kAgentService[] = "trainyard.v1.AgentService";

}  // namespace

void HealthServer::TryListen(const std::string& address, int* port) {
  server_.reset();
  grpc::ServerBuilder builder;
  // Without this, a second daemon would share the port without an error.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  refusing_service_ = std::make_unique<grpc::CallbackGenericService>();
  builder.RegisterCallbackGenericService(refusing_service_.get());
  builder.AddListeningPort(address, MakeServerCredentials(), port);
  server_ = builder.BuildAndStart();
}

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Start(absl::string_view address, bool may_use_free_port) {
  auto health = std::unique_ptr<HealthServer>(new HealthServer);
  const std::string host(address.substr(0, address.rfind(':')));
  // gRPC reports only that it cannot listen; this socket reports why, and is closed before gRPC opens its own.
  absl::StatusOr<Listener> listener =
      ListenOn(address, may_use_free_port ? absl::ZeroDuration() : limits::kTakeOverWait);
  if (listener.ok()) close(listener->fd);
  bool uses_free_port = may_use_free_port && absl::IsUnavailable(listener.status());
  if (absl::IsUnavailable(listener.status()) && !uses_free_port) {
    return absl::UnavailableError(absl::StrCat("health: ", listener.status().message(),
                                               "; stop the program that listens there, or give --health another "
                                               "address (port 0: any free port; an empty address: no health service)"));
  }
  if (!listener.ok() && !uses_free_port) {
    return absl::Status(listener.status().code(), absl::StrCat("health: ", listener.status().message()));
  }
  grpc::EnableDefaultHealthCheckService(true);
  int port = 0;
  health->TryListen(uses_free_port ? absl::StrCat(host, ":0") : std::string(address), &port);
  if (may_use_free_port && !uses_free_port && (health->server_ == nullptr || port == 0)) {
    // Another program took the port after our check, before gRPC listened.
    uses_free_port = true;
    health->TryListen(absl::StrCat(host, ":0"), &port);
  }
  grpc::EnableDefaultHealthCheckService(false);  // the server for trainers starts later and must have no health service
  if (health->server_ == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("health: cannot serve on ", address,
                                               "; another program may have taken "
                                               "the port just now, so start again"));
  }
  health->address_ = absl::StrCat(host, ":", port);
  if (uses_free_port) {
    health->warning_ = absl::StrCat("health port ", address, " is in use; serving on ", health->address_, " instead");
  }
  health->SetAttached(false);
  return health;
}

HealthServer::~HealthServer() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

void HealthServer::SetAttached(bool attached) {
  absl::MutexLock lock(&mu_);
  attached_ = attached;
  PublishStatus();
}

void HealthServer::SetTrouble(bool trouble) {
  absl::MutexLock lock(&mu_);
  if (std::exchange(trouble_, trouble) != trouble) PublishStatus();
}

void HealthServer::PublishStatus() {
  server_->GetHealthCheckService()->SetServingStatus("", !trouble_);
  server_->GetHealthCheckService()->SetServingStatus(kAgentService, attached_ && !trouble_);
}

}  // namespace trainyard::agent
