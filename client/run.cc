// trainctl run: trains a job and shows it to its end. With no coordinator configured it starts its own daemons for the
// time of the job; with one, it is submit and watch in one.
#include <unistd.h>

#include <atomic>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/interrupts.h"
#include "client/job_calls.h"
#include "client/job_input.h"
#include "client/job_session.h"
#include "client/private_cluster.h"
#include "client/run_folder.h"
#include "common/files.h"
#include "common/ids.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct RunOptions {
  JobOptions job;
  bool resume = false;
  bool json = false;
};

class RunCommand {
 public:
  RunCommand(const Globals& globals, const RunOptions& options) : globals_(globals), options_(options) {}

  int Run() {
    BlockSignals();
    Interrupts interrupts([this] { KillAtOnce(); });
    auto exit_code = Train(interrupts);
    if (exit_code.ok()) return *exit_code;
    if (cluster_ != nullptr) {
      absl::Status stopped = cluster_->Stop();
      if (!stopped.ok()) Fail(stopped);
    }
    int code = interrupts.interrupted() ? kExitCancelled : ExitCodeOf(exit_code.status());
    if (options_.json) puts(ErrorLine(exit_code.status().message(), code).c_str());
    Fail(exit_code.status());
    return code;
  }

 private:
  absl::StatusOr<int> Train(Interrupts& interrupts) {
    const bool embedded = globals_.coordinator.empty();
    const JobInput input{.file = options_.job.file, .overrides = options_.job.overrides};
    ASSIGN_OR_RETURN(LoadedJob loaded, LoadJob(input, embedded));
    RETURN_IF_ERROR(ProblemsStatus(input, loaded.problems));
    for (const Problem& warning : loaded.problems.Warnings()) {
      fprintf(stderr, "%s\n", warning.ToString().c_str());
      told_.insert(warning.Message());
    }
    v1::SubmitRequest request;
    *request.mutable_spec() = loaded.spec;
    request.set_job_id(RandomId(8));
    request.set_default_run_root(DefaultRunRoot(WorkingDirectory()));
    request.set_resume(options_.resume);
    RETURN_IF_ERROR(ChooseFolder(&request));
    if (embedded) {
      RETURN_IF_ERROR(StartCluster(request));
      ASSIGN_OR_RETURN(connection_, Connection::Open({.address = cluster_->address()}, absl::Seconds(10)));
    } else {
      ASSIGN_OR_RETURN(connection_, Connection::Open(globals_.target(), kConnectWait));
    }
    if (interrupts.interrupted()) return absl::CancelledError("interrupted before the job was submitted");
    return Follow(request, interrupts);
  }

  // The folder an old run goes on in, or that a new one may have.
  absl::Status ChooseFolder(v1::SubmitRequest* request) {
    v1::JobSpec& spec = *request->mutable_spec();
    if (!spec.checkpoint().has_dir() && options_.resume) {
      std::string newest = NewestRun(request->default_run_root(), spec.name());
      if (newest.empty()) {
        fprintf(stderr, "nothing to resume: no %s/%s-* holds a checkpoint or metrics; starting from the beginning\n",
                request->default_run_root().c_str(), spec.name().c_str());
        return absl::OkStatus();
      }
      fprintf(stderr, "resuming the run in %s\n", newest.c_str());
      spec.mutable_checkpoint()->set_dir(newest);
    }
    if (!spec.checkpoint().has_dir()) return absl::OkStatus();
    return CheckRunFolder(spec.checkpoint().dir(), options_.resume);
  }

  absl::Status StartCluster(const v1::SubmitRequest& request) {
    const v1::JobSpec& spec = request.spec();
    std::string folder = spec.checkpoint().has_dir()
                             ? spec.checkpoint().dir()
                             : JoinPath(request.default_run_root(), absl::StrCat(spec.name(), "-", request.job_id()));
    auto cluster = PrivateCluster::Start({.folder = JoinPath(folder, absl::StrCat(".trainyard/", request.job_id())),
                                          .slots = spec.resources().has_ranks() ? spec.resources().ranks() : 1,
                                          .binary_folder = BinaryFolder()});
    RETURN_IF_ERROR(cluster.status());
    cluster_ = *std::move(cluster);
    killable_ = cluster_.get();
    return absl::OkStatus();
  }

