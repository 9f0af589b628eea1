#include "common/http_message.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/digits.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr size_t kHeadersMax = 100;
constexpr size_t kMethodBytes = 16;

// If one of these occurred twice, two programs that parse the request could understand it differently.
constexpr const char* kUniqueHeaders[] = {"host",   "authorization",  "content-length",    "content-type",
                                          "origin", "sec-fetch-site", "transfer-encoding", "last-event-id"};

bool IsPlain(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  });
}

bool IsAllowed(unsigned char c) { return c == '\r' || c == '\n' || c == '\t' || (c >= 0x20 && c != 0x7f); }

bool IsMethod(absl::string_view text) {
  return !text.empty() && text.size() <= kMethodBytes &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isupper(c); });
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
  if (colon == absl::string_view::npos || colon == 0 || absl::ascii_isspace(static_cast<unsigned char>(line[0])) ||
      absl::ascii_isspace(static_cast<unsigned char>(line[colon - 1]))) {
    return absl::InvalidArgumentError("a header line has the form NAME: VALUE");
  }
  const std::string name = absl::AsciiStrToLower(line.substr(0, colon));
  const absl::string_view value = absl::StripAsciiWhitespace(line.substr(colon + 1));
  const bool is_new = request.headers.emplace(name, std::string(value)).second;
  if (!is_new && std::find(std::begin(kUniqueHeaders), std::end(kUniqueHeaders), name) != std::end(kUniqueHeaders)) {
    return absl::InvalidArgumentError(absl::StrCat("the header ", name, " occurs twice"));
  }
  if (request.headers.size() > kHeadersMax) {
    return absl::InvalidArgumentError(absl::StrCat("there are more than ", kHeadersMax, " headers"));
  }
  return absl::OkStatus();
}

absl::Status SetLength(HttpRequest& request) {
  if (request.header("transfer-encoding").has_value()) {
    return absl::UnimplementedError("a body needs the header Content-Length; Transfer-Encoding is not supported");
  }
  const auto length = request.header("content-length");
  if (!length.has_value()) return absl::OkStatus();
  uint64_t bytes = 0;
  if (!ParseDigits(*length, &bytes)) {
    return absl::InvalidArgumentError("Content-Length must be a number of bytes");
  }
  request.content_length = bytes;
  return absl::OkStatus();
}

absl::string_view ReasonOf(int code) {
  static constexpr std::pair<int, const char*> kReasons[] = {{200, "OK"},
                                                             {304, "Not Modified"},
                                                             {400, "Bad Request"},
                                                             {401, "Unauthorized"},
                                                             {403, "Forbidden"},
                                                             {404, "Not Found"},
                                                             {405, "Method Not Allowed"},
                                                             {406, "Not Acceptable"},
                                                             {408, "Request Timeout"},
                                                             {409, "Conflict"},
                                                             {411, "Length Required"},
                                                             {413, "Content Too Large"},
                                                             {415, "Unsupported Media Type"},
                                                             {421, "Misdirected Request"},
                                                             {429, "Too Many Requests"},
                                                             {431, "Request Header Fields Too Large"},
                                                             {499, "Client Closed Request"},
                                                             {501, "Not Implemented"},
                                                             {503, "Service Unavailable"},
                                                             {504, "Gateway Timeout"}};
  for (const auto& [known, reason] : kReasons) {
    if (known == code) return reason;
  }
  return "Internal Server Error";
}

std::string SerializeStatus(const HttpResponse& response) {
  return absl::StrCat("HTTP/1.1 ", response.code, " ", ReasonOf(response.code), "\r\n",
                      response.type.empty() ? "" : absl::StrCat("Content-Type: ", response.type, "\r\n"));
}

}  // namespace

absl::optional<absl::string_view> HttpRequest::header(const std::string& name) const {
  const auto it = headers.find(name);
  if (it == headers.end()) return absl::nullopt;
  return it->second;
}

HttpResponse HttpText(int code, absl::string_view text, absl::string_view headers) {
  return {
      .code = code, .type = "text/plain; charset=utf-8", .body = std::string(text), .headers = std::string(headers)};
}

absl::StatusOr<HttpRequest> ParseHttpHead(absl::string_view head) {
  if (!absl::c_all_of(head, IsAllowed)) return absl::InvalidArgumentError("the head has a control character");
  const std::vector<absl::string_view> lines = absl::StrSplit(head, '\n');
  const std::vector<absl::string_view> parts = absl::StrSplit(absl::StripSuffix(lines[0], "\r"), ' ');
  if (parts.size() != 3 || !absl::StartsWith(parts[2], "HTTP/1.") || !absl::StartsWith(parts[1], "/") ||
      !IsMethod(parts[0])) {
    return absl::InvalidArgumentError("this is not an HTTP/1.1 request");
  }
  HttpRequest request;
  request.method = std::string(parts[0]);
  request.is_http10 = parts[2] == "HTTP/1.0";
  const std::pair<absl::string_view, absl::string_view> target = absl::StrSplit(parts[1], absl::MaxSplits('?', 1));
  request.path = std::string(target.first);
  RETURN_IF_ERROR(AddParameters(target.second, request));
  for (size_t i = 1; i < lines.size(); ++i) {
    const absl::string_view line = absl::StripSuffix(lines[i], "\r");
    if (line.empty()) break;
    RETURN_IF_ERROR(AddHeader(line, request));
  }
  RETURN_IF_ERROR(SetLength(request));
  return request;
}

std::string SerializeHttpResponse(const HttpResponse& response, absl::string_view headers, bool with_body) {
  return absl::StrCat(SerializeStatus(response), "Content-Length: ", response.body.size(), "\r\nConnection: close\r\n",
                      headers, response.headers, "\r\n",
                      with_body ? absl::string_view(response.body) : absl::string_view());
}

std::string SerializeHttpHead(const HttpResponse& response, absl::string_view headers, bool chunked) {
  return absl::StrCat(SerializeStatus(response), chunked ? "Transfer-Encoding: chunked\r\n" : "",
                      "Connection: close\r\n", headers, response.headers, "\r\n");
}

std::string SerializeHttpChunk(absl::string_view text) {
  return absl::StrCat(absl::Hex(text.size()), "\r\n", text, "\r\n");
}

}  // namespace trainyard
