#include "coordinator/http/http_front.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/digits.h"
#include "common/network.h"
#include "common/status_macros.h"
#include "coordinator/http/api_status.h"
#include "coordinator/http/openapi.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {

const char kHttpFrontHeaders[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "X-Frame-Options: DENY\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cross-Origin-Resource-Policy: same-origin\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\n"
    "Cache-Control: no-store, no-transform\r\n";

namespace {

constexpr char kMethodsPath[] = "/api/v1/JobService";
constexpr char kOpenApiPath[] = "/api/v1/openapi.json";
constexpr char kWhoAmIPath[] = "/api/v1/whoami";
constexpr char kWatchPrefix[] = "/api/v1/watch/";
constexpr char kJobPath[] = "/api/v1/jobs/";
constexpr char kWatchSuffix[] = "/watch";
constexpr char kFirstEvent[] = "retry: 1000\n\n";
constexpr size_t kNameBytes = 64;

// The name or address in the header Host, without port and brackets.
std::string NameInHost(absl::string_view host) {
  absl::string_view name = host;
  if (absl::optional<HostPort> split = SplitHostPort(name)) name = split->host;
  if (absl::StartsWith(name, "[") && absl::EndsWith(name, "]")) name = name.substr(1, name.size() - 2);
  return absl::AsciiStrToLower(name);
}

bool NamesThisMachine(absl::optional<absl::string_view> host) {
  return host.has_value() && IsLoopbackHost(NameInHost(*host));
}

// Whether the host is an address, or a name without a domain, which no web site on the internet has. A web site can let
// its own name lead to this port (DNS rebinding); its page and this port are then one site for browsers.
bool IsAddressOrPlainName(absl::string_view host) {
  const std::string name = NameInHost(host);
  in6_addr ignored = {};
  const bool is_address =
      inet_pton(AF_INET, name.c_str(), &ignored) == 1 || inet_pton(AF_INET6, name.c_str(), &ignored) == 1;
  return is_address || !absl::StrContains(name, ".");
}

// Whether a browser says that a page of another site makes the request.
bool IsOfAnotherSite(const HttpRequest& head) {
  const auto site = head.header("sec-fetch-site");
  if (site.has_value() && *site != "same-origin" && *site != "none") return true;
  absl::optional<absl::string_view> origin = head.header("origin");
  if (!origin.has_value()) return false;
  if (!absl::ConsumePrefix(&*origin, "http://") && !absl::ConsumePrefix(&*origin, "https://")) return true;
  return !absl::EqualsIgnoreCase(*origin, head.header("host").value_or(""));
}

bool IsJson(const HttpRequest& head) {
  const absl::string_view type = head.header("content-type").value_or("");
  return absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(type.substr(0, type.find(';'))), "application/json");
}

HttpResponse MethodNotAllowed(absl::string_view allowed) {
  HttpResponse response =
      StatusResponse(405, AddReason(absl::UnimplementedError(absl::StrCat("this path answers ", allowed, " requests")),
                                    reasons::kHttpMethodNotAllowed));
  response.headers = absl::StrCat("Allow: ", allowed, "\r\n");
  return response;
}

// Who requests something, for the record: "the operator at 127.0.0.1:5012 over HTTP with curl/8.0".
absl::StatusOr<std::string> Describe(const HttpRequest& head) {
  const absl::string_view program =
      head.header("trainyard-client").value_or(head.header("user-agent").value_or("unknown"));
  std::string text = absl::StrCat("the operator at ", head.peer, " over HTTP with ", ProgramText(program));
  const absl::string_view name = head.header("trainyard-user").value_or("");
  const auto is_plain = [](unsigned char c) { return c >= 0x20 && c < 0x7f && c != '"'; };
  if (name.size() > kNameBytes || !std::all_of(name.begin(), name.end(), is_plain)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Trainyard-User must be a name of at most ", kNameBytes, " printable ASCII characters"));
  }
  if (!name.empty()) absl::StrAppend(&text, ", who gave the name \"", name, "\"");
  return text;
}

// The id in /api/v1/jobs/ID/watch; empty: this is another path.
std::string JobToWatch(absl::string_view path) {
  if (!absl::ConsumePrefix(&path, kJobPath) || !absl::ConsumeSuffix(&path, kWatchSuffix)) return "";
  return std::string(path);
}

absl::Status CheckWatched(absl::string_view topic) {
  if (topic == "jobs" || topic == "hosts" || topic == "events") return absl::OkStatus();
  return PathNotFoundError("no such stream; there are watch/jobs, watch/hosts, watch/events and jobs/ID/watch");
}

}  // namespace

