#include "common/rpc_credentials.h"

namespace trainyard {

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials() { return grpc::InsecureChannelCredentials(); }

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials() { return grpc::InsecureServerCredentials(); }

}  // namespace trainyard
