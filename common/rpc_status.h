// Converts statuses between gRPC and Abseil, whose codes are equal. Control tier. Header-only. Pure.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/plain_text.h"
#include "google/rpc/status.pb.h"

namespace trainyard {

// Peers limit HTTP/2 headers to 8 KiB by default, and characters outside plain ASCII take three times their size there.
// With details the message is sent a second time, as base64 within them.
inline constexpr size_t kStatusMessageBytes = 5'000;
inline constexpr size_t kDetailedMessageBytes = 2'000;

// A serialized google.rpc.Status with only the code UNAVAILABLE. It marks an UNAVAILABLE that is a response of the
// server (a host is not connected), so that clients can distinguish it from gRPC's own, which means that no server
// responded.
inline constexpr char kUnavailableDetails[] = "\x08\x0e";
inline bool IsAnswered(const grpc::Status& status) { return !status.error_details().empty(); }

// The beginning of `message` that takes at most `bytes_max` bytes in a header, as UTF-8.
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

// Cuts the message to what fits into the headers of any client. Payloads (see bad_request.h) become the details of a
// google.rpc.Status, which must contain code and message again.
inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  google::rpc::Status detailed;
  status.ForEachPayload([&detailed](absl::string_view type_url, const absl::Cord& payload) {
    google::protobuf::Any& any = *detailed.add_details();
    any.set_type_url(std::string(type_url));
    any.set_value(std::string(payload));
  });
  absl::string_view message = status.message();
  std::string text = HeaderText(message, detailed.details().empty() ? kStatusMessageBytes : kDetailedMessageBytes);
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

// Converts the status of a response: unlike UNAVAILABLE from a server that is shutting down, it satisfies IsAnswered.
inline grpc::Status ToGrpcAnswer(const absl::Status& status) {
  grpc::Status answer = ToGrpcStatus(status);
  if (status.code() != absl::StatusCode::kUnavailable) return answer;
  return grpc::Status(answer.error_code(), answer.error_message(), kUnavailableDetails);
}

// The message begins with `what`, if it is not empty.
inline absl::Status FromGrpcStatus(const grpc::Status& status, absl::string_view what = "") {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat(what, what.empty() ? "" : ": ", status.error_message()));
}

}  // namespace trainyard
