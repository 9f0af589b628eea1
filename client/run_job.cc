#include "client/run_job.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/connection.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/interrupts.h"
#include "client/job_calls.h"
#include "client/job_session.h"
#include "client/log_follower.h"
#include "client/output.h"
#include "client/private_cluster.h"
#include "client/run_folder.h"
#include "client/text.h"
#include "common/files.h"
#include "common/ids.h"
#include "common/network.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "worker/agent/inventory.h"

namespace trainyard::client {
namespace {

// After the end of a command: how long to wait for the next line of its output.
constexpr absl::Duration kOutputWait = absl::Seconds(30);
// If the private daemon needs longer than this to attach, the job is submitted and reports the problem.
constexpr absl::Duration kHostWait = absl::Seconds(5);
constexpr char kInterruptedEarly[] = "interrupted before the job was submitted";

// The folder of the private daemons of a command, which has no run folder. Its path is absolute, as the daemons need
// it, even if TMPDIR is not.
absl::StatusOr<std::string> MakeTemporaryFolder() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  std::string path =
      JoinPath(error ? "/tmp" : AbsolutePath(parent.string(), WorkingDirectory()), "trainyard-launch-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, absl::StrCat("cannot create the folder ", path));
  return path;
}

class JobRunner {
 public:
  JobRunner(const Globals& globals, const RunJobOptions& options) : globals_(globals), options_(options) {}

  int Run() {
    BlockSignals();
    Interrupts interrupts([this] { KillImmediately(); });
    auto exit_code = Train(interrupts);
    if (exit_code.ok()) {
      if (*exit_code == kClientDone || *exit_code == kClientCancelled) RemoveTemporaryFolder();
      return *exit_code;
    }
    if (cluster_ != nullptr) {
      absl::Status stopped = cluster_->Stop();
      if (!stopped.ok()) Fail(stopped);
    }
    const bool is_cancelled = interrupts.interrupted() && !JobMayContinue();
    int code = is_cancelled ? kClientCancelled : ExitCodeOf(exit_code.status());
    PrintFailure(exit_code.status(), code);
    if (job_id_.empty() || code == kClientCancelled) RemoveTemporaryFolder();
    return code;
  }

 private:
  absl::StatusOr<int> Train(Interrupts& interrupts) {
    const bool with_private_daemons = globals_.coordinator.empty();
    // Reading may take long: the job may come from a pipe, and its data may be in a large folder.
    interrupts.OnFirst([this] { EndBeforeSubmission(); });
    absl::StatusOr<LoadedJob> read = options_.load(with_private_daemons);
    interrupts.OnFirst(nullptr);
    RETURN_IF_ERROR(read.status());
    const LoadedJob& loaded = *read;
    if (with_private_daemons) {
      RETURN_IF_ERROR(CheckHosts(loaded.spec));
    }
    PrintNotesAndWarnings(loaded);
    for (const Problem& warning : loaded.problems.Warnings()) printed_warnings_.insert(warning.Message());
    v1::SubmitRequest request;
    *request.mutable_spec() = loaded.spec;
    request.set_job_id(new_job_id_);
    request.set_default_run_root(DefaultRunRoot(WorkingDirectory()));
    request.set_resume(options_.resume);
    request.set_allow_fresh_start(options_.allow_fresh_start);
    std::string notice;
    absl::Status chosen = ChooseRunFolder(
        &request, /*on_this_machine=*/with_private_daemons || IsLocalAddress(globals_.coordinator), &notice);
    if (!notice.empty()) SayUnprefixed(notice);
    RETURN_IF_ERROR(chosen);
    if (with_private_daemons) {
      RETURN_IF_ERROR(StartCluster(request));
      ASSIGN_OR_RETURN(connection_, Connection::Open({.address = cluster_->address()}, absl::Seconds(10)));
      AwaitHost(interrupts);
      RETURN_IF_ERROR(CheckGpus(loaded.spec));
    } else {
      // This wait may be long (--reconnect-for).
      interrupts.OnFirst([this] { EndBeforeSubmission(); });
      ASSIGN_OR_RETURN(connection_, Connection::Open(globals_.target(), options_.reconnect.connect_wait()));
      interrupts.OnFirst(nullptr);
    }
    if (interrupts.interrupted()) return absl::CancelledError(kInterruptedEarly);
    ASSIGN_OR_RETURN(const int exit_code, Follow(request, interrupts));
    StopCluster();
    return exit_code;
  }

  void StopCluster() {
    if (cluster_ == nullptr) return;
    // Nothing reads from an idle connection, so gRPC would not notice that the coordinator closes the connection, and
    // the coordinator would wait. This end is therefore closed first.
    connection_.reset();
    absl::Status stopped = cluster_->Stop();
    if (!stopped.ok()) Say(stopped.message());
  }

