#include "coordinator/rpc/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <unistd.h>

#include <future>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/limits.h"
#include "common/network.h"
#include "common/rpc_credentials.h"
#include "common/status_macros.h"
#include "common/tokens.h"
#include "common/user.h"
#include "coordinator/rpc/reason_interceptor.h"

namespace trainyard {
namespace {

absl::StatusOr<HostPort> SplitListenAddress(absl::string_view address) {
  absl::optional<HostPort> split = SplitHostPort(address, /*port_min=*/0);
  if (split.has_value()) return *split;
  return absl::InvalidArgumentError(
      absl::StrCat("listen address '", address, "' must be host:port with a port of 0 to 65535"));
}

constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(5);

}  // namespace

absl::Status CheckListenAddress(const RpcServerOptions& options) {
  if (auto path = SplitUnixAddress(options.listen); path.has_value()) {
    if (!path->empty() && path->front() == '/' && path->size() <= limits::kSocketPathBytes) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("listen address '", options.listen,
                                                   "' must be unix: and an absolute path of at most ",
                                                   limits::kSocketPathBytes, " bytes"));
  }
  ASSIGN_OR_RETURN(HostPort address, SplitListenAddress(options.listen));
  if (IsLoopbackHost(address.host) || options.allow_plaintext) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("listen address ", options.listen,
                   " is not loopback, and the API is served in plain text: "
                   "everybody who reaches the port could run jobs. Listen on 127.0.0.1, or use --allow-plaintext on a "
                   "network you trust"));
}

RpcServer::RpcServer(RpcServerOptions options, EventQueue* queue, Clock* clock,
                     std::function<void(const char*, absl::StatusCode)> count)
    : options_(std::move(options)),
      context_{
          .queue = queue, .clock = clock, .access = &access_, .count = std::move(count), .answered = options_.answered},
      calls_(context_),
      jobs_(context_, calls_, bridge_),
      agents_(context_, bridge_) {}

RpcServer::~RpcServer() { Stop(); }

absl::Status RpcServer::Start() {
  RETURN_IF_ERROR(CheckListenAddress(options_));
  RETURN_IF_ERROR(Listen());
  // Connections are accepted only later (Serve), so a client that is connected reads the token after it was written.
  RETURN_IF_ERROR(SetAccess());
  access_.set_bridge_secret(GenerateToken());
  return Serve();
}

absl::Status RpcServer::Listen() {
  const absl::optional<absl::string_view> path = SplitUnixAddress(options_.listen);
  const Acceptor::Options acceptor_options{
      .user_timeout = kKeepaliveTimeout, .any_user = options_.allow_local_users, .warn = options_.warn};
  auto listen = [&]() -> absl::StatusOr<std::unique_ptr<Acceptor>> {
    if (path.has_value()) return Acceptor::ListenUnix(std::string(*path), acceptor_options);
    ASSIGN_OR_RETURN(HostPort address, SplitListenAddress(options_.listen));
    return Acceptor::Listen(address, acceptor_options);
  };
  absl::Time deadline = absl::Now() + limits::kTakeOverWait;
  auto acceptor = listen();
  while (absl::IsUnavailable(acceptor.status()) && absl::Now() < deadline &&
         !context_.queue->AwaitClosed(absl::Milliseconds(20))) {
    acceptor = listen();
  }
  RETURN_IF_ERROR(acceptor.status()) << "tried for " << absl::FormatDuration(limits::kTakeOverWait)
                                     << "; choose another --listen address, or stop the program that listens there";
  acceptor_ = *std::move(acceptor);
  address_ = path.has_value()
                 ? options_.listen
                 : absl::StrCat(options_.listen.substr(0, options_.listen.rfind(':')), ":", acceptor_->port());
  return absl::OkStatus();
}

absl::Status RpcServer::SetAccess() {
  if (!options_.token_file.empty()) {
    ASSIGN_OR_RETURN(NamedToken named, ReadOrMakeNamedToken(options_.token_file));
    callers_ = absl::StrCat("callers with the token in ", options_.token_file);
    return SetTokens(
        named.token,
        "this coordinator answers only callers that have its token; name the file that holds it: for trainctl with "
        "--token-file or TRAINYARD_TOKEN_FILE, for a worker daemon with token_file");
  }
  const bool is_open =
      !IsLocalAddress(address_) || options_.allow_local_users || SplitUnixAddress(address_).has_value();
  if (is_open && !options_.viewer_token_file.empty()) {
    return absl::InvalidArgumentError(
        "viewer_token_file has no effect where callers need no token: set token_file, too, for operators");
  }
  if (!IsLocalAddress(address_)) {
    callers_ = "everybody who reaches the port (set token_file to require a token)";
    return absl::OkStatus();
  }
  if (options_.allow_local_users) {
    callers_ = "every user of this host";
    return absl::OkStatus();
  }
  const std::string user = UserText(geteuid());
  callers_ = absl::StrCat("user ", user);
  if (SplitUnixAddress(address_).has_value()) return absl::OkStatus();  // the socket's mode excludes others
  const std::string token = GenerateToken();
  std::string path;
  RETURN_IF_ERROR(WriteOwnToken(token, &path));
  absl::StrAppend(&callers_, ", by the token in ", path);
  return SetTokens(token,
                   absl::StrCat("this coordinator answers programs of user ", user, ", which find its token in ", path,
                                " automatically. Other users need a copy of that file, named with --token-file ",
                                "(TRAINYARD_TOKEN_FILE), or a coordinator started with --allow-local-users"));
}

