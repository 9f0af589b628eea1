#include "common/error_details.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "common/plain_text.h"

namespace trainyard {
namespace {

// gRPC sends both the message and the details of a status in headers, whose total size clients limit (rpc_status.h).
// These limits on the details leave space for the message.
constexpr size_t kMetadataBytesMax = 280;  // all keys and values together
constexpr size_t kValueBytesMax = 64;

template <typename Detail>
absl::optional<Detail> DetailOf(const absl::Status& status, absl::string_view url) {
  const absl::optional<absl::Cord> payload = status.GetPayload(url);
  Detail detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) return absl::nullopt;
  return detail;
}

absl::Status Add(absl::Status status, absl::string_view url, const google::protobuf::Message& detail) {
  status.SetPayload(url, absl::Cord(detail.SerializeAsString()));
  return status;
}

const char* DefaultReason(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return reasons::kInvalidRequest;
    case absl::StatusCode::kFailedPrecondition:
      return reasons::kWrongState;
    case absl::StatusCode::kUnavailable:
      return reasons::kOverloaded;
    case absl::StatusCode::kDeadlineExceeded:
      return reasons::kDeadlineExceeded;
    case absl::StatusCode::kCancelled:
      return reasons::kCallCancelled;
    default:
      return reasons::kInternalError;
  }
}

}  // namespace

absl::optional<google::rpc::ErrorInfo> ErrorInfoOf(const absl::Status& status) {
  return DetailOf<google::rpc::ErrorInfo>(status, kErrorInfoUrl);
}

std::string ReasonOf(const absl::Status& status) {
  const auto info = ErrorInfoOf(status);
  return info.has_value() ? info->reason() : "";
}

google::rpc::BadRequest BadRequestOf(const absl::Status& status) {
  return DetailOf<google::rpc::BadRequest>(status, kBadRequestUrl).value_or(google::rpc::BadRequest());
}

absl::optional<google::rpc::ResourceInfo> ResourceInfoOf(const absl::Status& status) {
  return DetailOf<google::rpc::ResourceInfo>(status, kResourceInfoUrl);
}

absl::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  const auto retry = DetailOf<google::rpc::RetryInfo>(status, kRetryInfoUrl);
  if (!retry.has_value()) return absl::nullopt;
  return absl::Seconds(retry->retry_delay().seconds()) + absl::Nanoseconds(retry->retry_delay().nanos());
}

absl::Status AddReason(absl::Status status, absl::string_view reason) {
  google::rpc::ErrorInfo info = ErrorInfoOf(status).value_or(google::rpc::ErrorInfo());
  if (!info.reason().empty()) return status;
  info.set_reason(std::string(reason));
  info.set_domain(kErrorDomain);
  return Add(std::move(status), kErrorInfoUrl, info);
}

absl::Status AddMetadata(absl::Status status, absl::string_view key, absl::string_view value) {
  google::rpc::ErrorInfo info = ErrorInfoOf(status).value_or(google::rpc::ErrorInfo());
  size_t bytes = key.size() + std::min(value.size(), kValueBytesMax);
  for (const auto& [known, text] : info.metadata()) bytes += known.size() + text.size();
  if (bytes > kMetadataBytesMax) return status;
  (*info.mutable_metadata())[std::string(key)] = ValidUtf8(value, kValueBytesMax);
  return Add(std::move(status), kErrorInfoUrl, info);
}

absl::Status AddResource(absl::Status status, absl::string_view type, absl::string_view name) {
  google::rpc::ResourceInfo resource;
  resource.set_resource_type(std::string(type));
  resource.set_resource_name(ValidUtf8(name, 2 * kValueBytesMax));
  return Add(std::move(status), kResourceInfoUrl, resource);
}

absl::Status AddRetry(absl::Status status, absl::Duration delay) {
  google::rpc::RetryInfo retry;
  absl::Duration rest;
  retry.mutable_retry_delay()->set_seconds(absl::IDivDuration(delay, absl::Seconds(1), &rest));
  retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
  return Add(std::move(status), kRetryInfoUrl, retry);
}

absl::Status InvalidFieldError(absl::string_view field, absl::string_view message) {
  google::rpc::BadRequest details;
  google::rpc::BadRequest::FieldViolation& violation = *details.add_field_violations();
  violation.set_field(std::string(field));
  violation.set_description(ValidUtf8(message, 400));
  return Add(absl::InvalidArgumentError(message), kBadRequestUrl, details);
}

absl::Status CompleteDetails(absl::Status status) {
  if (status.ok()) return status;
  const char* const reason = DefaultReason(status.code());
  return AddReason(std::move(status), reason);
}

}  // namespace trainyard
