// Statuses between gRPC and Abseil: the codes are the same, here and on the wire. Control tier; header-only. Pure.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// HTTP/2 headers are limited to 8 KiB by default on the other side, and what is not plain ASCII triples in size there.
inline constexpr size_t kStatusMessageBytes = 3'000;

// A google.rpc.Status with the code UNAVAILABLE alone: goes with an UNAVAILABLE that is an answer (a host is away), so
// that a client can tell it from gRPC's own, which says that nobody answered.
inline constexpr char kUnavailableDetails[] = "\x08\x0e";
inline bool IsAnswered(const grpc::Status& status) { return !status.error_details().empty(); }

// A message is cut to what fits into the headers of any client.
inline grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  absl::string_view message = status.message();
  std::string text(message.substr(0, kStatusMessageBytes));
  if (text.size() < message.size()) {
    // Cut at a line where there is one: lists of problems are one a line.
    if (size_t line = text.rfind('\n'); line != std::string::npos && line > 0) text.resize(line);
    absl::StrAppend(&text, "\n... and ", message.size() - text.size(), " bytes more");
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), text);
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
