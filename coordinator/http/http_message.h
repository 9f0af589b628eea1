// HTTP/1.1 requests and responses of the status page. Pure. Supports only what the page needs: no bodies of requests,
// no percent-encoding (paths and parameters of the API consist of letters, digits and -_.), one response per
// connection.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace trainyard {

struct HttpRequest {
  bool is_head = false;
  std::string path;  // without parameters
  std::map<std::string, std::string> parameters;
  std::map<std::string, std::string> headers;  // names in lower case

  absl::optional<absl::string_view> header(const std::string& name) const;
};

struct HttpResponse {
  int code = 200;
  std::string type = "application/json";  // of the body
  std::string body = {};
  std::string headers = {};  // more header lines, each with its line end
};

// Possible errors: InvalidArgument: `text` is not a GET or HEAD request, a parameter has an unexpected character or
// occurs twice, or a header that decides about access occurs twice.
absl::StatusOr<HttpRequest> ParseHttpRequest(absl::string_view text);

// The response as it is sent, with the headers that all responses of the page have. They forbid caching, framing, use
// by other origins, and content from elsewhere.
std::string SerializeHttpResponse(const HttpResponse& response, bool with_body);

// The HTTP status code for a status of the API.
int HttpCodeOf(absl::StatusCode code);

}  // namespace trainyard