absl::StatusOr<WatchPosition> ParseEventId(absl::string_view id) {
  WatchPosition position;
  const std::vector<absl::string_view> parts = absl::StrSplit(id, '.');
  uint64_t* const numbers[] = {&position.sequence, &position.step, &position.eval_step};
  bool is_valid = parts.size() == 3;
  for (size_t i = 0; is_valid && i < 3; ++i) {
    is_valid = ParseDigits(parts[i], numbers[i]);
  }
  if (is_valid) return position;
  return absl::InvalidArgumentError("the id of an event consists of three numbers: SEQUENCE.STEP.EVALUATION");
}

std::string EventId(const WatchPosition& position) {
  return absl::StrCat(position.sequence, ".", position.step, ".", position.eval_step);
}

absl::optional<HttpResponse> HttpFront::Admit(const HttpRequest& head) const {
  Target ignored;
  return Decide(head, &ignored);
}

absl::optional<HttpResponse> HttpFront::Decide(const HttpRequest& head, Target* target) const {
  if (options_.loopback && !NamesThisMachine(head.header("host"))) {
    return StatusResponse(421, AddReason(absl::PermissionDeniedError("this port answers requests for localhost only; "
                                                                     "the header Host names another machine"),
                                         reasons::kOtherSite));
  }
  const bool is_call = absl::StartsWith(head.path, kMethodPrefix);
  if (is_call ? head.method != "POST" : head.method != "GET" && head.method != "HEAD") {
    return MethodNotAllowed(is_call ? "POST" : "GET, HEAD");
  }
  // The server reserves memory for an admitted body, and the files of the page need no token.
  if (!is_call && head.content_length > 0) {
    return StatusResponse(AddReason(absl::InvalidArgumentError("a GET or HEAD request has no body here; send it "
                                                               "without Content-Length"),
                                    reasons::kHttpRequestInvalid));
  }
  if (!absl::StartsWith(head.path, kApiPrefix)) {
    if (StatusPage::IsFile(head.path)) return absl::nullopt;
    return StatusResponse(PathNotFoundError("the status page is at /, the metrics are at /metrics"));
  }
  const auto refuse = [this](const absl::Status& status) {
    options_.count("page", status.code());
    return StatusResponse(status);
  };
  if (IsOfAnotherSite(head)) {
    return refuse(
        AddReason(absl::PermissionDeniedError("the request comes from a page of another site"), reasons::kOtherSite));
  }
  // The caller is checked before the path, so that a caller without access does not even learn which jobs exist.
  const absl::StatusOr<Role> role = options_.role_of(head.header("authorization"));
  if (!role.ok()) return refuse(role.status());
  if (absl::Status host = CheckHost(head); !host.ok()) return refuse(host);
  target->caller.role = *role;
  if (!is_call) return absl::nullopt;
  target->method = FindJobMethod(head.path.substr(sizeof kMethodPrefix - 1));
  if (target->method == nullptr) {
    return refuse(
        AddReason(absl::NotFoundError(absl::StrCat("JobService has no such method; ", kMethodsPath, " lists them")),
                  reasons::kMethodUnknown));
  }
  if (!IsJson(head)) {
    HttpResponse response =
        refuse(AddReason(absl::InvalidArgumentError("the body must have the header Content-Type: application/json"),
                         reasons::kContentTypeNotJson));
    response.code = 415;
    return response;
  }
  if (NeedOfJobMethod(target->method->name()) != Need::kRead) {
    const absl::Status may = CheckMayOperate(*role);
    if (!may.ok()) return refuse(may);
    absl::StatusOr<std::string> by = Describe(head);
    if (!by.ok()) return refuse(by.status());
    target->caller.by = *std::move(by);
  }
  return absl::nullopt;
}

// A token proves that no page of another site makes the request, because no such page knows the token. Where none is
// required and this machine has other names than localhost, only the header Host shows it.
absl::Status HttpFront::CheckHost(const HttpRequest& head) const {
  if (options_.loopback || !options_.is_open() || IsAddressOrPlainName(head.header("host").value_or(""))) {
    return absl::OkStatus();
  }
  return AddReason(
      absl::PermissionDeniedError("this coordinator requires no token, so another web site could have made the "
                                  "request, by a name of its own for this address: put the address, or the name of "
                                  "the host without its domain, into the URL, or start the coordinator with "
                                  "--token-file"),
      reasons::kOtherSite);
}

