// What gRPC and protobuf say by themselves ("chttp2_transport.cc: ...") goes into our log, as lines of its form: they
// would otherwise write to standard error directly, into the middle of lines of JSON, and wait for its reader.
// Control tier.
//
//   InitLogging(...);
//   RouteRpcLogs();  // before the first use of gRPC
#pragma once

namespace trainyard {

void RouteRpcLogs();

}  // namespace trainyard
