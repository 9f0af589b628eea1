// Details of errors that programs can read: google.rpc messages as payloads of a status, which rpc_status.h sends as
// the details of the gRPC status. Only this file and bad_request.h make them. Pure.
//
//   return AddReason(absl::FailedPreconditionError("this coordinator sends no webhooks"), reasons::kWebhooksDisabled);
//
// Each function returns the status with one detail more. docs/services.md lists the reasons for users of the API.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "google/rpc/error_details.pb.h"

namespace trainyard {

inline constexpr char kErrorDomain[] = "trainyard";
inline constexpr char kBadRequestUrl[] = "type.googleapis.com/google.rpc.BadRequest";
inline constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
inline constexpr char kResourceInfoUrl[] = "type.googleapis.com/google.rpc.ResourceInfo";
inline constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";

// The values of ErrorInfo.reason. Published: a reason never changes its meaning.
namespace reasons {
inline constexpr char kInvalidRequest[] = "INVALID_REQUEST";
inline constexpr char kJobNotFound[] = "JOB_NOT_FOUND";
inline constexpr char kHostNotFound[] = "HOST_NOT_FOUND";
inline constexpr char kRankNotFound[] = "RANK_NOT_FOUND";
inline constexpr char kJobIdInUse[] = "JOB_ID_IN_USE";
inline constexpr char kJobDeleted[] = "JOB_DELETED";
inline constexpr char kWrongState[] = "WRONG_STATE";
inline constexpr char kHostInUse[] = "HOST_IN_USE";
inline constexpr char kWebhooksDisabled[] = "WEBHOOKS_DISABLED";
inline constexpr char kUnsavedSteps[] = "UNSAVED_STEPS";
inline constexpr char kIncompatibleVersion[] = "INCOMPATIBLE_VERSION";
inline constexpr char kVersionMismatch[] = "VERSION_MISMATCH";
inline constexpr char kVersionExpired[] = "VERSION_EXPIRED";
inline constexpr char kVersionUnknown[] = "VERSION_UNKNOWN";
inline constexpr char kNamespaceLimit[] = "NAMESPACE_LIMIT";
inline constexpr char kTooManyJobs[] = "TOO_MANY_JOBS";
inline constexpr char kTooManyStreams[] = "TOO_MANY_STREAMS";
inline constexpr char kOverloaded[] = "OVERLOADED";
inline constexpr char kShuttingDown[] = "SHUTTING_DOWN";
inline constexpr char kStoreUnwritable[] = "STORE_UNWRITABLE";
inline constexpr char kHostNotConnected[] = "HOST_NOT_CONNECTED";
inline constexpr char kRankNotReporting[] = "RANK_NOT_REPORTING";
inline constexpr char kTokenMissing[] = "TOKEN_MISSING";
inline constexpr char kTokenWrong[] = "TOKEN_WRONG";
inline constexpr char kOperatorRequired[] = "OPERATOR_REQUIRED";
inline constexpr char kDeadlineExceeded[] = "DEADLINE_EXCEEDED";
inline constexpr char kNoAnswerInTime[] = "NO_ANSWER_IN_TIME";
inline constexpr char kCallCancelled[] = "CALL_CANCELLED";
inline constexpr char kStarting[] = "STARTING_UP";
inline constexpr char kMethodUnknown[] = "METHOD_UNKNOWN";
inline constexpr char kMessageTooLarge[] = "MESSAGE_TOO_LARGE";
inline constexpr char kInternalError[] = "INTERNAL_ERROR";
// Reasons that only the HTTP port gives.
inline constexpr char kTokenNotConfigured[] = "TOKEN_NOT_CONFIGURED";
inline constexpr char kPortNotPrivate[] = "PORT_NOT_PRIVATE";
inline constexpr char kOtherSite[] = "OTHER_SITE";
inline constexpr char kPathNotFound[] = "PATH_NOT_FOUND";
inline constexpr char kHttpMethodNotAllowed[] = "HTTP_METHOD_NOT_ALLOWED";
inline constexpr char kContentTypeNotJson[] = "CONTENT_TYPE_NOT_JSON";
inline constexpr char kHttpRequestInvalid[] = "HTTP_REQUEST_INVALID";
inline constexpr char kBodyTooSlow[] = "BODY_TOO_SLOW";
// Reasons that only the streams of worker daemons give.
inline constexpr char kHostNameInUse[] = "HOST_NAME_IN_USE";
inline constexpr char kDaemonReplaced[] = "DAEMON_REPLACED";
inline constexpr char kOtherCluster[] = "OTHER_CLUSTER";
inline constexpr char kTooManyHosts[] = "TOO_MANY_HOSTS";
inline constexpr char kLogReaderGone[] = "LOG_READER_GONE";
}  // namespace reasons

// Sets the reason, unless the status already has one.
absl::Status AddReason(absl::Status status, absl::string_view reason);
// Adds a value to the metadata of the reason; a long value is cut. Values that do not fit are left out.
absl::Status AddMetadata(absl::Status status, absl::string_view key, absl::string_view value);
// Names what was not found: "job", "host" or "rank", and its name.
absl::Status AddResource(absl::Status status, absl::string_view type, absl::string_view name);
// States that the same call, unchanged, can succeed after `delay`.
absl::Status AddRetry(absl::Status status, absl::Duration delay);
// InvalidArgument with `message` and a violation of `field`.
absl::Status InvalidFieldError(absl::string_view field, absl::string_view message);

// Returns the status as the API answers it: every error has a reason. A status without a reason gets the reason of its
// code, or INTERNAL_ERROR if its code has none, because only a defect leaves the reason out. OK stays as it is.
absl::Status CompleteDetails(absl::Status status);

// What a caller reads. Empty or nullopt: the status has no such detail.
absl::optional<google::rpc::ErrorInfo> ErrorInfoOf(const absl::Status& status);
std::string ReasonOf(const absl::Status& status);
google::rpc::BadRequest BadRequestOf(const absl::Status& status);
absl::optional<google::rpc::ResourceInfo> ResourceInfoOf(const absl::Status& status);
absl::optional<absl::Duration> RetryDelayOf(const absl::Status& status);

}  // namespace trainyard
