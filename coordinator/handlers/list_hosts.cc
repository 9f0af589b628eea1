// ListHosts: returns the known hosts, attached or not, by pages in the order of their names. Changes nothing.
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/check_request.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/host_status.h"
#include "coordinator/handlers/page.h"

namespace trainyard {

namespace {

constexpr char kHostsToken[] = "after-";  // followed by the name of the last host of the page

}  // namespace

void Run(Turn& turn, ListHosts& event) {
  absl::string_view after = event.request.page_token();
  if (!after.empty() && (!absl::ConsumePrefix(&after, kHostsToken) || after.empty())) {
    return turn.Emit(Reply{event.call, PageTokenError(event.request.page_token()), {}});
  }
  PageSpace space(event.request.page_size(), kHostsPageMax);
  v1::ListHostsResponse response;
  const auto& hosts = turn.state.hosts;
  for (auto it = hosts.upper_bound(HostName(after)); it != hosts.end(); ++it) {
    v1::HostStatus status = MakeHostStatus(turn, it->second);
    if (!space.Take(status.ByteSizeLong())) {
      response.set_next_page_token(absl::StrCat(kHostsToken, response.hosts().rbegin()->name()));
      break;
    }
    *response.add_hosts() = std::move(status);
  }
  turn.Emit(Reply{event.call, absl::OkStatus(), std::move(response)});
}

}  // namespace trainyard
