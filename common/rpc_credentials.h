// The credentials of every gRPC channel and server of ours. All connections are plain text; TLS would be added here.
// Without it, a client checks which user owns the coordinator's end of a connection within this machine (dial.h), and a
// coordinator checks the tokens that calls carry (tokens.h). Control tier.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

namespace trainyard {

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials();

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials();

}  // namespace trainyard
