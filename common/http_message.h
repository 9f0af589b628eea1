// HTTP/1.1 requests and responses as the daemons serve them. Pure. Supports only what their ports need: no
// percent-encoding (paths and parameters consist of letters, digits and -_.), only bodies with a Content-Length, one
// response per connection.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace trainyard {

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // without parameters
  std::map<std::string, std::string> parameters;
  std::map<std::string, std::string> headers;  // names in lower case
  bool is_http10 = false;                      // the client does not know chunks
  size_t content_length = 0;
  std::string body = {};
  std::string peer = {};    // "127.0.0.1:5012"
  absl::Time arrival = {};  // when its head was complete

  absl::optional<absl::string_view> header(const std::string& name) const;
};

struct HttpResponse {
  int code = 200;
  std::string type = "application/json";  // of the body, with its charset; empty: there is no body
  std::string body = {};
  std::string headers = {};  // more header lines, each with its line end
};

// A response in plain text.
HttpResponse HttpText(int code, absl::string_view text, absl::string_view headers = "");

// Reads the head of a request: everything up to the empty line. Possible errors: InvalidArgument: `head` is not the
// head of an HTTP/1.1 request, a parameter has an unexpected character or occurs twice, a header that decides about
// access or length occurs twice, or Content-Length is not a number. Unimplemented: the body has no Content-Length.
absl::StatusOr<HttpRequest> ParseHttpHead(absl::string_view head);

// The response as it is sent, with `headers` in addition to its own and to Connection: close.
std::string SerializeHttpResponse(const HttpResponse& response, absl::string_view headers, bool with_body);

// The head of a response whose length is not known. `chunked`: its body is sent in chunks, so that the client notices a
// missing end.
std::string SerializeHttpHead(const HttpResponse& response, absl::string_view headers, bool chunked);

// One chunk of a body; the empty text is the last one.
std::string SerializeHttpChunk(absl::string_view text);

}  // namespace trainyard
