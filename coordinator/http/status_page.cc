#include "coordinator/http/status_page.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/error_details.h"
#include "common/hash.h"
#include "common/status_macros.h"
#include "coordinator/handlers/check_request.h"
#include "coordinator/http/api_status.h"
#include "coordinator/rpc/access.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {

// Made by cmake/EmbedText.cmake.
extern const char kTextOfPageHtml[];
extern const char kTextOfPageCss[];
extern const char kTextOfPageJs[];
extern const char kTextOfElementsJs[];
extern const char kTextOfStreamJs[];
extern const char kTextOfChartsJs[];
extern const char kTextOfActionsJs[];
extern const char kTextOfListsJs[];
extern const char kTextOfLogsJs[];
extern const char kTextOfJobJs[];

namespace {

struct File {
  const char* path;
  const char* type;
  const char* text;
};

constexpr char kScript[] = "text/javascript; charset=utf-8";
constexpr File kFiles[] = {{"/", "text/html; charset=utf-8", kTextOfPageHtml},
                           {"/page.css", "text/css; charset=utf-8", kTextOfPageCss},
                           {"/page.js", kScript, kTextOfPageJs},
                           {"/elements.js", kScript, kTextOfElementsJs},
                           {"/stream.js", kScript, kTextOfStreamJs},
                           {"/charts.js", kScript, kTextOfChartsJs},
                           {"/actions.js", kScript, kTextOfActionsJs},
                           {"/lists.js", kScript, kTextOfListsJs},
                           {"/logs.js", kScript, kTextOfLogsJs},
                           {"/job.js", kScript, kTextOfJobJs}};

const File* FindFile(const std::string& path) {
  const auto* found =
      std::find_if(std::begin(kFiles), std::end(kFiles), [&](const File& file) { return file.path == path; });
  return found == std::end(kFiles) ? nullptr : found;
}

constexpr size_t kJobIdMax = 64;

// The meaning of a path of the API: the method under which its requests are counted, and the event for the core.
struct Question {
  const char* method = nullptr;
  std::function<Event(CallId)> make_event;
};

absl::StatusOr<std::string> ToJson(Reply reply) {
  google::protobuf::Message* message = std::visit(
      [](auto& response) -> google::protobuf::Message* {
        if constexpr (std::is_same_v<std::decay_t<decltype(response)>, std::monostate>) {
          return nullptr;
        } else {
          return &response;
        }
      },
      reply.response);
  if (message == nullptr) return absl::InternalError("the core has answered without a message");
  HideSpecs(*message);
  return MessageJson(*message);
}

absl::Status CheckParameters(const HttpRequest& request, const std::vector<std::string>& allowed) {
  for (const auto& [name, value] : request.parameters) {
    if (name == "token") {
      return absl::InvalidArgumentError(
          "a token is not accepted in an address, which logs and histories keep; send it in "
          "the header Authorization: Bearer TOKEN");
    }
    if (std::count(allowed.begin(), allowed.end(), name) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("this path takes no parameter ", name));
    }
  }
  return absl::OkStatus();
}

// Reads from the parameters which page of a list is requested.
template <typename List>
absl::Status ReadPage(const HttpRequest& request, uint32_t size_default, List& list) {
  RETURN_IF_ERROR(CheckParameters(request, {"page_size", "page_token"}));
  uint32_t size = size_default;
  const auto given = request.parameters.find("page_size");
  if (given != request.parameters.end() && !absl::SimpleAtoi(given->second, &size)) {
    return InvalidFieldError("page_size",
                             absl::StrCat("page_size must be a number, found '", given->second.substr(0, 64), "'"));
  }
  list.set_page_size(size);
  const auto token = request.parameters.find("page_token");
  if (token != request.parameters.end()) list.set_page_token(token->second);
  return CheckRequest(list);
}

absl::StatusOr<Question> AskForJobs(const HttpRequest& request) {
  v1::ListRequest list;
  RETURN_IF_ERROR(ReadPage(request, kJobsPageMax, list));
  return Question{"page_jobs", [list](CallId call) { return ListJobs{call, list, /*brief=*/true}; }};
}

absl::StatusOr<Question> AskForHosts(const HttpRequest& request) {
  v1::ListHostsRequest list;
  RETURN_IF_ERROR(ReadPage(request, kHostsPageMax, list));
  return Question{"page_hosts", [list](CallId call) { return ListHosts{call, list}; }};
}

absl::StatusOr<Question> AskForJob(const std::vector<absl::string_view>& path) {
  const std::string id(path[1]);
  const bool is_id = !id.empty() && id.size() <= kJobIdMax &&
                     std::all_of(id.begin(), id.end(), [](unsigned char c) { return absl::ascii_isalnum(c); });
  if (!is_id) return PathNotFoundError("a job id consists of letters and digits");
  if (path.size() == 2) return Question{"page_job", [id](CallId call) { return GetJob{call, JobId(id)}; }};
  v1::ListEventsRequest list;
  list.set_job_id(id);
  if (path.size() == 3 && path[2] == "events") {
    return Question{"page_job_events", [list](CallId call) { return ListEvents{call, list}; }};
  }
  if (path.size() == 3 && path[2] == "steps") {
    return Question{"page_steps", [list](CallId call) { return ListEvents{call, list, kPagePoints}; }};
  }
  return PathNotFoundError("below a job there are only the paths /events, /steps and /watch");
}

absl::StatusOr<Question> ToQuestion(const HttpRequest& request) {
  const std::vector<absl::string_view> path =
      absl::StrSplit(absl::string_view(request.path).substr(sizeof kApiPrefix - 1), '/');
  if (path.size() == 1 && path[0] == "jobs") return AskForJobs(request);
  if (path.size() == 1 && path[0] == "hosts") return AskForHosts(request);
  RETURN_IF_ERROR(CheckParameters(request, {}));
  if (path[0] == "jobs") return AskForJob(path);
  if (path.size() == 1 && path[0] == "info")
    return Question{"page_info", [](CallId call) { return GetServerInfo{call}; }};
  if (path.size() == 1 && path[0] == "events") {
    return Question{"page_events", [](CallId call) { return ListEvents{call, {}}; }};
  }
  return PathNotFoundError("only info, whoami, jobs, hosts, events, watch, JobService and openapi.json exist here");
}

}  // namespace

bool StatusPage::IsFile(const std::string& path) { return FindFile(path) != nullptr; }

HttpResponse StatusPage::Respond(const HttpRequest& request) const {
  if (const File* file = FindFile(request.path)) return {.code = 200, .type = file->type, .body = file->text};
  return RespondWithData(request);
}

HttpResponse StatusPage::RespondWithData(const HttpRequest& request) const {
  const absl::StatusOr<Question> question = ToQuestion(request);
  if (!question.ok()) {
    options_.count("page", question.status().code());
    return StatusResponse(question.status());
  }
  absl::StatusOr<Reply> reply = options_.ask(question->make_event);
  const absl::StatusOr<std::string> json = reply.ok() ? ToJson(*std::move(reply)) : reply.status();
  options_.count(question->method, json.status().code());
  if (!json.ok()) return StatusResponse(json.status());
  const std::string tag = absl::StrCat("\"", HashHex(*json), "\"");
  if (request.header("if-none-match") == tag) {
    return {.code = 304, .type = "", .headers = absl::StrCat("ETag: ", tag, "\r\n")};
  }
  return {.code = 200, .type = kJsonType, .body = *json, .headers = absl::StrCat("ETag: ", tag, "\r\n")};
}

}  // namespace trainyard
