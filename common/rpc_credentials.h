// The credentials of every gRPC channel and server of ours. All connections are plain text: TCP connections on this
// machine are checked by user (dial.h), calls carry a token (tokens.h). TLS would be added here. Control tier.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

namespace trainyard {

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials();

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials();

}  // namespace trainyard
