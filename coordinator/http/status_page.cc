#include "coordinator/http/status_page.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/hash.h"
#include "common/network.h"
#include "common/status_macros.h"
#include "coordinator/handlers/check_request.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {

// Made by cmake/EmbedText.cmake.
extern const char kTextOfPageHtml[];
extern const char kTextOfPageJs[];
extern const char kTextOfPageCss[];

namespace {

constexpr char kApiPrefix[] = "/api/v1/";
constexpr size_t kJobIdMax = 64;

// What a path of the API means: the method that counts it, and the question to the core.
struct Question {
  const char* method = nullptr;
  std::function<Event(CallId)> make_event;
};

HttpResponse ErrorResponse(int code, const absl::Status& status) {
  HttpResponse response{.code = code};
  response.body =
      nlohmann::json({{"code", absl::StatusCodeToString(status.code())}, {"message", std::string(status.message())}})
          .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
      "\n";
  if (code == 401) response.headers = "WWW-Authenticate: Bearer\r\n";
  if (code == 503) response.headers = "Retry-After: 1\r\n";
  return response;
}

HttpResponse ErrorResponse(const absl::Status& status) { return ErrorResponse(HttpCodeOf(status.code()), status); }

bool NamesThisMachine(absl::optional<absl::string_view> host) {
  if (!host.has_value()) return false;
  absl::string_view name = *host;
  if (absl::optional<HostPort> split = SplitHostPort(name)) name = split->host;
  if (absl::StartsWith(name, "[") && absl::EndsWith(name, "]")) name = name.substr(1, name.size() - 2);
  return IsLoopbackHost(absl::AsciiStrToLower(name));
}

// Only these parts of a spec are shown.
void ReduceSpec(v1::Job& job) {
  v1::JobSpec reduced;
  reduced.set_name(job.spec().name());
  reduced.mutable_resources()->set_ranks(job.spec().resources().ranks());
  *job.mutable_spec() = std::move(reduced);
  job.clear_decisions();
}

absl::StatusOr<std::string> ToJson(Reply reply) {
  if (auto* list = std::get_if<v1::ListResponse>(&reply.response)) {
    for (v1::Job& job : *list->mutable_jobs()) ReduceSpec(job);
  }
  if (auto* job = std::get_if<v1::Job>(&reply.response)) ReduceSpec(*job);
  const google::protobuf::Message* message = std::visit(
      [](const auto& response) -> const google::protobuf::Message* {
        if constexpr (std::is_same_v<std::decay_t<decltype(response)>, std::monostate>) {
          return nullptr;
        } else {
          return &response;
        }
      },
      reply.response);
  if (message == nullptr) return absl::InternalError("the core has answered without a message");
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  if (auto status = google::protobuf::util::MessageToJsonString(*message, &json, options); !status.ok()) {
    return absl::InternalError(absl::StrCat("the answer cannot be written as JSON: ", status.ToString()));
  }
  return json;
}

absl::Status CheckParameters(const HttpRequest& request, const std::vector<std::string>& allowed) {
  for (const auto& [name, value] : request.parameters) {
    if (name == "token") {
      return absl::InvalidArgumentError(
          "a token is not accepted in an address, which logs and histories keep; send it in "
          "the header Authorization: Bearer TOKEN");
    }
    if (std::count(allowed.begin(), allowed.end(), name) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("there is no parameter ", name, " here"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Question> AskForJobs(const HttpRequest& request) {
  RETURN_IF_ERROR(CheckParameters(request, {"page_size", "page_token"}));
  v1::ListRequest list;
  uint32_t size = kJobsPageMax;
  const auto given = request.parameters.find("page_size");
  if (given != request.parameters.end() && !absl::SimpleAtoi(given->second, &size)) {
    return absl::InvalidArgumentError("page_size must be a number");
  }
  list.set_page_size(size);
  const auto token = request.parameters.find("page_token");
  if (token != request.parameters.end()) list.set_page_token(token->second);
  RETURN_IF_ERROR(CheckRequest(list));
  return Question{"page_jobs", [list](CallId call) { return ListJobs{call, list}; }};
}

absl::StatusOr<Question> AskForJob(const std::vector<absl::string_view>& path) {
  const std::string id(path[1]);
  const bool is_id = !id.empty() && id.size() <= kJobIdMax &&
                     std::all_of(id.begin(), id.end(), [](unsigned char c) { return absl::ascii_isalnum(c); });
  if (!is_id) return absl::NotFoundError("a job id consists of letters and digits");
  if (path.size() == 2) return Question{"page_job", [id](CallId call) { return GetJob{call, JobId(id)}; }};
  v1::ListEventsRequest list;
  list.set_job_id(id);
  if (path.size() == 3 && path[2] == "events") {
    return Question{"page_job_events", [list](CallId call) { return ListEvents{call, list}; }};
  }
  if (path.size() == 3 && path[2] == "steps") {
    return Question{"page_steps", [list](CallId call) { return ListEvents{call, list, kPagePoints}; }};
  }
  return absl::NotFoundError("of a job there are /events and /steps");
}

absl::StatusOr<Question> ToQuestion(const HttpRequest& request) {
  const std::vector<absl::string_view> path =
      absl::StrSplit(absl::string_view(request.path).substr(sizeof kApiPrefix - 1), '/');
  if (path.size() == 1 && path[0] == "jobs") return AskForJobs(request);
  RETURN_IF_ERROR(CheckParameters(request, {}));
  if (path[0] == "jobs") return AskForJob(path);
  if (path.size() == 1 && path[0] == "info")
    return Question{"page_info", [](CallId call) { return GetServerInfo{call}; }};
  if (path.size() == 1 && path[0] == "hosts")
    return Question{"page_hosts", [](CallId call) { return ListHosts{call}; }};
  if (path.size() == 1 && path[0] == "events") {
    return Question{"page_events", [](CallId call) { return ListEvents{call, {}}; }};
  }
  return absl::NotFoundError("there are info, jobs, hosts and events here");
}

}  // namespace

std::string StatusPage::Answer(const std::string& request) const {
  const absl::StatusOr<HttpRequest> parsed = ParseHttpRequest(request);
  if (!parsed.ok()) return SerializeHttpResponse(ErrorResponse(parsed.status()), /*with_body=*/true);
  return SerializeHttpResponse(Respond(*parsed), /*with_body=*/!parsed->is_head);
}

HttpResponse StatusPage::Respond(const HttpRequest& request) const {
  if (options_.loopback && !NamesThisMachine(request.header("host"))) {
    return ErrorResponse(421, absl::PermissionDeniedError("this port answers requests for localhost only; the header "
                                                          "Host names another machine"));
  }
  if (absl::StartsWith(request.path, kApiPrefix)) return RespondWithData(request);
  if (request.path == "/") return {.type = "text/html", .body = kTextOfPageHtml};
  if (request.path == "/page.js") return {.type = "text/javascript", .body = kTextOfPageJs};
  if (request.path == "/page.css") return {.type = "text/css", .body = kTextOfPageCss};
  return ErrorResponse(absl::NotFoundError("the status page is at /, the metrics are at /metrics"));
}

HttpResponse StatusPage::RespondWithData(const HttpRequest& request) const {
  // The caller is checked first, so that others learn nothing, not even which jobs there are.
  if (absl::Status allowed = options_.check(request.header("authorization")); !allowed.ok()) {
    options_.count("page", allowed.code());
    return ErrorResponse(allowed);
  }
  const absl::StatusOr<Question> question = ToQuestion(request);
  if (!question.ok()) {
    options_.count("page", question.status().code());
    return ErrorResponse(question.status());
  }
  absl::StatusOr<Reply> reply = options_.ask(question->make_event);
  const absl::StatusOr<std::string> json = reply.ok() ? ToJson(*std::move(reply)) : reply.status();
  options_.count(question->method, json.status().code());
  if (!json.ok()) return ErrorResponse(json.status());
  const std::string tag = absl::StrCat("\"", HashHex(*json), "\"");
  if (request.header("if-none-match") == tag) return {.code = 304, .headers = absl::StrCat("ETag: ", tag, "\r\n")};
  return {.body = *json, .headers = absl::StrCat("ETag: ", tag, "\r\n")};
}

}  // namespace trainyard
