#include "worker/agent/health_server.h"

#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace trainyard::agent {
namespace {

constexpr char kSession[] = "trainyard.v1.AgentService";

}  // namespace

void HealthServer::TryListen(const std::string& address, int* port) {
  grpc::ServerBuilder builder;
  // Without this a second daemon would share the port in silence.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  rest_ = std::make_unique<grpc::CallbackGenericService>();
  builder.RegisterCallbackGenericService(rest_.get());
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), port);
  server_ = builder.BuildAndStart();
}

absl::StatusOr<std::unique_ptr<HealthServer>> HealthServer::Start(absl::string_view address) {
  grpc::EnableDefaultHealthCheckService(true);
  auto health = std::unique_ptr<HealthServer>(new HealthServer);
  std::string host(address.substr(0, address.rfind(':')));
  int port = 0;
  health->TryListen(std::string(address), &port);
  if (health->server_ == nullptr) health->TryListen(absl::StrCat(host, ":0"), &port);
  grpc::EnableDefaultHealthCheckService(false);  // the trainers' socket has none
  if (health->server_ == nullptr || port == 0) {
    return absl::InvalidArgumentError(absl::StrCat("the health service cannot be served on ", address, ": '", host,
                                                   "' is not an address of this host"));
  }
  health->address_ = absl::StrCat(host, ":", port);
  if (health->address_ != address && !absl::EndsWith(address, ":0")) {
    health->warning_ = absl::StrCat("health port ", address, " is taken; serving on ", health->address_, " instead");
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
  Tell();
}

void HealthServer::SetTrouble(bool trouble) {
  absl::MutexLock lock(&mu_);
  if (std::exchange(trouble_, trouble) != trouble) Tell();
}

void HealthServer::Tell() {
  server_->GetHealthCheckService()->SetServingStatus("", !trouble_);
  server_->GetHealthCheckService()->SetServingStatus(kSession, attached_ && !trouble_);
}

}  // namespace trainyard::agent
