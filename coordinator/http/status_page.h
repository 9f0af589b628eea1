// Answers requests for the files of the status page, and for its data, as JSON. The data are messages of service.proto;
// the core receives the same events as for the calls of JobService. HttpFront has checked the caller.
//
//   /  /page.css  /page.js ...         the page (coordinator/http/page), which contains no data
//   /api/v1/info                       ServerInfo
//   /api/v1/jobs                       ListResponse; parameters page_size (1000), page_token
//   /api/v1/jobs/ID                    Job
//   /api/v1/jobs/ID/events             ListEventsResponse: states, decisions and notices with their reasons
//   /api/v1/jobs/ID/steps              ListEventsResponse: at most kPagePoints steps and evaluations
//   /api/v1/hosts                      ListHostsResponse; parameters page_size (1000), page_token
//   /api/v1/events                     ListEventsResponse of the cluster
//
// Specs of jobs are reduced to name and number of ranks, because commands and environments may contain secrets. Answers
// with data have an ETag; the code 304 states that nothing has changed.
//
// Thread-safe if the functions of the options are. Respond waits for the core, at most RpcServer::kAskWait.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/http_message.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"

namespace trainyard {

inline constexpr char kApiPrefix[] = "/api/v1/";
inline constexpr size_t kPagePoints = 2'000;  // the maximum for a loss curve

class StatusPage {
 public:
  struct Options {
    std::function<absl::StatusOr<Reply>(const std::function<Event(CallId)>& make_event)> ask;
    std::function<void(const char* method, absl::StatusCode code)> count;  // counts an answer with data
  };

  explicit StatusPage(Options options) : options_(std::move(options)) {}

  // Whether the path is that of a file, which every caller may read.
  static bool IsFile(const std::string& path);

  HttpResponse Respond(const HttpRequest& request) const;

 private:
  HttpResponse RespondWithData(const HttpRequest& request) const;

  Options options_;
};

}  // namespace trainyard
