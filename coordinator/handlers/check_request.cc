#include "coordinator/handlers/check_request.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/bad_request.h"
#include "common/limits.h"
#include "common/strict_yaml.h"
#include "coordinator/policy/queue_rules.h"
#include "google/protobuf/reflection.h"
#include "google/protobuf/unknown_field_set.h"
#include "spec/prepare.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The limits of a field beyond those of its type, by message (empty: all) and field.
struct Limit {
  const char* message;
  const char* field;
  bool required = false;
  size_t bytes_max = limits::kPathBytes;  // of a text
  uint64_t value_max = UINT64_MAX;        // of a whole number, or of each number in a list
  int items_max = 0;                      // of a list; 0: the field is not a list
};

constexpr size_t kNameBytes = 64;  // of ids and page tokens, and of names of jobs, which users type instead of ids
constexpr size_t kHostTextBytes = 253;
constexpr uint64_t kRanksMax = 65'536;
// Leaves space for the folder of a job and the paths in it.
constexpr size_t kRunRootBytes = limits::kPathBytes - 200;

constexpr Limit kLimits[] = {
    {.message = "SubmitRequest", .field = "job_id", .bytes_max = kNameBytes},
    {.message = "SubmitRequest", .field = "default_run_root", .bytes_max = kRunRootBytes},
    {.message = "ListEventsRequest", .field = "job_id", .bytes_max = kNameBytes},
    {.message = "ListEventsRequest", .field = "limit", .value_max = kEventsPageMax},
    {.message = "ListEventsRequest", .field = "page_size", .value_max = kEventsPageMax},
    {.message = "ListRequest", .field = "page_size", .value_max = kJobsPageMax},
    {.message = "FindJobsRequest", .field = "page_size", .value_max = kJobsPageMax},
    {.message = "ListHostsRequest", .field = "page_size", .value_max = kHostsPageMax},
    {.message = "ListHostsRequest", .field = "page_token", .bytes_max = kHostTextBytes + kNameBytes},
    {.message = "ListRequest", .field = "states", .items_max = v1::JobState_ARRAYSIZE},
    {.message = "ListRequest", .field = "namespace", .bytes_max = kNameBytes},
    {.message = "SetPriorityRequest", .field = "priority", .required = true, .value_max = kPriorityMax},
    {.message = "GetQueueRequest", .field = "page_size", .value_max = kJobsPageMax},
    {.message = "GetQueueRequest", .field = "namespace", .bytes_max = kNameBytes},
    {.message = "LogsRequest", .field = "ranks", .value_max = kRanksMax - 1, .items_max = kRanksMax},
    {.message = "SetHostRequest", .field = "name", .required = true, .bytes_max = kHostTextBytes},
    {.message = "SetHostRequest", .field = "action", .required = true},
    {.message = "FindJobsRequest", .field = "text", .required = true, .bytes_max = kNameBytes},
    {.message = "", .field = "job_id", .required = true, .bytes_max = kNameBytes},
    {.message = "", .field = "page_token", .bytes_max = kNameBytes},
    {.message = "", .field = "request_id", .bytes_max = kNameBytes},
};

const Limit* LimitOf(const FieldDescriptor& field) {
  for (const Limit& limit : kLimits) {
    const bool applies = *limit.message == '\0' || field.containing_type()->name() == limit.message;
    if (applies && field.name() == limit.field) return &limit;
  }
  return nullptr;
}

uint64_t LargestOf(const Message& message, const FieldDescriptor& field) {
  const auto& r = *message.GetReflection();
  if (!field.is_repeated()) return r.GetUInt32(message, &field);
  uint64_t largest = 0;
  for (uint32_t value : r.GetRepeatedFieldRef<uint32_t>(message, &field)) {
    largest = std::max(largest, uint64_t{value});
  }
  return largest;
}

std::string FindProblem(const Message& message, const FieldDescriptor& field, const Limit& limit) {
  const auto& r = *message.GetReflection();
  if (field.is_repeated()) {
    const int items = r.FieldSize(message, &field);
    if (items > limit.items_max)
      return absl::StrCat("has ", items, " items; at most ", limit.items_max, " are accepted");
  } else if (limit.required && !r.HasField(message, &field)) {
    return "is required";
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
    const uint64_t largest = LargestOf(message, field);
    if (largest > limit.value_max) return absl::StrCat("must be from 0 to ", limit.value_max, ", found ", largest);
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    const size_t bytes = r.GetString(message, &field).size();
    if (bytes > limit.bytes_max) {
      return absl::StrCat("is ", bytes, " bytes long; at most ", limit.bytes_max, " are accepted");
    }
  }
  return "";
}

bool IsJobId(absl::string_view id) {
  return id.size() >= 8 && id.size() <= 32 &&
         std::all_of(id.begin(), id.end(), [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); });
}

void CheckSubmit(const v1::SubmitRequest& request, Problems* problems) {
  if (!request.job_id().empty() && !IsJobId(request.job_id())) {
    problems->AddError({}, "job_id",
                       absl::StrCat("'", request.job_id(), "' must be 8 to 32 characters of a-z and 0-9, or empty"));
  }
  const std::string& root = request.default_run_root();
  if (!root.empty() && root.front() != '/') {
    problems->AddError({}, "default_run_root", absl::StrCat("must be an absolute path, found '", root, "'"));
  }
  if (const size_t bytes = request.spec().ByteSizeLong(); bytes > kSpecBytesMax) {
    problems->AddError({}, "spec", absl::StrCat("has ", bytes, " bytes; at most ", kSpecBytesMax, " are accepted"));
  }
}

}  // namespace

absl::Status CheckRequest(const Message& request) {
  const auto& descriptor = *request.GetDescriptor();
  Problems problems;
  if (const auto* submit = dynamic_cast<const v1::SubmitRequest*>(&request); submit != nullptr) {
    v1::SubmitRequest head;  // PrepareJob checks the spec
    head.set_job_id(submit->job_id());
    head.set_default_run_root(submit->default_run_root());
    head.GetReflection()->MutableUnknownFields(&head)->MergeFrom(request.GetReflection()->GetUnknownFields(request));
    CheckRules(head, {}, &problems);
    if (problems.ok()) CheckSubmit(*submit, &problems);
  } else {
    CheckRules(request, {}, &problems);
  }
  for (int i = 0; problems.ok() && i < descriptor.field_count(); ++i) {
    const FieldDescriptor& field = *descriptor.field(i);
    const Limit* limit = LimitOf(field);
    if (limit == nullptr) continue;
    std::string wrong = FindProblem(request, field, *limit);
    if (!wrong.empty()) problems.AddError({}, field.name(), wrong);
  }
  return problems.ok() ? absl::OkStatus() : BadRequestStatus(problems, descriptor, "");
}

}  // namespace trainyard
