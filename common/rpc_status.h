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

// `what` goes before the message, where it is given.
inline absl::Status FromGrpcStatus(const grpc::Status& status, absl::string_view what = "") {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      absl::StrCat(what, what.empty() ? "" : ": ", status.error_message()));
}

}  // namespace trainyard
