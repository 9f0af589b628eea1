// The status page, read-only, on the port of /metrics, and the JSON that it shows. The JSON is that of the messages of
// service.proto, from the same questions to the core as the calls of JobService:
//
//   /  /page.js  /page.css             the page (coordinator/http/page), which contains no data
//   /api/v1/info                       ServerInfo
//   /api/v1/jobs                       ListResponse; parameters page_size (1000), page_token
//   /api/v1/jobs/ID                    Job
//   /api/v1/jobs/ID/events             ListEventsResponse: states, decisions and notices with their reasons
//   /api/v1/jobs/ID/steps              ListEventsResponse: at most kPagePoints steps and evaluations
//   /api/v1/hosts                      ListHostsResponse
//   /api/v1/events                     ListEventsResponse of the cluster
//
// Specs of jobs are reduced to name and number of ranks, because commands and environments may contain secrets. Data
// has an ETag; the page asks again each second, and 304 answers that nothing has changed. (There is no stream of
// events: the server ends each response within seconds, so that slow readers hold no connection.)
//
// Access: data requires what the gRPC API requires (RpcServer::CheckPageCaller), the token in the header
// Authorization, never in an address. On a loopback port, Host must name this machine, so that no page of another site
// can read data through a name that it controls (DNS rebinding).
//
// Thread-safe if the functions of the options are. Answer waits for the core, at most RpcServer::kAskWait.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"
#include "coordinator/http/http_message.h"

namespace trainyard {

inline constexpr size_t kPagePoints = 2'000;  // of a loss curve

class StatusPage {
 public:
  struct Options {
    bool loopback = true;  // only this host can reach the port
    std::function<absl::Status(absl::optional<absl::string_view> authorization)> check;
    std::function<absl::StatusOr<Reply>(const std::function<Event(CallId)>& make_event)> ask;
    std::function<void(const char* method, absl::StatusCode code)> count;  // answers with data
  };

  explicit StatusPage(Options options) : options_(std::move(options)) {}

  // The whole response to the text of a request.
  std::string Answer(const std::string& request) const;

 private:
  HttpResponse Respond(const HttpRequest& request) const;
  HttpResponse RespondWithData(const HttpRequest& request) const;

  Options options_;
};

}  // namespace trainyard
