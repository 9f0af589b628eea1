#include "coordinator/http/http_message.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr size_t kHeadersMax = 100;

// The content policy lets the page use its own script and style, and nothing else.
constexpr char kHttpHeaders[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cache-Control: no-store\r\n"
    "Connection: close\r\n";

bool IsPlain(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
}

absl::Status AddParameters(absl::string_view query, HttpRequest& request) {
  for (absl::string_view part : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parameter = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (!IsPlain(parameter.first) || !IsPlain(parameter.second)) {
      return absl::InvalidArgumentError("a parameter may consist of letters, digits and -_. only");
    }
    if (!request.parameters.emplace(parameter.first, parameter.second).second) {
      return absl::InvalidArgumentError(absl::StrCat("the parameter ", parameter.first, " occurs twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status AddHeader(absl::string_view line, HttpRequest& request) {
  const size_t colon = line.find(':');
  if (colon == absl::string_view::npos || colon == 0 || absl::ascii_isspace(static_cast<unsigned char>(line[0]))) {
    return absl::InvalidArgumentError("a header line has the form NAME: VALUE");
  }
  const std::string name = absl::AsciiStrToLower(line.substr(0, colon));
  const absl::string_view value = absl::StripAsciiWhitespace(line.substr(colon + 1));
  const bool is_new = request.headers.emplace(name, std::string(value)).second;
  if (!is_new && (name == "host" || name == "authorization")) {
    return absl::InvalidArgumentError(absl::StrCat("the header ", name, " occurs twice"));
  }
  if (request.headers.size() > kHeadersMax) {
    return absl::InvalidArgumentError(absl::StrCat("there are more than ", kHeadersMax, " headers"));
  }
  return absl::OkStatus();
}

absl::string_view ReasonOf(int code) {
  static constexpr std::pair<int, const char*> kReasons[] = {
      {200, "OK"},        {304, "Not Modified"}, {400, "Bad Request"},         {401, "Unauthorized"},
      {403, "Forbidden"}, {404, "Not Found"},    {421, "Misdirected Request"}, {503, "Service Unavailable"}};
  for (const auto& [known, reason] : kReasons) {
    if (known == code) return reason;
  }
  return "Internal Server Error";
}

}  // namespace

absl::optional<absl::string_view> HttpRequest::header(const std::string& name) const {
  const auto it = headers.find(name);
  if (it == headers.end()) return absl::nullopt;
  return it->second;
}

absl::StatusOr<HttpRequest> ParseHttpRequest(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  const std::vector<absl::string_view> parts = absl::StrSplit(absl::StripSuffix(lines[0], "\r"), ' ');
  if (parts.size() != 3 || !absl::StartsWith(parts[2], "HTTP/1.") || !absl::StartsWith(parts[1], "/") ||
      (parts[0] != "GET" && parts[0] != "HEAD")) {
    return absl::InvalidArgumentError("this is not a GET or HEAD request of HTTP/1.1");
  }
  HttpRequest request;
  request.is_head = parts[0] == "HEAD";
  const std::pair<absl::string_view, absl::string_view> target = absl::StrSplit(parts[1], absl::MaxSplits('?', 1));
  request.path = std::string(target.first);
  RETURN_IF_ERROR(AddParameters(target.second, request));
  for (size_t i = 1; i < lines.size(); ++i) {
    const absl::string_view line = absl::StripSuffix(lines[i], "\r");
    if (line.empty()) break;
    RETURN_IF_ERROR(AddHeader(line, request));
  }
  return request;
}

std::string SerializeHttpResponse(const HttpResponse& response, bool with_body) {
  return absl::StrCat("HTTP/1.1 ", response.code, " ", ReasonOf(response.code), "\r\nContent-Type: ", response.type,
                      "; charset=utf-8\r\nContent-Length: ", response.body.size(), "\r\n", kHttpHeaders,
                      response.headers, "\r\n", with_body ? absl::string_view(response.body) : absl::string_view());
}

int HttpCodeOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

}  // namespace trainyard
