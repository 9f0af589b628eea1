// What can be told of an address by its text alone. Pure.
#pragma once

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace trainyard {

// Whether `host` (no port, no brackets) can only be this machine. A name may start with "127." as well; an address
// holds nothing but digits and points.
inline bool IsLoopbackHost(absl::string_view host) {
  if (host == "localhost" || host == "::1") return true;
  return absl::StartsWith(host, "127.") && host.find_first_not_of("0123456789.") == absl::string_view::npos;
}

}  // namespace trainyard
