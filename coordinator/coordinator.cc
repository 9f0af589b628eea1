#include "coordinator/coordinator.h"

#include <sys/stat.h>
#include <unistd.h>

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/http_limits.h"
#include "common/ids.h"
#include "common/limits.h"
#include "common/logging.h"
#include "common/network.h"
#include "common/status_macros.h"
#include "coordinator/core/records.h"
#include "coordinator/http/api_status.h"
#include "trainyard/v1/store.pb.h"

namespace trainyard {
namespace {

constexpr int kClusterIdLength = 16;

// Returns the cluster's id, which is created at the first start with a store.
absl::StatusOr<std::string> LoadOrCreateClusterId(Store& store, Snapshot& snapshot) {
  for (const auto& [key, value] : snapshot.records) {
    if (key != kClusterKey) continue;
    v1::ClusterRecord record;
    if (!record.ParseFromString(value) || record.cluster_id().empty()) {
      return absl::DataLossError(absl::StrCat("record ", key, " of the store cannot be read"));
    }
    return record.cluster_id();
  }
  v1::ClusterRecord record;
  record.set_cluster_id(RandomId(kClusterIdLength));
  std::string value = record.SerializeAsString();
  ASSIGN_OR_RETURN(snapshot.revision, store.Commit({{kClusterKey, value}}, snapshot.revision));
  return record.cluster_id();
}

// Fails if the folder is the state folder of a worker daemon. Both programs lock the file `lock` of their folder, so
// one of them could not start, and its error message would name another program of its own kind as the cause.
absl::Status CheckNoWorkerState(const std::string& folder) {
  for (const char* name : {"ranks", "outbox", "cluster"}) {
    if (!FileExists(JoinPath(folder, name))) continue;
    return absl::InvalidArgumentError(absl::StrCat("state folder ", folder, " is that of a worker daemon (it holds '",
                                                   name, "'); give the coordinator another --state"));
  }
  return absl::OkStatus();
}

// Restricts the store to its owner, because a process that may open these files may also lock them. The mode of an
// existing folder is unchanged.
void RestrictToOwner(const std::string& folder) {
  for (const char* name : {"store.db", "store.db-wal", "store.db-shm", "store.db.bak", "lock", "endpoint"}) {
    const std::string path = JoinPath(folder, name);
    struct stat file;
    if (lstat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode) || (file.st_mode & 077) == 0) continue;
    if (chmod(path.c_str(), 0600) != 0) spdlog::warn("cannot restrict the access of other users to {}", path);
  }
  struct stat info;
  if (stat(folder.c_str(), &info) != 0 || (info.st_mode & 077) == 0) return;
  spdlog::warn("the state folder {} is open to other users (mode {}); the files in it are not, but chmod 700 is safer",
               folder, absl::StrFormat("%04o", info.st_mode & 07777));
}

constexpr absl::Duration kWebhookWait = absl::Seconds(5);

void Log(const WriteLog& line) {
  switch (line.level) {
    case WriteLog::Level::kInfo:
      spdlog::info("{}", line.text);
      break;
    case WriteLog::Level::kWarning:
      spdlog::warn("{}", line.text);
      break;
    case WriteLog::Level::kError:
      spdlog::error("{}", line.text);
      break;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Start(const CoordinatorOptions& options, Clock& clock,
                                                                std::function<void(absl::Status)> failed) {
  auto coordinator = std::unique_ptr<Coordinator>(new Coordinator);
  RETURN_IF_ERROR(coordinator->OpenStore(options));
  RETURN_IF_ERROR(coordinator->StartLoop(options, clock, std::move(failed)));
  RETURN_IF_ERROR(coordinator->Serve(options));
  return coordinator;
}

Coordinator::~Coordinator() { Stop(); }

absl::Status Coordinator::OpenStore(const CoordinatorOptions& options) {
  RETURN_IF_ERROR(CheckNoWorkerState(options.state));
  RETURN_IF_ERROR(MakeFolders(options.state)) << "while making the state folder";
  RestrictToOwner(options.state);
  ASSIGN_OR_RETURN(lock_, FileLock::Acquire(JoinPath(options.state, "lock"), limits::kTakeOverWait),
                   << "another coordinator uses this state folder; stop it, or choose another --state");
  store_path_ = JoinPath(options.state, "store.db");
  ASSIGN_OR_RETURN(store_, OpenSqliteStore(store_path_));
  return absl::OkStatus();
}

absl::Status Coordinator::StartLoop(const CoordinatorOptions& options, Clock& clock,
                                    std::function<void(absl::Status)> failed) {
  ASSIGN_OR_RETURN(Snapshot snapshot, store_->Load(""));
  CoreOptions core_options{.cluster_id = "",
                           .incarnation = RandomIncarnation(),
                           .lease = absl::Milliseconds(options.lease_ms),
                           .finished_jobs = options.finished_jobs,
                           .webhooks = options.webhooks,
                           .queue = options.queue};
  ASSIGN_OR_RETURN(core_options.cluster_id, LoadOrCreateClusterId(*store_, snapshot));
  ASSIGN_OR_RETURN(auto core, Core::New(core_options, snapshot.records, clock.TimeNow()));
  queue_ = std::make_unique<EventQueue>(limits::kCoreQueueEvents);
  server_ = std::make_unique<RpcServer>(
      RpcServerOptions{
          .listen = options.listen,
          .allow_plaintext = options.allow_plaintext,
          .allow_local_users = options.allow_local_users,
          .token_file = options.token_file,
          .viewer_token_file = options.viewer_token_file,
          .tokens = options.tokens,
          .state_token = JoinPath(options.state, "token"),
          .warn = [](const std::string& text) { spdlog::warn("{}", text); },
          .answered = [this](const char* method, absl::Duration duration) { metrics_->ObserveCall(method, duration); }},
      queue_.get(), &clock, [this](const char* method, absl::StatusCode code) { metrics_->CountRpc(method, code); });
  webhooks_ = std::make_unique<WebhookSender>(clock, [this](WebhookDone done) {
    metrics_->CountWebhook(done.problem.empty());
    queue_->Post(std::move(done));
  });
  loop_ = std::make_unique<CoreLoop>(CoreLoop::Options{
      .core = std::move(core),
      .revision = snapshot.revision,
      .store = store_.get(),
      .clock = &clock,
      .wall = &Clock::GetRealClock(),
      .queue = queue_.get(),
      .sink = this,
      .contacts = [this] { return server_->TakeContacts(); },
      .check_waiting = [this](CallId call) { return server_->CheckWaiting(call); },
      .observe =
          [this, &clock](const LoopRound& round, const Core& core) {
            metrics_->ObserveRound(round, core, clock.TimeNow());
            jobs_unfinished_ = core.state().jobs.size() - core.state().finished.size();
          },
      .stalled = [this](const std::string& why) { server_->SetStalled(why); },
      .check_store = [this] { return store_->CheckFiles(); },
      .failed =
          [this, failed = std::move(failed)](const absl::Status& status) {
            backed_up_ = true;  // a foreign or damaged store must not replace the existing backup
            failed(status);
          },
  });
  return absl::OkStatus();
}

void Coordinator::MakeFront(const CoordinatorOptions& options) {
  const absl::optional<HostPort> split = SplitHostPort(options.metrics, /*port_min=*/0);
  const bool loopback = split.has_value() && IsLoopbackHost(split->host);
  const auto count = [this](const char* method, absl::StatusCode code) { metrics_->CountRpc(method, code); };
  const auto ask = [this](const std::function<Event(CallId)>& make_event) { return server_->AskCore(make_event); };
  page_ = std::make_unique<StatusPage>(StatusPage::Options{.ask = ask, .count = count});
  feed_ = std::make_unique<PageFeed>(ask);
  front_ = std::make_unique<HttpFront>(
      HttpFrontOptions{
          .loopback = loopback,
          .allow_plaintext = options.allow_plaintext,
          .role_of = [this, loopback](absl::optional<absl::string_view> authorization) -> absl::StatusOr<Role> {
            if (!serves_) return StartingStatus();
            return server_->RoleOfHttpCaller(authorization, loopback);
          },
          .is_open = [this] { return server_->is_open(); },
          .count = count},
      page_.get(), &gateway_, feed_.get());
}

absl::Status Coordinator::ServeHttp(const CoordinatorOptions& options) {
  MetricsEndpointOptions endpoint{.address = options.metrics, .may_use_free_port = options.metrics_may_use_free_port};
  endpoint.http.observer = metrics_->MakeHttpObserver();
  if (options.page) {
    MakeFront(options);
    endpoint.http.headers = kHttpFrontHeaders;
    endpoint.http.refusal = RefusalResponse;
    endpoint.http.body_bytes_max = limits::kHttpBodyBytes;
    endpoint.http.admit = [this](const HttpRequest& head) { return front_->Admit(head); };
    endpoint.http.handle = [this](const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
      front_->Handle(request, exchange);
    };
  }
  ASSIGN_OR_RETURN(endpoint_, MetricsEndpoint::Start(endpoint, metrics_));
  if (!endpoint_->warning().empty()) spdlog::warn("{}", endpoint_->warning());
  spdlog::info("metrics on http://{}/metrics", endpoint_->address());
  if (options.page) spdlog::info("status page on http://{}/", endpoint_->address());
  return absl::OkStatus();
}

absl::Status Coordinator::Serve(const CoordinatorOptions& options) {
  // Both ports are bound before the loop starts, so that a coordinator that fails here has acknowledged nothing.
  if (!options.metrics.empty()) {
    RETURN_IF_ERROR(ServeHttp(options));
  }
  RETURN_IF_ERROR(server_->Start());
  gateway_.Start(server_->MakeInProcessChannel(),
                 [this](const Caller& caller, grpc::ClientContext& context) { server_->Vouch(caller, context); });
  backed_up_ = false;
  loop_->Start();
  serves_ = true;
  RETURN_IF_ERROR(WriteFileAtomically(JoinPath(options.state, "endpoint"), absl::StrCat(server_->address(), "\n")));
  spdlog::info("serving on {}, state in {}", server_->address(), options.state);
  spdlog::info("calls are answered for {}", server_->callers());
  return absl::OkStatus();
}

void Coordinator::Stop() {
  // The HTTP port is closed first, because it uses all the other parts.
  endpoint_.reset();
  gateway_.Stop();
  if (feed_ != nullptr) feed_->Stop();
  // The private coordinator of `trainctl run` exits with its job, and no later coordinator would deliver a webhook that
  // still waits.
  if (webhooks_ != nullptr) webhooks_->Stop(kWebhookWait);
  if (loop_ != nullptr) loop_->Stop();
  if (server_ != nullptr) server_->Stop();
  if (store_ == nullptr || backed_up_.exchange(true)) return;
  if (absl::Status status = BackUpSqliteStore(store_path_); !status.ok()) {
    spdlog::warn("{}; the previous backup remains", std::string(status.message()));
  }
}

void Coordinator::Release(Effect effect) {
  if (const auto* line = std::get_if<WriteLog>(&effect)) return Log(*line);
  if (auto* due = std::get_if<WebhookDue>(&effect)) return webhooks_->Add(std::move(*due));
  if (feed_ != nullptr) {
    if (const auto* published = std::get_if<JobPublished>(&effect)) feed_->MarkJob(published->job);
    if (const auto* forgotten = std::get_if<JobForgotten>(&effect)) feed_->MarkJob(forgotten->job);
  }
  metrics_->ObserveEffect(effect);
  server_->Release(std::move(effect));
}

}  // namespace trainyard
