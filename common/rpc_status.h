// Converts statuses between gRPC and Abseil, whose codes are equal. Control tier (with gRPC, without torch). Pure.
#pragma once

#include <grpcpp/support/status.h>

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/plain_text.h"
#include "google/rpc/status.pb.h"

namespace trainyard {

// A status travels in HTTP/2 headers, which peers limit to 8 KiB by default. Characters outside plain ASCII take three
// times their size there. If a status has details, its message is sent a second time, in base64 within the details.
inline constexpr size_t kStatusBytes = 7'600;         // of a message and its details, as they are sent
inline constexpr size_t kStatusMessageBytes = 5'000;  // of a message without details

// Returns how many bytes of a message fit into the headers together with this many bytes of details.
inline constexpr size_t MessageBytes(size_t details_bytes) {
  if (details_bytes == 0) return kStatusMessageBytes;
  // A message of m bytes takes m bytes in its own header and 4/3 m in base64. The other fields of google.rpc.Status
  // take at most 64 bytes.
  const size_t used = details_bytes / 3 * 4 + 64;
  return used >= kStatusBytes ? 0 : (kStatusBytes - used) * 3 / 7;
}

// Returns the beginning of `message` that takes at most `bytes_max` bytes in a header. Each byte that is not valid
// UTF-8 becomes a question mark.
inline std::string HeaderText(absl::string_view message, size_t bytes_max) {
  std::string text;
  for (size_t i = 0, bytes = 0; i < message.size();) {
    Character c = DecodeUtf8(message.substr(i));
    const bool plain = c.code >= 0x20 && c.code < 0x7F && c.code != '%';
    const size_t length = c.length > 0 ? c.length : 1;
    bytes += c.length == 0 || plain ? 1 : 3 * length;
    if (bytes > bytes_max) break;
    text += c.length > 0 ? std::string(message.substr(i, length)) : "?";
    i += length;
  }
  return text;
}

// Cuts the message to what fits into the headers of any client. Payloads (see error_details.h) become the details of a
// google.rpc.Status, which must contain code and message again.
inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status detailed;
  status.ForEachPayload([&detailed](absl::string_view type_url, const absl::Cord& payload) {
    google::protobuf::Any& any = *detailed.add_details();
    any.set_type_url(std::string(type_url));
    any.set_value(std::string(payload));
  });
  // Programs may look at the first detail only, so the order is fixed. BadRequest comes first in it.
  std::sort(detailed.mutable_details()->begin(), detailed.mutable_details()->end(),
            [](const google::protobuf::Any& a, const google::protobuf::Any& b) { return a.type_url() < b.type_url(); });
  absl::string_view message = status.message();
  std::string text = HeaderText(message, MessageBytes(detailed.ByteSizeLong()));
  if (text.size() < message.size()) {
    // Lists of problems have one per line, so cut at a line end if there is one.
    if (size_t line = text.rfind('\n'); line != std::string::npos && line > 0) text.resize(line);
    absl::StrAppend(&text, "\n... and ", message.size() - text.size(), " more bytes");
  }
  const auto code = static_cast<grpc::StatusCode>(status.code());
  if (detailed.details().empty()) return grpc::Status(code, text);
  detailed.set_code(static_cast<int>(code));
  detailed.set_message(text);
  return grpc::Status(code, text, detailed.SerializeAsString());
}

// Copies the details of `from`, a status that a server has sent, to the payloads of `status`.
inline void CopyDetails(const grpc::Status& from, absl::Status* status) {
  google::rpc::Status detailed;
  if (from.error_details().empty() || !detailed.ParseFromString(from.error_details())) return;
  for (const google::protobuf::Any& any : detailed.details())
    status->SetPayload(any.type_url(), absl::Cord(any.value()));
}

// Converts code and message; CopyDetails copies the details. If `what` is not empty, the message begins with it.
inline absl::Status FromGrpcStatus(const grpc::Status& status, absl::string_view what = "") {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat(what, what.empty() ? "" : ": ", status.error_message()));
}

}  // namespace trainyard