absl::Status HttpFront::CheckMayOperate(Role role) const {
  if (options_.is_open()) {
    return AddReason(absl::PermissionDeniedError(
                         "this coordinator requires no token, so another web site in a browser could have made the "
                         "request: to change something over HTTP, start the coordinator with --token-file and send "
                         "that token"),
                     reasons::kTokenNotConfigured);
  }
  if (role != Role::kOperator) {
    return AddReason(
        absl::PermissionDeniedError("the token is that of viewers, who may only read; send the token of operators"),
        reasons::kOperatorRequired);
  }
  if (!options_.loopback && !options_.allow_plaintext) {
    return AddReason(
        absl::PermissionDeniedError("other hosts can reach this port, and it is served in plain text: to change "
                                    "something over HTTP, use a loopback address through a tunnel, or "
                                    "--allow-plaintext on a network you trust"),
        reasons::kPortNotPrivate);
  }
  return absl::OkStatus();
}

HttpResponse HttpFront::WhoAmI(Role role) const {
  const absl::Status may = CheckMayOperate(role);
  const nlohmann::json answer = {{"role", role == Role::kOperator ? "operator" : "viewer"},
                                 {"may_operate", may.ok()},
                                 {"why", std::string(may.message())}};
  return {.code = 200, .type = kJsonType, .body = answer.dump() + "\n"};
}

void HttpFront::Handle(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) const {
  Target target;
  // The decision may differ from that of Admit, for example because the coordinator has begun to serve in between.
  if (const auto refusal = Decide(request, &target)) return exchange->Respond(*refusal);
  if (target.method != nullptr) return gateway_.Handle(*target.method, request, target.caller, exchange);
  const std::string& path = request.path;
  if (path == kMethodsPath) {
    return exchange->Respond({.code = 200, .type = kJsonType, .body = MethodsJson() + "\n"});
  }
  if (path == kOpenApiPath) return exchange->Respond({.code = 200, .type = kJsonType, .body = OpenApiJson() + "\n"});
  if (path == kWhoAmIPath) return exchange->Respond(WhoAmI(target.caller.role));
  if (absl::string_view topic = path; absl::ConsumePrefix(&topic, kWatchPrefix)) {
    const absl::Status known = CheckWatched(topic);
    if (!known.ok()) return exchange->Respond(StatusResponse(known));
    return Watch(request, std::string(topic), exchange);
  }
  if (const std::string job = JobToWatch(path); !job.empty()) return WatchJob(request, job, target.caller, exchange);
  exchange->Respond(page_.Respond(request));
}

void HttpFront::Watch(const HttpRequest& request, const std::string& topic,
                      const std::shared_ptr<HttpExchange>& exchange) const {
  if (!request.parameters.empty()) {
    return exchange->Respond(StatusResponse(absl::InvalidArgumentError("this path takes no parameters")));
  }
  const bool begun =
      exchange->Begin({.code = 200, .type = kEventStreamType, .headers = kEventStreamHeaders}, kEventHeartbeat);
  options_.count("page_watch", begun ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable);
  if (!begun) return;
  exchange->Write(kFirstEvent);
  if (request.method == "GET") feed_.Subscribe(topic, exchange);
}

void HttpFront::WatchJob(const HttpRequest& request, const std::string& job, const Caller& caller,
                         const std::shared_ptr<HttpExchange>& exchange) const {
  absl::string_view id = request.header("last-event-id").value_or("0.0.0");
  for (const auto& [name, value] : request.parameters) {
    if (name != "after") {
      return exchange->Respond(
          StatusResponse(absl::InvalidArgumentError("this path takes only the parameter `after`")));
    }
    if (!request.header("last-event-id").has_value()) id = value;
  }
  const absl::StatusOr<WatchPosition> after = ParseEventId(id);
  if (!after.ok()) return exchange->Respond(StatusResponse(after.status()));
  v1::WatchRequest watch;
  watch.set_job_id(job);
  watch.set_after_sequence(after->sequence);
  watch.set_after_step(after->step);
  watch.set_after_eval_step(after->eval_step);
  StreamFormat format{.events = true};
  format.begun = [this, job, exchange] {
    exchange->Write(kFirstEvent);
    feed_.Subscribe(absl::StrCat("job/", job), exchange);
  };
  format.id = [position = *after](const google::protobuf::Message& message) mutable {
    const auto& event = static_cast<const v1::Event&>(message);
    position.sequence = std::max(position.sequence, event.sequence());
    position.step = std::max(position.step, event.step().step());
    position.eval_step = std::max(position.eval_step, event.eval().step());
    return EventId(position);
  };
  gateway_.Stream(*FindJobMethod("Watch"), watch, caller, std::move(format), exchange);
}

}  // namespace trainyard
