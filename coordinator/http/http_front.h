// What the coordinator's HTTP port serves in addition to /metrics, and to whom. All requests except those for /metrics
// pass through here.
//
//   /  /page.css  /page.js ...             the status page (coordinator/http/page), which contains no data
//   GET  /api/v1/...                       its data (status_page.h)
//   GET  /api/v1/whoami                    {"role": "operator", "may_operate": true, "why": ""}
//   GET  /api/v1/watch/jobs, hosts, events streams of events (page_feed.h)
//   GET  /api/v1/jobs/ID/watch             the events of a job after Last-Event-ID, and the job itself
//   GET  /api/v1/JobService                the methods; /api/v1/openapi.json describes them
//   POST /api/v1/JobService/METHOD         JobService in JSON (json_gateway.h)
//
// Access: data requires the token that the gRPC API requires, in the header Authorization, never in an address. Methods
// that change something require the token of operators, even where gRPC requires none; without `allow_plaintext` they
// are refused on a port that other hosts can reach. Requests that a page of another site makes are refused: Host must
// name this machine on a loopback port, and must have no domain on other ports without a token (against DNS rebinding),
// Origin and Sec-Fetch-Site must be those of the page, and a body must be declared as JSON, which browsers send for
// other sites only after a preflight request.
//
// Thread-safe if the functions of the options are.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "common/http_exchange.h"
#include "common/http_message.h"
#include "coordinator/http/json_gateway.h"
#include "coordinator/http/page_feed.h"
#include "coordinator/http/status_page.h"
#include "coordinator/rpc/access.h"

namespace trainyard {

// The headers of all responses. The policy lets the page use its own script and style, and nothing else.
extern const char kHttpFrontHeaders[];

struct HttpFrontOptions {
  bool loopback = true;          // only this host can reach the port
  bool allow_plaintext = false;  // changes are allowed on ports that other hosts can reach, too
  std::function<absl::StatusOr<Role>(absl::optional<absl::string_view> authorization)> role_of;
  std::function<bool()> is_open;  // callers need no token
  std::function<void(const char* method, absl::StatusCode code)> count;
};

class HttpFront {
 public:
  // Does not own `page`, `gateway` and `feed`.
  HttpFront(HttpFrontOptions options, const StatusPage* page, JsonGateway* gateway, PageFeed* feed)
      : options_(std::move(options)), page_(*page), gateway_(*gateway), feed_(*feed) {}

  // See HttpServerOptions.
  absl::optional<HttpResponse> Admit(const HttpRequest& head) const;
  void Handle(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) const;

 private:
  // What a request asks for, once it is admitted.
  struct Target {
    const google::protobuf::MethodDescriptor* method = nullptr;  // of the JSON API
    Caller caller = {};
  };
  absl::optional<HttpResponse> Decide(const HttpRequest& head, Target* target) const;
  absl::Status CheckHost(const HttpRequest& head) const;
  absl::Status CheckMayOperate(Role role) const;
  HttpResponse WhoAmI(Role role) const;
  void Watch(const HttpRequest& request, const std::string& topic, const std::shared_ptr<HttpExchange>& exchange) const;
  void WatchJob(const HttpRequest& request, const std::string& job, const Caller& caller,
                const std::shared_ptr<HttpExchange>& exchange) const;

  const HttpFrontOptions options_;
  const StatusPage& page_;
  JsonGateway& gateway_;
  PageFeed& feed_;
};

// The position of a reader of a job's events: "SEQUENCE.STEP.EVALUATION", the id of its last event. Possible errors:
// InvalidArgument. Pure.
absl::StatusOr<WatchPosition> ParseEventId(absl::string_view id);
std::string EventId(const WatchPosition& position);

}  // namespace trainyard
