// trainctl run: trains a job and shows it until it ends. Without a coordinator it starts private daemons for the
// duration of the job; with one it submits and watches.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/interrupts.h"
#include "client/job_calls.h"
#include "client/job_input.h"
#include "client/job_session.h"
#include "client/output.h"
#include "client/private_cluster.h"
#include "client/run_folder.h"
#include "client/text.h"
#include "common/files.h"
#include "common/ids.h"
#include "common/network.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct RunOptions {
  JobOptions job;
  bool resume = false;
  bool allow_fresh_start = false;
  bool json = false;
  ReconnectOptions reconnect;
};

// If a daemon needs longer than this to attach, the job reports the problem.
constexpr absl::Duration kHostWait = absl::Seconds(5);

class RunCommand {
 public:
  RunCommand(const Globals& globals, const RunOptions& options) : globals_(globals), options_(options) {}

  int Run() {
    BlockSignals();
    Interrupts interrupts([this] { KillImmediately(); });
    auto exit_code = Train(interrupts);
    if (exit_code.ok()) return *exit_code;
    if (cluster_ != nullptr) {
      absl::Status stopped = cluster_->Stop();
      if (!stopped.ok()) Fail(stopped);
    }
    int code = interrupts.interrupted() ? kClientCancelled : ExitCodeOf(exit_code.status());
    if (options_.json) {
      PrintJson(ErrorLine(exit_code.status().message(), code));
      PrintJson(DoneWithoutJobLine(job_id_, exit_code.status().message(), code));
    }
    Fail(exit_code.status());
    return code;
  }

