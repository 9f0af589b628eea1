// Routes the log messages of gRPC and protobuf ("chttp2_transport.cc: ...") into our log. Otherwise these libraries
// would write to standard error directly, between lines of JSON, and would wait for its reader. Control tier.
//
//   InitLogging(...);
//   RouteRpcLogs();  // before the first use of gRPC
#pragma once

namespace trainyard {

void RouteRpcLogs();

}  // namespace trainyard
