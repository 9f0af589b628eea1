#include "coordinator/http/api_status.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/digits.h"
#include "common/rpc_answer.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace trainyard {
namespace {

constexpr size_t kTimeoutDigits = 8;
constexpr size_t kProblemBytes = 1'000;

bool IsPrintable(const google::protobuf::Any& detail) {
  google::rpc::Status alone;
  *alone.add_details() = detail;
  return MessageJson(alone).ok();
}

}  // namespace

int HttpCodeOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string StatusJson(const grpc::Status& status) {
  google::rpc::Status message;
  if (!message.ParseFromString(status.error_details())) message.Clear();
  message.set_code(status.error_code());
  message.set_message(status.error_message());
  absl::StatusOr<std::string> json = MessageJson(message);
  if (json.ok()) return *std::move(json);
  auto& details = *message.mutable_details();
  details.erase(std::remove_if(details.begin(), details.end(), [](const auto& detail) { return !IsPrintable(detail); }),
                details.end());
  return MessageJson(message).value_or(absl::StrCat("{\"code\":", static_cast<int>(status.error_code()), "}"));
}

HttpResponse StatusResponse(const grpc::Status& status) {
  const int code = HttpCodeOf(static_cast<absl::StatusCode>(status.error_code()));
  HttpResponse response{.code = code, .type = kJsonType, .body = StatusJson(status) + "\n"};
  if (code == 401) response.headers = "WWW-Authenticate: Bearer\r\n";
  if (code == 429 || code == 503) response.headers = "Retry-After: 1\r\n";
  return response;
}

HttpResponse StatusResponse(const absl::Status& status) { return StatusResponse(ToGrpcAnswer(status)); }

HttpResponse StatusResponse(int code, const absl::Status& status) {
  HttpResponse response = StatusResponse(status);
  response.code = code;
  return response;
}

HttpResponse RefusalResponse(absl::string_view reason, const HttpResponse& plain) {
  struct Row {
    absl::string_view reason;
    absl::StatusCode code;
    const char* published;
    absl::Duration retry = absl::ZeroDuration();  // zero: a retry does not help
  };
  static constexpr Row kRows[] = {
      {"body_too_large", absl::StatusCode::kResourceExhausted, reasons::kMessageTooLarge},
      {"too_many_bodies", absl::StatusCode::kUnavailable, reasons::kOverloaded, absl::Seconds(1)},
      // The delay is also in the header Retry-After.
      {"too_many_streams", absl::StatusCode::kUnavailable, reasons::kTooManyStreams, absl::Seconds(5)},
      {"slow_body", absl::StatusCode::kDeadlineExceeded, reasons::kBodyTooSlow},
      {"", absl::StatusCode::kInvalidArgument, reasons::kHttpRequestInvalid}};
  const Row* row = std::begin(kRows);
  while (!row->reason.empty() && row->reason != reason) ++row;
  absl::Status status(row->code, absl::StripTrailingAsciiWhitespace(plain.body));
  status = AddReason(std::move(status), row->published);
  if (row->retry > absl::ZeroDuration()) status = AddRetry(std::move(status), row->retry);
  HttpResponse response = StatusResponse(plain.code, status);
  response.headers = plain.headers;
  return response;
}

absl::StatusOr<std::string> MessageJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  if (auto status = google::protobuf::util::MessageToJsonString(message, &json, options); !status.ok()) {
    return absl::InternalError(absl::StrCat("the answer cannot be written as JSON: ", status.ToString()));
  }
  return json;
}

absl::Status ReadMessageJson(const std::string& json, google::protobuf::Message& message) {
  if (json.empty()) return absl::OkStatus();
  const auto status = google::protobuf::util::JsonStringToMessage(json, &message, {});
  if (status.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the body is no ", message.GetDescriptor()->name(),
                                                 " in JSON: ", std::string(status.message()).substr(0, kProblemBytes)));
}

absl::Status PathNotFoundError(absl::string_view message) {
  return AddReason(absl::NotFoundError(message), reasons::kPathNotFound);
}

absl::StatusOr<absl::Duration> ParseGrpcTimeout(absl::string_view text) {
  static constexpr std::pair<char, absl::Duration> kUnits[] = {
      {'H', absl::Hours(1)},        {'M', absl::Minutes(1)},      {'S', absl::Seconds(1)},
      {'m', absl::Milliseconds(1)}, {'u', absl::Microseconds(1)}, {'n', absl::Nanoseconds(1)}};
  const absl::string_view digits = text.substr(0, text.empty() ? 0 : text.size() - 1);
  uint32_t count = 0;
  if (digits.size() <= kTimeoutDigits && ParseDigits(digits, &count)) {
    for (const auto& [name, unit] : kUnits) {
      if (text.back() == name) return count * unit;
    }
  }
  return absl::InvalidArgumentError(
      "Grpc-Timeout must be 1 to 8 digits and a unit: H, M, S, m (milliseconds), u or n; for example 2500m");
}

}  // namespace trainyard