 private:
  absl::StatusOr<int> Train(Interrupts& interrupts) {
    const bool with_private_daemons = globals_.coordinator.empty();
    const JobInput input{.file = options_.job.file, .overrides = options_.job.overrides};
    ASSIGN_OR_RETURN(LoadedJob loaded, LoadJob(input, with_private_daemons));
    RETURN_IF_ERROR(ProblemsStatus(input, loaded.problems));
    if (with_private_daemons) {
      RETURN_IF_ERROR(CheckHosts(loaded.spec));
    }
    for (const Problem& warning : loaded.problems.Warnings()) {
      SayUnprefixed(warning.ToString());
      printed_warnings_.insert(warning.Message());
    }
    v1::SubmitRequest request;
    *request.mutable_spec() = loaded.spec;
    request.set_job_id(RandomId(8));
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
      ASSIGN_OR_RETURN(connection_, Connection::Open(globals_.target(), options_.reconnect.connect_wait()));
    }
    if (interrupts.interrupted()) return absl::CancelledError("interrupted before the job was submitted");
    return Follow(request, interrupts);
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
    return absl::FailedPreconditionError(
        absl::StrCat("resources.device is cuda and resources.ranks ", ranks, ", but this machine has ", gpus, " GPUs",
                     note.empty() ? "" : absl::StrCat(" (", note, ")"), "; each rank needs one GPU: ",
                     gpus > 0 ? absl::StrCat("set resources.ranks to ", gpus) : "install the NVIDIA driver",
                     ", or set resources.device to cpu"));
  }

  absl::Status StartCluster(const v1::SubmitRequest& request) {
    const v1::JobSpec& spec = request.spec();
    std::string folder = spec.checkpoint().has_dir()
                             ? spec.checkpoint().dir()
                             : JoinPath(request.default_run_root(), absl::StrCat(spec.name(), "-", request.job_id()));
    absl::Status made = MakeFolders(folder);
    if (!made.ok()) return absl::Status(made.code(), absl::StrCat("checkpoint.dir cannot be used: ", made.message()));
    auto cluster = PrivateCluster::Start({.folder = JoinPath(folder, absl::StrCat(".trainyard/", request.job_id())),
                                          .slots = spec.resources().has_ranks() ? spec.resources().ranks() : 1,
                                          .binary_folder = BinaryFolder()});
    RETURN_IF_ERROR(cluster.status());
    cluster_ = *std::move(cluster);
    killable_ = cluster_.get();
    return absl::OkStatus();
  }

  // The private daemon attaches within milliseconds. A job submitted before that would report that it waits for a host.
  // The job reports any other problem.
  void AwaitHost(const Interrupts& interrupts) {
    const absl::Time deadline = absl::Now() + kHostWait;
    while (absl::Now() < deadline && !interrupts.interrupted() && !cluster_->DaemonEnded()) {
      auto info = GetServerInfo(*connection_);
      if (!info.ok() || info->slots() > 0) return;
      absl::SleepFor(absl::Milliseconds(5));
    }
  }

  absl::StatusOr<int> Follow(const v1::SubmitRequest& request, Interrupts& interrupts) {
    ASSIGN_OR_RETURN(v1::SubmitResponse accepted, SubmitJob(*connection_, request));
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
                        .logs_place = logs,
                        // The private daemons and the job end with this process, so it must wait for the job's end.
                        .end_if_output_fails = false,
                        .watch_hint = "trainctl run still waits for its end; Ctrl-C cancels it. To watch it: " +
                                      WatchCommand(job.job_id()),
                        .retry = options_.reconnect.retry});
    session.Start(new_warnings);
    if (cluster_ != nullptr) cluster_->WatchDaemons([&session](const std::string& death) { session.Abort(death); });
    interrupts.OnFirst([&session] { session.Cancel("interrupted"); });
    std::atomic<bool> terminal_closed = false;
    interrupts.OnHangup([&session, &terminal_closed] {
      terminal_closed = true;
      session.Abort("the terminal was closed");
    });
    auto ended = session.Follow();
    // From here on there is nothing to cancel on Ctrl-C and nothing to detach on SIGHUP.
    interrupts.OnFirst(nullptr);
    interrupts.OnHangup(nullptr);
    if (!ended.ok() && terminal_closed) return LeaveJobRunning(job, session);
    if (!ended.ok()) {
      if (cluster_ != nullptr) cluster_->Stop().IgnoreError();
      return ended.status();
    }
    int exit_code = session.Finish(*ended);
    if (cluster_ != nullptr) {
      absl::Status stopped = cluster_->Stop();
      if (!stopped.ok()) Say(stopped.message());
    }
    return exit_code;
  }

  std::string WatchCommand(const std::string& job_id) const {
    const std::string address = cluster_ != nullptr ? cluster_->address() : globals_.coordinator;
    return absl::StrCat(ShellWord(JoinPath(BinaryFolder(), "trainctl")),
                        globals_.allow_plaintext ? " --allow-plaintext" : "",
                        globals_.token_file.empty() ? "" : absl::StrCat(" --token-file ", ShellWord(TokenFile())),
                        " --coordinator ", ShellWord(address), " watch ", job_id);
  }

  // After the terminal was closed: detaches the private daemons, so that the job continues, and stores the command that
  // watches it in the run folder.
  absl::StatusOr<int> LeaveJobRunning(const v1::Job& job, JobSession& session) {
    const std::string command = WatchCommand(job.job_id());
    std::string text = absl::StrCat(command, "\n");
    if (cluster_ != nullptr) {
      absl::StrAppend(&text,
                      "# The private daemons of this run continue. Once the job has ended, stop them with: kill ",
                      cluster_->coordinator_pid(), " ", cluster_->worker_pid(), "\n");
      RETURN_IF_ERROR(cluster_->Detach());
    }
    const std::string& folder = job.spec().checkpoint().dir();
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

  std::string TokenFile() const { return AbsolutePath(globals_.token_file, WorkingDirectory()); }

  // Runs on the thread of `Interrupts`, whatever the main thread is doing.
  void KillImmediately() {
    PrivateCluster* cluster = killable_.load();
    if (cluster != nullptr) cluster->CloseLifeline();
    constexpr char kText[] = "\ntrainctl: stopped immediately; the processes that it started are being killed\n";
    [[maybe_unused]] ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
    _exit(kClientCancelled);
  }

  const Globals globals_;
  const RunOptions options_;
  std::set<std::string> printed_warnings_;  // warnings that were printed with their place in the file
  std::string job_id_;                      // empty: not submitted yet
  std::unique_ptr<PrivateCluster> cluster_;
  std::atomic<PrivateCluster*> killable_{nullptr};  // cluster_, for KillImmediately on another thread
  std::unique_ptr<Connection> connection_;
};

}  // namespace

void AddRun(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* verb = app.add_subcommand("run", "Train a job and show it until it ends");
  AddJobOptions(*verb, &options->job);
  AddAllowDataChange(*verb, &options->job);
  verb->add_flag("--resume", options->resume,
                 "Resume from the newest checkpoint in checkpoint.dir, or in the newest ./trainyard-runs/<name>-*");
  AddAllowFreshStart(*verb, &options->allow_fresh_start);
  AddJson(*verb, &options->json, "Print one JSON object per line on standard output");
  AddReconnectFor(*verb, &options->reconnect);
  verb->footer(
      "Without --coordinator, it starts a private coordinator and worker daemon for this job, with one slot per\n"
      "rank, and stops them when the job ends. Ctrl-C cancels the job and waits for its end; a second Ctrl-C\n"
      "kills it immediately. If the terminal is closed (SIGHUP), the job and its daemons continue; the file\n"
      "`watch` in the run folder contains the command that shows the job again.\n\n"
      "Examples:\n"
      "  trainctl run configs/jobs/stdlib.yaml\n"
      "  trainctl run configs/jobs/lab-tiny.yaml --set train.steps=50 --set resources.ranks=4\n"
      "  trainctl run configs/jobs/stdlib.yaml --resume --json > events.jsonl");
  verb->callback(
      [&globals, options, chosen] { *chosen = [&globals, options] { return RunCommand(globals, *options).Run(); }; });
}

}  // namespace trainyard::client