  absl::StatusOr<int> Follow(const v1::SubmitRequest& request, Interrupts& interrupts) {
    ASSIGN_OR_RETURN(v1::SubmitResponse accepted, SubmitJob(*connection_, request));
    v1::Job job;
    job.set_job_id(accepted.job_id());
    *job.mutable_spec() = accepted.resolved();
    *job.mutable_decisions() = accepted.decisions();
    *job.mutable_warnings() = accepted.warnings();
    std::vector<std::string> untold;
    for (const std::string& warning : accepted.warnings()) {
      if (told_.count(warning) == 0) untold.push_back(warning);
    }
    std::string logs = cluster_ != nullptr
                           ? absl::StrCat("in ", cluster_->ranks_folder())
                           : absl::StrCat("trainctl --coordinator ", globals_.coordinator, " logs ", job.job_id());
    JobSession session(*connection_, job,
                       {.json = options_.json, .own_daemons = cluster_ != nullptr, .logs_place = logs});
    session.Start(untold);
    if (cluster_ != nullptr) cluster_->WatchDaemons([&session](const std::string& death) { session.Abort(death); });
    interrupts.OnFirst([&session] { session.Cancel("interrupted"); });
    auto ended = session.Follow();
    // From here on a Ctrl-C has nothing left to cancel.
    interrupts.OnFirst(nullptr);
    if (!ended.ok()) {
      if (cluster_ != nullptr) cluster_->Stop().IgnoreError();
      return ended.status();
    }
    int exit_code = session.Finish(*ended);
    if (cluster_ != nullptr) {
      absl::Status stopped = cluster_->Stop();
      if (!stopped.ok()) fprintf(stderr, "trainctl: %s\n", std::string(stopped.message()).c_str());
    }
    return exit_code;
  }

  // On the thread of `Interrupts`, while the main one is anywhere.
  void KillAtOnce() {
    PrivateCluster* cluster = killable_.load();
    if (cluster != nullptr) cluster->Abandon();
    constexpr char kText[] = "\ntrainctl: ended at once; what was running is being killed\n";
    [[maybe_unused]] ssize_t written = write(STDERR_FILENO, kText, sizeof kText - 1);
    _exit(kExitCancelled);
  }

  const Globals globals_;
  const RunOptions options_;
  std::set<std::string> told_;  // warnings that were printed with their place
  std::unique_ptr<PrivateCluster> cluster_;
  std::atomic<PrivateCluster*> killable_{nullptr};
  std::unique_ptr<Connection> connection_;
};

}  // namespace

void AddRun(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* verb = app.add_subcommand("run", "Train a job and show it to its end");
  AddJobOptions(*verb, &options->job);
  verb->add_flag("--resume", options->resume,
                 "Go on from the newest checkpoint in checkpoint.dir, or in the newest ./trainyard-runs/<name>-*");
  verb->add_flag("--json", options->json, "One JSON object a line on standard output");
  verb->footer(
      "Without a coordinator it starts one and a worker daemon for the time of the job, with as many slots as the job "
      "has\n"
      "ranks, and stops them at its end. Ctrl-C cancels the job and waits for its end; twice ends it at once.\n\n"
      "Examples:\n"
      "  trainctl run configs/jobs/stdlib.yaml\n"
      "  trainctl run configs/jobs/lab-tiny.yaml --set train.steps=50 --set resources.ranks=4\n"
      "  trainctl run configs/jobs/stdlib.yaml --resume --json > events.jsonl");
  verb->callback(
      [&globals, options, chosen] { *chosen = [&globals, options] { return RunCommand(globals, *options).Run(); }; });
}

}  // namespace trainyard::client
