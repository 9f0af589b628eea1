#include "common/network.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace trainyard {

bool IsLoopbackHost(absl::string_view host) {
  if (host == "localhost" || host == "::1") return true;
  return absl::StartsWith(host, "127.") && host.find_first_not_of("0123456789.") == absl::string_view::npos;
}

absl::optional<HostPort> SplitHostPort(absl::string_view address, uint32_t port_min) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) return absl::nullopt;
  HostPort split;
  split.host = address.substr(0, colon);
  const bool bracketed = absl::ConsumePrefix(&split.host, "[") && absl::ConsumeSuffix(&split.host, "]");
  if (split.host.empty() || (!bracketed && absl::StrContains(split.host, ":"))) return absl::nullopt;
  const absl::string_view port = address.substr(colon + 1);
  if (port.find_first_not_of("0123456789") != absl::string_view::npos) return absl::nullopt;
  if (!absl::SimpleAtoi(port, &split.port) || split.port < port_min || split.port > 65535) return absl::nullopt;
  return split;
}

absl::optional<absl::string_view> SplitUnixAddress(absl::string_view address) {
  if (!absl::ConsumePrefix(&address, "unix:")) return absl::nullopt;
  return address;
}

std::string GrpcTarget(absl::string_view address) {
  const absl::optional<absl::string_view> path = SplitUnixAddress(address);
  if (!path.has_value()) return std::string(address);
  return absl::StrCat("unix:", absl::StrReplaceAll(*path, {{"%", "%25"}, {"?", "%3F"}, {"#", "%23"}}));
}

bool IsLocalAddress(absl::string_view address) {
  if (SplitUnixAddress(address).has_value()) return true;
  absl::optional<HostPort> split = SplitHostPort(address);
  return split.has_value() && IsLoopbackHost(split->host);
}

}  // namespace trainyard
