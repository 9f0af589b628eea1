#include "common/bad_request.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/plural.h"
#include "common/yaml_schema.h"
#include "google/rpc/error_details.pb.h"

namespace trainyard {
namespace {

// Peers limit metadata to 8 KiB. It contains the message twice, and the details in base64 (see rpc_status.h).
constexpr size_t kViolationBytesMax = 1'600;
constexpr size_t kDescriptionBytesMax = 400;

// Truncates between two characters.
std::string Truncate(absl::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  while (bytes_max > 0 && (static_cast<unsigned char>(text[bytes_max]) & 0xC0) == 0x80) --bytes_max;
  return absl::StrCat(text.substr(0, bytes_max), "...");
}

}  // namespace

absl::Status BadRequestStatus(const Problems& problems, const google::protobuf::Descriptor& message,
                              absl::string_view prefix) {
  absl::Status status = problems.ToStatus();
  google::rpc::BadRequest details;
  size_t bytes = 0;
  for (const Problem& problem : problems.Errors()) {
    const std::string field = yaml::JoinKeys(prefix, yaml::FieldPathOf(message, problem.path));
    const std::string description = Truncate(problem.text, kDescriptionBytesMax);
    bytes += field.size() + description.size() + 8;  // 8: the tags and lengths in the encoded message
    if (bytes > kViolationBytesMax && details.field_violations_size() > 0) break;
    google::rpc::BadRequest::FieldViolation& violation = *details.add_field_violations();
    violation.set_field(problem.path.empty() ? std::string(prefix) : field);
    violation.set_description(description);
  }
  const std::string rest = AndMore(static_cast<size_t>(details.field_violations_size()),
                                   static_cast<size_t>(problems.error_count()), "", "problem");
  if (!rest.empty()) {
    google::rpc::BadRequest::FieldViolation& violation = *details.add_field_violations();
    violation.set_field(std::string(prefix));
    violation.set_description(rest);
  }
  status.SetPayload(kBadRequestUrl, absl::Cord(details.SerializeAsString()));
  return status;
}

}  // namespace trainyard
