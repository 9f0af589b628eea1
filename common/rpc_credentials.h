// The credentials of every gRPC channel and server of ours. All connections are plain text. Access is controlled
// by the user who owns the other end of a TCP connection on this machine (dial.h), and by the tokens that calls carry
// (tokens.h). TLS would be added here. Control tier.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

namespace trainyard {

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials();

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials();

}  // namespace trainyard
