// Statuses between gRPC and Abseil: the codes are the same, here and on the wire. Control tier; header-only. Pure.
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

// HTTP/2 headers are limited to 8 KiB by default on the other side, and what is not plain ASCII triples in size there.
// With details the message travels a second time, as base64 within them.
inline constexpr size_t kStatusMessageBytes = 5'000;
inline constexpr size_t kDetailedMessageBytes = 2'000;

// A google.rpc.Status with the code UNAVAILABLE alone: goes with an UNAVAILABLE that is an answer (a host is away), so
// that a client can tell it from gRPC's own, which says that nobody answered.
inline constexpr char kUnavailableDetails[] = "\x08\x0e";
inline bool IsAnswered(const grpc::Status& status) { return !status.error_details().empty(); }

// The beginning of `message`, as UTF-8, that takes `most` bytes in a header.
inline std::string HeaderText(absl::string_view message, size_t most) {
  std::string text;
  for (size_t i = 0, bytes = 0; i < message.size();) {
    Character c = DecodeUtf8(message.substr(i));
    const bool plain = c.code >= 0x20 && c.code < 0x7F && c.code != '%';
    const size_t length = c.length > 0 ? c.length : 1;
    bytes += c.length == 0 || plain ? 1 : 3 * length;
    if (bytes > most) break;
    text += c.length > 0 ? std::string(message.substr(i, length)) : "?";
    i += length;
  }
  return text;
}

// A message is cut to what fits into the headers of any client. Payloads (see bad_request.h) become the details of a
// google.rpc.Status, which must hold code and message once more.
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
    // Cut at a line where there is one: lists of problems are one a line.
    if (size_t line = text.rfind('\n'); line != std::string::npos && line > 0) text.resize(line);
    absl::StrAppend(&text, "\n... and ", message.size() - text.size(), " bytes more");
  }
  const auto code = static_cast<grpc::StatusCode>(status.code());
  if (detailed.details().empty()) return grpc::Status(code, text);
  detailed.set_code(static_cast<int>(code));
  detailed.set_message(text);
  return grpc::Status(code, text, detailed.SerializeAsString());
}

// Of what the server found out when it was asked; not of a server that is going down.
inline grpc::Status ToGrpcAnswer(const absl::Status& status) {
  grpc::Status answer = ToGrpcStatus(status);
  if (status.code() != absl::StatusCode::kUnavailable) return answer;
  return grpc::Status(answer.error_code(), answer.error_message(), kUnavailableDetails);
}

// `what` goes before the message, where it is given.
inline absl::Status FromGrpcStatus(const grpc::Status& status, absl::string_view what = "") {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat(what, what.empty() ? "" : ": ", status.error_message()));
}

}  // namespace trainyard
