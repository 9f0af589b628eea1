// trainctl health: asks the gRPC health service of a coordinator or a worker daemon, like the probes of Kubernetes. The
// health checks of containers use it, because the images contain no other gRPC client. The calls need no token.
#include <google/protobuf/empty.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "common/network.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

// Names and numbers of grpc/health/v1/health.proto, whose generated code Debian does not package.
constexpr char kHealthCheckMethod[] = "/grpc.health.v1.Health/Check";
constexpr int kHealthServiceField = 1;  // of the request: a string
constexpr int kHealthStatusField = 1;   // of the response: an enum, absent if 0 (UNKNOWN)
constexpr uint64_t kHealthServing = 1;

struct HealthOptions {
  std::string address;  // empty: the configured coordinator
  std::string service;  // empty: the whole server
  double timeout_s = 2;
  bool json = false;
};

// The status of a finished call, with a message that names the server.
absl::Status HealthCallStatus(const grpc::Status& status, const HealthOptions& options) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return absl::OkStatus();
    case grpc::StatusCode::UNAVAILABLE:
      return absl::UnavailableError(
          absl::StrCat("no server answers at ", options.address, ": ", status.error_message()));
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return absl::DeadlineExceededError(
          absl::StrCat("the server at ", options.address, " did not answer within ", options.timeout_s, " s"));
    case grpc::StatusCode::NOT_FOUND:
      return absl::NotFoundError(absl::StrCat("the server at ", options.address, " has no service '", options.service,
                                              "'; a coordinator has trainyard.v1.JobService and a worker daemon has "
                                              "trainyard.v1.AgentService"));
    case grpc::StatusCode::UNIMPLEMENTED:
      return absl::InvalidArgumentError(  // another address must be given
          absl::StrCat("the server at ", options.address,
                       " has no gRPC health service; give the address of a coordinator (port 7070) or the --health "
                       "address of a worker daemon (port 7073)"));
    default:
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                          absl::StrCat("the server at ", options.address, ": ", status.error_message()));
  }
}

// Returns whether the server reports that it serves. Possible errors: those of CheckTarget and of HealthCallStatus.
absl::StatusOr<bool> IsServing(const Globals& globals, const HealthOptions& options) {
  RETURN_IF_ERROR(CheckTarget(Target{.address = options.address, .allow_plaintext = globals.allow_plaintext}));
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  grpc::TemplatedGenericStub<google::protobuf::Empty, google::protobuf::Empty> stub(
      grpc::CreateCustomChannel(GrpcTarget(options.address), grpc::InsecureChannelCredentials(), arguments));

  google::protobuf::Empty request, response;
  if (!options.service.empty()) {
    google::protobuf::Empty::GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(kHealthServiceField,
                                                                                                 options.service);
  }
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(options.timeout_s)));
  grpc::Status status;
  absl::Notification answered;
  stub.UnaryCall(&context, kHealthCheckMethod, grpc::StubOptions(), &request, &response, [&](grpc::Status result) {
    status = std::move(result);
    answered.Notify();
  });
  answered.WaitForNotification();
  RETURN_IF_ERROR(HealthCallStatus(status, options));

  const google::protobuf::UnknownFieldSet& fields =
      google::protobuf::Empty::GetReflection()->GetUnknownFields(response);
  for (int i = 0; i < fields.field_count(); ++i) {
    const google::protobuf::UnknownField& field = fields.field(i);
    if (field.number() == kHealthStatusField && field.type() == google::protobuf::UnknownField::TYPE_VARINT) {
      return field.varint() == kHealthServing;
    }
  }
  return false;
}

int Health(const Globals& globals, HealthOptions options) {
  if (options.address.empty()) options.address = globals.coordinator;
  if (options.address.empty()) {
    return ReportStatus(
        absl::InvalidArgumentError("no server is named: give HOST:PORT, --coordinator or TRAINYARD_COORDINATOR"),
        options.json);
  }
  const absl::StatusOr<bool> serving = IsServing(globals, options);
  if (!serving.ok()) return ReportStatus(serving.status(), options.json);
  if (options.json) {
    PrintJson(nlohmann::ordered_json({{"address", options.address},
                                      {"service", options.service},
                                      {"status", *serving ? "SERVING" : "NOT_SERVING"}})
                  .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    Print(absl::StrCat(options.service.empty() ? "the server" : options.service, " at ", options.address,
                       *serving ? " is serving\n" : " is not serving\n"));
  }
  return *serving ? kClientDone : kClientFailed;
}

}  // namespace

void AddHealth(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<HealthOptions>();
  CLI::App* verb = app.add_subcommand("health", "Check whether a coordinator or a worker daemon is serving");
  verb->add_option("address", options->address,
                   "HOST:PORT or unix:PATH of a gRPC health service; default: that of --coordinator")
      ->type_name("HOST:PORT");
  verb->add_option("--service", options->service,
                   "Check this service: trainyard.v1.JobService of a coordinator, or trainyard.v1.AgentService of a "
                   "daemon, which serves while the daemon is attached; default: the whole server")
      ->type_name("NAME");
  verb->add_option("--timeout", options->timeout_s, "Seconds to wait for the answer")
      ->capture_default_str()
      ->check(CLI::Range(0.01, 3600.0))
      ->type_name("S");
  AddJson(*verb, &options->json, "One JSON object");
  verb->footer(
      "Exit codes: 0 serving, 1 not serving, 2 bad input, 3 no answer.\n\n"
      "Examples:\n"
      "  trainctl health 127.0.0.1:7070\n"
      "  trainctl health 127.0.0.1:7073 --service trainyard.v1.AgentService");
  verb->callback([&globals, options, chosen] { *chosen = [&globals, options] { return Health(globals, *options); }; });
}

}  // namespace trainyard::client
