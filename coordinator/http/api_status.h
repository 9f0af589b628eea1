// Statuses of the API as HTTP responses: the code that google.rpc.Code names for each status, and google.rpc.Status
// with its details as JSON. Pure.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/http_message.h"

namespace trainyard {

inline constexpr char kJsonType[] = "application/json; charset=utf-8";

int HttpCodeOf(absl::StatusCode code);

// {"code": 5, "message": "no job x", "details": [...]}. Details of unknown types are left out.
std::string StatusJson(const grpc::Status& status);

HttpResponse StatusResponse(const grpc::Status& status);
HttpResponse StatusResponse(const absl::Status& status);
// With another HTTP code than that of the status.
HttpResponse StatusResponse(int code, const absl::Status& status);
// A refusal of the web server, with the code, text and headers of `plain`; see HttpRefusal.
HttpResponse RefusalResponse(absl::string_view reason, const HttpResponse& plain);

// A message in the JSON of protobuf, on one line, with the names of fields as in the schema. Possible errors: Internal.
absl::StatusOr<std::string> MessageJson(const google::protobuf::Message& message);
// Reads `json` into `message`; an empty text is an empty message. Possible errors: InvalidArgument: the text is not
// the JSON of such a message.
absl::Status ReadMessageJson(const std::string& json, google::protobuf::Message& message);

// NotFound: the port serves nothing at the path of a request.
absl::Status PathNotFoundError(absl::string_view message);

// The deadline in the header Grpc-Timeout: at most 8 digits and a unit (H, M, S, m, u or n), as gRPC defines it.
// Possible errors: InvalidArgument.
absl::StatusOr<absl::Duration> ParseGrpcTimeout(absl::string_view text);

}  // namespace trainyard