  // Without a coordinator the only host is the private one, whose name is fixed.
  static absl::Status CheckHosts(const v1::JobSpec& spec) {
    auto names_this_machine = [](const auto& hosts) {
      return std::find(hosts.begin(), hosts.end(), PrivateCluster::kHostName) != hosts.end();
    };
    const v1::Resources& resources = spec.resources();
    if ((resources.hosts().empty() || names_this_machine(resources.hosts())) &&
        !names_this_machine(resources.exclude_hosts())) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("resources.hosts and resources.exclude_hosts leave no host: without --coordinator the only host "
                     "is this machine, named '",
                     PrivateCluster::kHostName, "'"));
  }

  // No other host will attach, so a job that needs more GPUs than this machine has would wait forever.
  absl::Status CheckGpus(const v1::JobSpec& spec) {
    if (spec.resources().device() != v1::DEVICE_CUDA) return absl::OkStatus();
    ASSIGN_OR_RETURN(v1::ListHostsResponse hosts, ListHosts(*connection_));
    const uint32_t ranks = spec.resources().has_ranks() ? spec.resources().ranks() : 1;
    uint32_t gpus = 0;
    std::string note;
    for (const v1::HostStatus& host : hosts.hosts()) {
      gpus += host.gpus();
      note = host.gpu_note();
    }
    if (gpus >= ranks) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "resources.device is cuda and resources.ranks ", ranks, ", but this machine has ", Plural(gpus, "GPU"),
        note.empty() ? "" : absl::StrCat(" (", note, ")"), "; each rank needs one GPU: ",
        gpus > 0 ? absl::StrCat("set resources.ranks to ", gpus) : "install the NVIDIA driver",
        ", or set resources.device to cpu"));
  }

  // The private daemon is one host, so a command whose ranks need several hosts would wait forever.
  static absl::Status CheckRanksPerHost(const v1::JobSpec& spec) {
    const uint32_t per_host = spec.command().ranks_per_host();
    const uint32_t ranks = spec.resources().has_ranks() ? spec.resources().ranks() : 1;
    const uint32_t fewest = spec.command().has_min_ranks() ? spec.command().min_ranks() : ranks;
    if (per_host == 0 || fewest <= per_host) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("command.ranks_per_host is ", per_host, ", so that ", fewest, " ranks need ", fewest / per_host,
                     " hosts, but without --coordinator the only host is this machine: give --coordinator, or set "
                     "command.ranks_per_host to ",
                     fewest));
  }

  // This machine is the only host, so a command whose ranks need more CPUs than it has would wait forever.
  static absl::Status CheckCpus(const v1::JobSpec& spec) {
    const uint64_t ranks = spec.resources().has_ranks() ? spec.resources().ranks() : 1;
    const uint64_t fewest = spec.command().has_min_ranks() ? spec.command().min_ranks() : ranks;
    const uint64_t cores = agent::UsableCores();
    if (fewest * spec.command().cpus() <= cores) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("command.cpus is ", spec.command().cpus(), ", so that ", fewest,
                                                      fewest == 1 ? " rank needs " : " ranks need ",
                                                      fewest * spec.command().cpus(), " CPUs, but this machine has ",
                                                      cores, ": choose fewer ranks or CPUs, or give --coordinator"));
  }

  absl::Status StartCluster(const v1::SubmitRequest& request) {
    const v1::JobSpec& spec = request.spec();
    RETURN_IF_ERROR(CheckRanksPerHost(spec));
    RETURN_IF_ERROR(CheckCpus(spec));
    std::string folder;
    if (spec.has_command()) {
      ASSIGN_OR_RETURN(temporary_folder_, MakeTemporaryFolder());
      folder = temporary_folder_;
    } else {
      const std::string run_folder =
          spec.checkpoint().has_dir()
              ? spec.checkpoint().dir()
              : JoinPath(request.default_run_root(), absl::StrCat(spec.name(), "-", request.job_id()));
      absl::Status made = MakeFolders(run_folder);
      if (!made.ok()) return absl::Status(made.code(), absl::StrCat("checkpoint.dir cannot be used: ", made.message()));
      folder = JoinPath(run_folder, absl::StrCat(".trainyard/", request.job_id()));
    }
    auto cluster = PrivateCluster::Start({.folder = folder,
                                          .slots = spec.resources().has_ranks() ? spec.resources().ranks() : 1,
                                          .binary_folder = BinaryFolder()});
    RETURN_IF_ERROR(cluster.status());
    cluster_ = *std::move(cluster);
    killable_ = cluster_.get();
    return absl::OkStatus();
  }

  // The private daemon attaches within milliseconds. A job submitted before that would report that it waits for a host.
  // If the daemon does not attach, the job reports why.
  void AwaitHost(const Interrupts& interrupts) {
    const absl::Time deadline = absl::Now() + kHostWait;
    while (absl::Now() < deadline && !interrupts.interrupted() && !cluster_->DaemonEnded()) {
      auto info = GetServerInfo(*connection_);
      if (!info.ok() || info->slots() > 0) return;
      absl::SleepFor(absl::Milliseconds(5));
    }
  }

  absl::StatusOr<v1::SubmitResponse> Submit(const v1::SubmitRequest& request) {
    job_may_run_ = true;
    auto accepted = SubmitJob(*connection_, request);
    if (accepted.ok()) return accepted;
    job_may_run_ = IsUnanswered(accepted.status());
    if (!JobMayContinue()) return accepted.status();
    job_id_ = request.job_id();
    return SubmitError(
        accepted.status(), job_id_,
        absl::StrCat("`trainctl --coordinator ", globals_.coordinator, " watch ", job_id_, "` shows it"));
  }

  absl::StatusOr<int> Follow(const v1::SubmitRequest& request, Interrupts& interrupts) {
    ASSIGN_OR_RETURN(v1::SubmitResponse accepted, Submit(request));
    v1::Job job;
    job.set_job_id(accepted.job_id());
    *job.mutable_spec() = accepted.resolved();
    *job.mutable_decisions() = accepted.decisions();
    *job.mutable_warnings() = accepted.warnings();
    std::vector<std::string> new_warnings;
    for (const std::string& warning : accepted.warnings()) {
      if (printed_warnings_.count(warning) == 0) new_warnings.push_back(warning);
    }
    std::string logs = cluster_ != nullptr
                           ? absl::StrCat("in ", cluster_->ranks_folder())
                           : absl::StrCat("trainctl --coordinator ", globals_.coordinator, " logs ", job.job_id());
    job_id_ = job.job_id();
    JobSession session(*connection_, job,
                       {.json = options_.json,
                        .own_daemons = cluster_ != nullptr,
                        .logs_place = options_.output_folder.empty()
                                          ? logs
                                          : absl::StrCat("in ", JoinPath(options_.output_folder, job.job_id())),
                        .logs_are_temporary = !temporary_folder_.empty() && options_.output_folder.empty(),
                        // Private daemons and their job would end with this process, so it must wait for the job's end.
                        // With a coordinator it waits, too, so that both kinds of run behave alike.
                        .end_if_output_fails = false,
                        .make_progress = options_.make_progress,
                        .watch_hint = "trainctl still waits until the job ends; Ctrl-C cancels it. To watch it: " +
                                      WatchCommand(job.job_id()),
                        .retry = options_.reconnect.retry,
                        .on_cancelled = [this] { job_may_run_ = false; }});
    session.Start(new_warnings);
    if (cluster_ != nullptr) cluster_->WatchDaemons([&session](const std::string& death) { session.Abort(death); });
    interrupts.OnFirst([&session] { session.Cancel("interrupted"); });
    std::atomic<bool> terminal_closed = false;
    interrupts.OnHangup([&session, &terminal_closed] {
      terminal_closed = true;
      session.Abort("the terminal was closed");
    });
    std::unique_ptr<LogFollower> output;
    if (job.spec().has_command()) {
      output = std::make_unique<LogFollower>(*connection_, job.job_id(), options_.reconnect.retry,
                                             [&session](const v1::LogLine& line) { session.Output(line); });
    }
    auto ended = session.Follow();
    if (ended.ok()) job_may_run_ = false;
    if (output != nullptr && ended.ok() && !output->AwaitEnd(kOutputWait)) {
      keep_temporary_folder_ = true;
      session.Message(absl::StrCat("not all output of the ranks was shown; the complete output: ", logs));
    }
    output.reset();
    // From here on there is nothing to cancel on Ctrl-C and nothing to detach on SIGHUP.
    interrupts.OnFirst(nullptr);
    interrupts.OnHangup(nullptr);
    if (!ended.ok() && terminal_closed) return LeaveJobRunning(job, session);
    if (!ended.ok()) {
      if (cluster_ != nullptr) cluster_->Stop().IgnoreError();
      return ended.status();
    }
    const int exit_code = session.Finish(*ended);
    if (cluster_ != nullptr) cluster_->StopWatching();  // before `session` is destroyed
    return exit_code;
  }

  std::string WatchCommand(const std::string& job_id) const {
    const std::string address = cluster_ != nullptr ? cluster_->address() : globals_.coordinator;
    return absl::StrCat(ShellWord(JoinPath(BinaryFolder(), "trainctl")),
                        globals_.allow_plaintext ? " --allow-plaintext" : "",
                        globals_.token_file.empty() ? "" : absl::StrCat(" --token-file ", ShellWord(TokenFile())),
                        " --coordinator ", ShellWord(address), " watch ", job_id);
  }

  // After the terminal was closed: detaches the private daemons, so that the job continues, and stores in the run
  // folder the command that watches the job.
  absl::StatusOr<int> LeaveJobRunning(const v1::Job& job, JobSession& session) {
    const std::string command = WatchCommand(job.job_id());
    std::string text = absl::StrCat(command, "\n");
    if (cluster_ != nullptr) {
      absl::StrAppend(&text,
                      "# The private daemons exit soon after the job has ended. If they do not, stop them with: kill ",
                      cluster_->coordinator_pid(), " ", cluster_->worker_pid(), "\n");
      keep_temporary_folder_ = true;
      RETURN_IF_ERROR(cluster_->Detach());
    }
    const std::string& folder = temporary_folder_.empty() ? job.spec().checkpoint().dir() : temporary_folder_;
    absl::Status written = folder.empty() ? absl::FailedPreconditionError("the job has no run folder")
                                          : WriteFileAtomically(JoinPath(folder, kWatchFile), text);
    const std::string notice = absl::StrCat(
        "the terminal was closed; job ", job.job_id(), " continues. To watch it: ", command,
        written.ok() ? absl::StrCat(" (also in ", JoinPath(folder, kWatchFile), ")")
                     : absl::StrCat(" (this command could not be stored in the run folder: ", written.message(), ")"));
    session.Message(notice);
    if (options_.json) {
      PrintJson(NoticeLine("info", notice));
      PrintJson(DoneWithoutJobLine(job.job_id(), notice, kClientDone));
    }
    return kClientDone;
  }

  // The folder has a copy of the user's environment, so it remains only while a user needs the output in it.
  void RemoveTemporaryFolder() {
    std::error_code error;
    if (!temporary_folder_.empty() && !keep_temporary_folder_) std::filesystem::remove_all(temporary_folder_, error);
  }

  std::string TokenFile() const { return AbsolutePath(globals_.token_file, WorkingDirectory()); }

  // Whether the job may continue after this process has ended. Thread-safe.
  bool JobMayContinue() const { return killable_.load() == nullptr && job_may_run_.load(); }

  void PrintFailure(const absl::Status& status, int code) const {
    if (options_.json) {
      PrintJson(ErrorLine(status, code));
      PrintJson(DoneWithoutJobLine(job_id_, status.message(), code));
    }
    Fail(status);
  }

  // Ends this process, whose main thread waits for the coordinator. There is no job yet that could be cancelled. Runs
  // on the thread of `Interrupts`, or on the main thread if the interrupt has arrived before.
  void EndBeforeSubmission() const {
    PrintFailure(absl::CancelledError(kInterruptedEarly), kClientCancelled);
    if (options_.json) FlushOutput();
    _exit(kClientCancelled);
  }

  // Runs on the thread of `Interrupts`, whatever the main thread is doing.
  void KillImmediately() {
    PrivateCluster* cluster = killable_.load();
    if (cluster != nullptr) cluster->CloseLifeline();
    const bool may_continue = JobMayContinue();
    std::string text = "\ntrainctl: ended without waiting\n";
    if (cluster != nullptr) {
      text = "\ntrainctl: stopped immediately; the processes that it started are being killed\n";
    } else if (may_continue) {
      text = absl::StrCat(
          "\ntrainctl: ended, but job ", new_job_id_,
          " may continue, because the coordinator has not confirmed its cancellation. To cancel it: trainctl "
          "--coordinator ",
          globals_.coordinator, " cancel ", new_job_id_, "\n");
    }
    [[maybe_unused]] ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    _exit(may_continue ? kClientUnreachable : kClientCancelled);
  }

  const Globals globals_;
  const RunJobOptions options_;
  const std::string new_job_id_ = RandomId(8);
  std::set<std::string> printed_warnings_;  // warnings that were printed with their place in the file
  std::string job_id_;                      // empty: not submitted
  std::string temporary_folder_;            // of the private daemons of a command; empty: not made
  bool keep_temporary_folder_ = false;      // the job continues, or not all of its output was shown
  std::unique_ptr<PrivateCluster> cluster_;
  std::atomic<PrivateCluster*> killable_{nullptr};  // cluster_, for KillImmediately on another thread
  // From before Submit until Submit is refused, a cancellation is recorded, or the job has ended.
  std::atomic<bool> job_may_run_ = false;
  std::unique_ptr<Connection> connection_;
};

}  // namespace

int RunJob(const Globals& globals, const RunJobOptions& options) { return JobRunner(globals, options).Run(); }

}  // namespace trainyard::client
