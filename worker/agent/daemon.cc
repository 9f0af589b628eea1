#include "worker/agent/daemon.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/hash.h"
#include "common/limits.h"
#include "common/network.h"
#include "common/status_macros.h"
#include "worker/agent/inventory.h"
#include "worker/agent/process_memory.h"
#include "worker/agent/rank_folder.h"
#include "worker/shim/process.h"

namespace trainyard::agent {
namespace {

constexpr char kClusterFile[] = "cluster";
// The rendezvous value of a command: MASTER_ADDR:MASTER_PORT.
constexpr char kMasterValue[] = "command/master";
constexpr int kTokenLength = 32;
constexpr int kOutboxIdLength = 16;
constexpr absl::Duration kCheckInterval = absl::Seconds(1);
// A check that is due this soon is made now, so that the daemon need not wake up for it alone.
constexpr absl::Duration kCheckEarly = absl::Milliseconds(250);
// A check of the state folder usually takes microseconds; after this time it counts as hanging.
constexpr absl::Duration kCheckPatience = absl::Seconds(10);

SnapshotFolderOptions SnapshotOptions(const Config& config) {
  return {.root = config.snapshots, .state = config.state, .is_private = config.lifeline_fd >= 0};
}

void WarnAboutSnapshots(const absl::Status& why) {
  spdlog::warn("snapshots: copies for saves are lost when their trainer ends: {}", std::string(why.message()));
}

// Creates the folder if necessary, before a trainer is started. Returns its path; empty: there is none. `warned` is the
// newest warning: the same one is not logged for each trainer.
std::string MakeSnapshotFolder(const std::shared_ptr<SnapshotFolder>& folder, absl::Status* warned) {
  if (folder == nullptr) return "";
  absl::Status made = folder->Make();
  if (!made.ok() && made != *warned) WarnAboutSnapshots(made);
  *warned = made;
  return made.ok() ? folder->path() : "";
}

ProcessesSampled SampleAll(const SampleProcesses& request) {
  ProcessesSampled sampled;
  const bool any_limit = std::any_of(request.processes.begin(), request.processes.end(),
                                     [](const SampleProcesses::Process& process) { return process.memory_limit > 0; });
  const std::vector<ProcessMemory> memory = any_limit ? ListProcessMemory() : std::vector<ProcessMemory>();
  for (const SampleProcesses::Process& process : request.processes) {
    const pid_t pid = static_cast<pid_t>(process.pid);
    absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
    if (!stat.ok()) continue;
    const uint64_t bytes = process.memory_limit > 0 ? MemoryOfRank(memory, pid, process.memory_limit) : 0;
    sampled.samples.push_back({process.id, stat->state, stat->cpu_s, bytes});
  }
  return sampled;
}

}  // namespace

Daemon::Daemon(Config config, Clock& clock)
    : config_(std::move(config)), clock_(clock), metrics_(config_.log_bytes_per_rank) {}

Daemon::~Daemon() {
  // The parts that still post events or call other parts are stopped first. Detach ends the waits for the coordinator.
  // The callbacks of these waits use the links, so the links are stopped after Detach.
  home_checks_.reset();
  if (relay_ != nullptr) relay_->Detach();
  session_.reset();
  addresses_.reset();
  paths_.reset();
  memory_.reset();
  snapshot_removal_.reset();
  disk_.reset();
  logs_.reset();
  links_.reset();
  examiner_.reset();
  processes_.reset();
  relay_.reset();
  writer_.reset();
}

void Daemon::FindSnapshotFolder() {
  snapshot_removal_ = std::make_unique<TaskThread>();
  if (!config_.snapshots.empty()) {
    const SnapshotFolderOptions options = SnapshotOptions(config_);
    absl::StatusOr<std::shared_ptr<SnapshotFolder>> folder = SnapshotFolder::Find(options);
    if (folder.ok()) snapshots_ = *std::move(folder);
    if (snapshots_ != nullptr) spdlog::info("snapshots in {}", snapshots_->path());
    if (!folder.ok()) WarnAboutSnapshots(folder.status());
  }
  RemoveAbandonedSnapshots();
}

// Removes the folders in memory that other daemons have left behind.
void Daemon::RemoveAbandonedSnapshots() {
  snapshot_removal_->Post([options = SnapshotOptions(config_),
                           path = snapshots_ == nullptr ? "" : snapshots_->path()]() -> std::function<void()> {
    RemoveAbandonedFolders(options, path);
    return nullptr;
  });
}

std::string Daemon::ReadCluster() const {
  absl::StatusOr<std::string> cluster = ReadFile(JoinPath(config_.state, kClusterFile), 1024);
  return cluster.ok() ? std::string(absl::StripSuffix(*cluster, "\n")) : "";
}

// Reads the facts of an earlier incarnation. A torn end is normal after a crash; other damage is logged.
absl::StatusOr<CoreOptions> Daemon::MakeCoreOptions() {
  storage_ = NewOutboxFile(JoinPath(config_.state, kOutboxFile));
  ASSIGN_OR_RETURN(std::string file, storage_->Read());
  ASSIGN_OR_RETURN(OutboxContents outbox, ReadOutboxFile(file));
  if (outbox.cut_bytes > 0) {
    spdlog::warn("the last {} of the outbox's {} bytes are torn or damaged; they are cut off", outbox.cut_bytes,
                 file.size());
  }
  CoreOptions options = {
      .coordinator = config_.coordinator,
      .host = config_.name,
      .incarnation = RandomIncarnation(),
      .inventory = ReadInventory(config_.coordinator),
      .cpus = CpusOfAffinity(),
      .cluster_id = ReadCluster(),
      .adopt_cluster = config_.adopt_cluster,
      .outbox = std::move(outbox),
      .make_outbox_id = [] { return RandomId(kOutboxIdLength); },
      .make_token = [] { return RandomId(kTokenLength); },
      .random = [bits = std::make_shared<absl::BitGen>()] { return absl::Uniform(*bits, 0.0, 1.0); },
      .interface_address = InterfaceAddress,
  };
  for (const auto& [key, value] : config_.labels) (*options.inventory.mutable_labels())[key] = value;
  disk_check_->free_bytes = DiskFreeBytes(config_.state);
  options.inventory.set_disk_free_bytes(disk_check_->free_bytes);
  options.data_interface = InterfaceOf(options.inventory.data_address());
  uint32_t gpus = static_cast<uint32_t>(options.inventory.gpus_size());
  options.slots = config_.slots > 0 ? config_.slots : std::max(1u, gpus);
  options.shares_machine = !claim_.held();
  spdlog::info("host {}: {} slots, {} cores, {} MiB, data address {}, {}", options.host, options.slots,
               options.inventory.cores(), options.inventory.memory_bytes() >> 20, options.inventory.data_address(),
               gpus > 0 ? absl::StrCat(gpus, " GPUs") : absl::StrCat("no GPU: ", options.inventory.gpu_note()));
  return options;
}

absl::Status Daemon::StartEndpoints() {
  if (!config_.metrics.empty()) {
    ASSIGN_OR_RETURN(endpoint_, MetricsEndpoint::Start({.address = config_.metrics,
                                                        .may_use_free_port = config_.metrics_may_use_free_port},
                                                       metrics_.registry()));
    if (!endpoint_->warning().empty()) spdlog::warn("{}", endpoint_->warning());
    spdlog::info("metrics on http://{}/metrics", endpoint_->address());
  }
  if (!config_.health.empty()) {
    ASSIGN_OR_RETURN(health_, HealthServer::Start(config_.health, config_.health_may_use_free_port));
    if (!health_->warning().empty()) spdlog::warn("{}", health_->warning());
    spdlog::info("health service on {}", health_->address());
  }
  return absl::OkStatus();
}

absl::Status Daemon::Start() {
  const std::string shim = JoinPath(config_.programs, "trainyard-shim");
  const std::string trainer = JoinPath(config_.programs, "trainyard-trainer");
  Home::Options home_options = {.state = config_.state, .own_root = config_.own_root};
  // No user can restart a daemon that was started for one run, so after an upgrade it starts the new programs.
  if (config_.lifeline_fd < 0) home_options.programs = {shim, trainer};
  ASSIGN_OR_RETURN(home_, Home::Acquire(home_options));
  socket_ = home_->listener()->path();
  FindSnapshotFolder();
  ASSIGN_OR_RETURN(CoreOptions options, MakeCoreOptions());
  const FolderLimits folder_limits = FolderLimitsFor(options.slots, config_.log_bytes_per_rank);
  metrics_.ObserveRankFolderLimits(folder_limits);
  RETURN_IF_ERROR(StartEndpoints());

  auto post = [this](Event event) { Post(std::move(event)); };
  auto wake = [this] { events_.Wake(); };
  writer_ = std::make_unique<OutboxWriter>(*storage_, post);
  relay_ = std::make_unique<ValueRelay>(cache_, clock_,
                                        [this](v1::AgentMessage message) { session_->Send(std::move(message)); });
  core_ = std::make_unique<Core>(std::move(options));
  processes_ = std::make_unique<ProcessTable>(
      ProcessTableOptions{
          .ranks = home_->ranks(),
          .shim = shim,
          .trainer = trainer,
          .link = socket_,
          .check = [home = home_] { return home->Check(); },
          .snapshots = [folder = snapshots_,
                        warned = std::make_shared<absl::Status>()] { return MakeSnapshotFolder(folder, warned.get()); },
          .lifeline_fd = config_.lifeline_fd,
          .log_bytes_per_rank = config_.log_bytes_per_rank,
          .folder_limits = folder_limits,
          .on_pruned = [this](const RankFolders& folders) { metrics_.ObserveRankFolders(folders); }},
      post);
  examiner_ =
      std::make_unique<ProcessExaminer>(post, [this](const ExamineProcess& request, ProcessExaminer::Pause pause) {
        return RequestTrainerStack(request, pause);
      });
  disk_ = std::make_unique<TaskThread>();
  paths_ = std::make_unique<TaskThread>();
  addresses_ = std::make_unique<TaskThread>();
  memory_ = std::make_unique<TaskThread>();
  // The daemon must know its trainers before it can be reached: it refuses unknown trainers that dial, and its hello
  // names all trainers. It handles the events of FindAll before those of links. Calls for values are no events, so
  // until these events are handled, a trainer that is not known yet is asked to call again.
  cache_.SetComplete(false);
  processes_->FindAll();
  ASSIGN_OR_RETURN(links_, LinkServer::Start({.listener = home_->listener(),
                                              .clock = clock_,
                                              .cache = cache_,
                                              .relay = *relay_,
                                              .post = post,
                                              .wake = wake}));
  home_checks_ = std::make_unique<TaskThread>();
  logs_ = std::make_unique<LogPusher>(home_->ranks(), post);
  session_ = std::make_unique<Session>(DialOptions{.address = config_.coordinator, .token_file = config_.token_file},
                                       post, [this](const v1::StoreValues& values) { relay_->Receive(values); });
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

int Daemon::AwaitEnd() {
  thread_.join();
  if (removes_snapshots_ && snapshots_ != nullptr) snapshots_->Remove();
  return *exit_code_;
}

// The loop of the event thread.
void Daemon::Run() {
  while (!exit_code_.has_value()) {
    CheckHome();
    absl::Time deadline = std::min({core_->NextWake(), cache_.NextDeadline(), relay_->NextDeadline(), check_home_at_});
    Event event = events_.Pop(std::max(absl::ZeroDuration(), deadline - clock_.TimeNow())).value_or(Tick{});
    // The sender of this event may send again once this one is handled: at most one event of each sender waits here.
    LinkId link;
    if (auto* opened = std::get_if<LinkOpened>(&event)) link = opened->link;
    if (auto* fact = std::get_if<LinkFact>(&event)) link = fact->link;
    if (auto* report = std::get_if<LinkReport>(&event)) link = report->link;
    bool welcomed = std::holds_alternative<Welcomed>(event);
    bool ended = std::holds_alternative<SessionEnded>(event);
    const bool all_found = std::holds_alternative<AllFound>(event);
    bool from_coordinator = welcomed || std::holds_alternative<DesiredStateReceived>(event) ||
                            std::holds_alternative<FactsAcknowledged>(event);
    if (ended) {
      relay_->Detach();
      FindAddress();
    }
    if (std::holds_alternative<AddressFound>(event)) finds_address_ = false;
    if (auto* checked = std::get_if<HomeChecked>(&event)) ApplyHomeCheck(*checked);
    if (std::holds_alternative<ProcessesSampled>(event)) measures_memory_ = false;

    absl::Time now = clock_.TimeNow();
    for (Effect& effect : core_->Handle(std::move(event), now)) {
      std::visit([this](auto& e) { Do(e); }, effect);
    }
    if (all_found) cache_.SetComplete(true);
    if (welcomed) relay_->Attach();
    if (health_ != nullptr && (welcomed || ended)) health_->SetAttached(welcomed);
    if (from_coordinator) session_->ReadMore();
    if (link != LinkId()) links_->ReadMore(link);
    cache_.Expire(now);
    relay_->Expire(now);
    metrics_.Observe(core_->stats(), events_.size());
  }
}

void Daemon::Do(Dial& effect) {
  effect.hello.set_time_unix_ms(absl::ToUnixMillis(absl::Now()));
  session_->Dial(effect.hello);
}

// Fills in the time and the free disk space, because the core reads neither the wall clock nor the disk.
void Daemon::Do(SendToCoordinator& effect) {
  if (effect.message.has_heartbeat()) {
    v1::Heartbeat& beat = *effect.message.mutable_heartbeat();
    beat.set_time_unix_ms(absl::ToUnixMillis(absl::Now()));
    beat.set_disk_free_bytes(disk_check_->free_bytes);
    metrics_.ObserveDisk(beat.disk_free_bytes());
    CheckDisk();
  }
  session_->Send(std::move(effect.message));
}

// Measures the free space for the next heartbeat. A measurement that hangs is not repeated before it has returned.
void Daemon::CheckDisk() {
  if (disk_check_->under_way.exchange(true)) return;
  const bool accepted = disk_->Post([path = config_.state, check = disk_check_]() -> std::function<void()> {
    check->free_bytes = DiskFreeBytes(path);
    check->under_way = false;
    return nullptr;
  });
  if (!accepted) disk_check_->under_way = false;
}

// Starts a check once a second on another thread, which may hang with the disk; a hang is reported as trouble.
void Daemon::CheckHome() {
  const absl::Time now = clock_.TimeNow();
  if (now < check_home_at_ - kCheckEarly) return;
  check_home_at_ = now + kCheckInterval;
  if (checking_since_ == absl::InfiniteFuture()) {
    checking_since_ = now;
    home_checks_->Post([home = home_] { return home->Inspect(); },
                       [this](const HomeChecked& checked) { Post(checked); });
  } else if (now - checking_since_ >= kCheckPatience) {
    Post(HomeChecked{
        .trouble = absl::StrCat("the disk of its state folder ", config_.state, " or of its programs in ",
                                config_.programs, " has not answered for ", absl::FormatDuration(kCheckPatience)),
        .hangs = true});
  }
}

void Daemon::ApplyHomeCheck(const HomeChecked& checked) {
  if (!checked.hangs) checking_since_ = absl::InfiniteFuture();
  if (checked.state_is_new) RemoveAbandonedSnapshots();
  if (health_ != nullptr) health_->SetTrouble(!checked.trouble.empty());
}

// Looks up the data address again, for the next hello. Waits for the name server on another thread.
void Daemon::FindAddress() {
  if (std::exchange(finds_address_, true)) return;
  auto find = [coordinator = config_.coordinator, present = core_->data_address()] {
    AddressFound found{.present_is_valid = !IsLoopbackHost(present) && !InterfaceOf(present).empty()};
    if (found.present_is_valid) return found;  // it is kept, so the name server is not needed
    absl::StatusOr<std::string> address = FindDataAddress(coordinator);
    if (!address.ok()) return found;
    found.interface = InterfaceOf(*address);
    found.address = *std::move(address);
    return found;
  };
  if (!addresses_->Post(find, [this](const AddressFound& found) { Post(found); })) finds_address_ = false;
}

void Daemon::Do(CheckPath& effect) {
  v1::PathAnswer answer;
  answer.set_request_id(effect.request_id);
  auto check = [path = effect.path, answer]() mutable {
    struct stat info;
    answer.set_there(stat(path.c_str(), &info) == 0);
    if (!answer.there()) answer.set_note(strerror(errno));
    return answer;
  };
  if (paths_->Post(std::move(check), [this](const v1::PathAnswer& checked) { Post(PathChecked{checked}); })) return;
  answer.set_note("too many requested paths are being checked on this host");
  Post(PathChecked{answer});
}

// Requests the stack of the process with that pid, unless another process has reused the pid.
StackAnswer Daemon::RequestTrainerStack(const ExamineProcess& request, ProcessExaminer::Pause pause) const {
  constexpr absl::Duration kLimit = absl::Seconds(3);
  const std::string folder = JoinPath(home_->ranks(), FolderName(request.id));
  const pid_t pid = static_cast<pid_t>(request.pid);
  absl::StatusOr<PidRecord> pids = ReadPids(folder);
  if (!pids.ok()) return {.frames = {}, .note = std::string(pids.status().message())};
  if (pids->trainer.pid != pid || shim::StartTime(pid) != pids->trainer.start) {
    return {.frames = {}, .note = "the process has exited"};
  }
  return RequestStack(pid, folder, kLimit, pause);
}

// Reading the state of a process takes microseconds, so the event thread does it itself. Measuring memory reads all of
// /proc, and the kernel needs milliseconds for the shared pages of a large process.
void Daemon::Do(SampleProcesses& effect) {
  const bool any_limit = std::any_of(effect.processes.begin(), effect.processes.end(),
                                     [](const SampleProcesses::Process& process) { return process.memory_limit > 0; });
  if (!any_limit) return Post(SampleAll(effect));
  if (std::exchange(measures_memory_, true)) return;  // the measurement before this one is still under way
  const bool accepted =
      memory_->Post([effect] { return SampleAll(effect); }, [this](const ProcessesSampled& sampled) { Post(sampled); });
  if (!accepted) measures_memory_ = false;
}

void Daemon::Do(AdmitTrainer& effect) {
  relay_->Follow(GroupOf(effect.id));  // first, because an admitted trainer may put values
  cache_.Admit(effect.id, effect.token);
}

void Daemon::Do(FindMaster& effect) {
  const TrainerId id = effect.id;
  if (id.rank == 0) {
    absl::StatusOr<uint16_t> port = ports_.Choose();
    if (!port.ok()) return Post(MasterKnown{id, port.status()});
    // An error needs no answer here: the value is put again once there is a coordinator. If this generation has a value
    // already, which an earlier incarnation of this daemon has put, that value is used.
    relay_->Put(id, kMasterValue, absl::StrCat(effect.data_address, ":", *port), [](const absl::Status&) {});
  }
  cache_.Get(GroupOf(id), kMasterValue, absl::InfiniteFuture(), [this, id](absl::StatusOr<std::string> address) {
    Post(MasterKnown{id, std::move(address)});
  });
}

void Daemon::Do(EndGroup& effect) {
  cache_.End(effect.group, effect.reason);
  relay_->Forget(effect.group);
}

void Daemon::Do(RememberCluster& effect) {
  const bool accepted = disk_->Post([path = JoinPath(config_.state, kClusterFile),
                                     text = absl::StrCat(effect.cluster_id, "\n")]() -> std::function<void()> {
    absl::Status written = WriteFileAtomically(path, text);
    if (!written.ok()) spdlog::warn("{}", std::string(written.message()));
    return nullptr;
  });
  if (!accepted) spdlog::warn("the disk of {} does not answer: this host's cluster was not recorded", config_.state);
}

void Daemon::Do(KeepSnapshots& effect) {
  if (snapshots_ == nullptr || !snapshots_->SetJobs(std::move(effect.jobs))) return;
  snapshot_removal_->Post([folder = snapshots_]() -> std::function<void()> {
    folder->Sweep();
    return nullptr;
  });
}

void Daemon::Do(Leave& effect) {
  exit_code_ = effect.exit_code;
  removes_snapshots_ = effect.remove_snapshots;
}

void Daemon::Do(Log& effect) {
  spdlog::level::level_enum level = effect.level == Log::Level::kError     ? spdlog::level::err
                                    : effect.level == Log::Level::kWarning ? spdlog::level::warn
                                                                           : spdlog::level::info;
  spdlog::log(level, "{}", effect.text);
}

}  // namespace trainyard::agent