absl::Status RpcServer::SetTokens(const std::string& token, std::string instructions) {
  std::string viewer_token;
  if (!options_.viewer_token_file.empty()) {
    ASSIGN_OR_RETURN(NamedToken named, ReadOrMakeNamedToken(options_.viewer_token_file), << "the token of viewers");
    if (SameToken(named.token, token)) {
      return absl::InvalidArgumentError(absl::StrCat("the token of viewers in ", options_.viewer_token_file,
                                                     " is also that of operators; put a different one there"));
    }
    viewer_token = std::move(named.token);
    absl::StrAppend(&callers_, "; viewers with the token in ", options_.viewer_token_file);
  }
  access_ = Access(token, std::move(instructions), std::move(viewer_token));
  return absl::OkStatus();
}

absl::Status RpcServer::WriteOwnToken(const std::string& token, std::string* path) {
  absl::StatusOr<std::string> folder = options_.tokens;
  if (options_.tokens.empty()) folder = UserTokenFolder();
  absl::Status written = folder.status();
  for (const std::string& address : acceptor_->addresses()) {
    if (!written.ok()) break;
    written = WriteToken(*folder, address, token);
    *path = TokenPath(*folder, address);
  }
  own_token_ = token;
  if (written.ok()) {
    own_folder_ = *folder;
    return written;
  }
  if (options_.state_token.empty()) return written;
  *path = options_.state_token;
  if (options_.warn) {
    options_.warn(absl::StrCat(written.message(), ": the token is in ", *path,
                               " instead, where programs find it only with --token-file"));
  }
  return WriteTokenFile(*path, token);
}

// Must run before the port is freed: afterwards a file at that path may belong to the next coordinator.
void RpcServer::RemoveOwnToken() {
  if (own_folder_.empty()) return;
  for (const std::string& address : acceptor_->addresses()) RemoveToken(own_folder_, address, own_token_);
}

absl::Status RpcServer::Serve() {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  auto accepted = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, MakeServerCredentials());
  builder.SetMaxReceiveMessageSize(static_cast<int>(limits::kGrpcMessageBytes));
  builder.SetMaxSendMessageSize(static_cast<int>(limits::kGrpcMessageBytes));
  // Daemons ping every 10 s, also on an idle connection, to detect a coordinator that does not answer. By default a
  // server treats frequent pings without data as an attack.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 500);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Readers that disappeared without closing their connection (watchers have no lease) are detected within 15 s.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(kKeepaliveTimeout)));
  // Idle connections would take descriptors from daemons.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 60'000);
  // Most messages are small, and each of a thousand daemons sends one per second: a bandwidth probe for each would
  // double their cost.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 0);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(std::make_unique<ReasonInterceptors>());
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  builder.RegisterService(&jobs_);
  builder.RegisterService(&agents_);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) return absl::InternalError("gRPC could not start its server; its log has the reason");
  auto* health = server_->GetHealthCheckService();
  health->SetServingStatus("trainyard.v1.JobService", true);
  health->SetServingStatus("trainyard.v1.AgentService", true);
  acceptor_->Start(std::move(accepted));
  return absl::OkStatus();
}

absl::StatusOr<Role> RpcServer::RoleOfHttpCaller(absl::optional<absl::string_view> authorization,
                                                 bool only_this_host) const {
  if (!access_.is_open()) return access_.RoleOf(authorization);
  if (SplitUnixAddress(address_).has_value()) {
    return AddReason(
        absl::PermissionDeniedError("the API listens on a Unix socket, which only its user can open, and the port of "
                                    "this page can be reached by others: start the coordinator with --token-file, and "
                                    "enter that token here"),
        reasons::kTokenNotConfigured);
  }
  if (IsLocalAddress(address_) && !only_this_host) {
    return AddReason(
        absl::PermissionDeniedError("the API answers only programs of its host, and the port of this page can be "
                                    "reached from other hosts: start the coordinator with --token-file, or with "
                                    "--metrics and a loopback address"),
        reasons::kTokenNotConfigured);
  }
  return Role::kViewer;
}

std::shared_ptr<grpc::Channel> RpcServer::MakeInProcessChannel() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(limits::kGrpcMessageBytes));
  arguments.SetMaxSendMessageSize(static_cast<int>(limits::kGrpcMessageBytes));
  return server_->InProcessChannel(arguments);
}

absl::StatusOr<Reply> RpcServer::AskCore(const std::function<Event(CallId)>& make_event) {
  auto promise = std::make_shared<std::promise<Reply>>();
  std::future<Reply> answer = promise->get_future();
  calls_.Ask(make_event, [promise](Reply& reply) { promise->set_value(std::move(reply)); });
  if (answer.wait_for(absl::ToChronoNanoseconds(kAskWait)) != std::future_status::ready) {
    return OverloadedStatus();
  }
  Reply reply = answer.get();
  RETURN_IF_ERROR(reply.status);
  return reply;
}

void RpcServer::Stop() {
  if (server_ == nullptr) return;
  RemoveOwnToken();
  acceptor_->Stop();
  server_->GetHealthCheckService()->SetServingStatus(false);
  absl::Status status = ShuttingDownStatus();
  jobs_.EndAll(status);
  agents_.EndAll(status);
  calls_.FailAll(status);
  // Ended streams return immediately; calls that arrived meanwhile are cancelled after this time.
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  server_->Wait();
  server_.reset();
}

void RpcServer::Release(Effect effect) {
  std::visit(
      [this](auto& what) {
        using T = std::decay_t<decltype(what)>;
        if constexpr (std::is_same_v<T, Reply>) {
          calls_.Finish(std::move(what));
        } else if constexpr (requires { jobs_.Release(std::move(what)); }) {
          jobs_.Release(std::move(what));
        } else if constexpr (requires { agents_.Release(std::move(what)); }) {
          agents_.Release(std::move(what));
        }
        // All other effects are for logs and metrics; Coordinator::Release handles them.
      },
      effect);
}

}  // namespace trainyard
