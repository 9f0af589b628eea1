// trainctl metrics: the steps and evaluations of a run or job, for spreadsheets, scripts, TensorBoard and people.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/find_job.h"
#include "client/job_calls.h"
#include "client/metrics_export.h"
#include "client/metrics_source.h"
#include "client/output.h"
#include "client/run_folder.h"
#include "client/terminal.h"
#include "client/text.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

namespace fs = std::filesystem;

constexpr char kMetricsFile[] = "metrics.jsonl";
constexpr uint64_t kFenceBytes = 4096;

struct MetricsOptions {
  std::string target;
  bool csv = false, json = false, plot = false;
  std::string tensorboard;
};

absl::StatusOr<std::unique_ptr<MetricsSource>> OpenRun(const std::string& path) {
  const fs::path place(AbsolutePath(path, WorkingDirectory()));
  std::error_code error;
  if (!fs::is_directory(place, error)) {
    return OpenMetricsFile(place.string(), place.has_parent_path() ? place.parent_path().filename().string() : "run");
  }
  absl::StatusOr<std::unique_ptr<MetricsSource>> source =
      OpenMetricsFile((place / kMetricsFile).string(), place.filename().string());
  if (!absl::IsNotFound(source.status())) return source;
  return absl::NotFoundError(
      absl::StrCat(path, " has no ", kMetricsFile, ": it is not the run folder of a job that has made a step"));
}

// The id of the job that used the folder at this path on this machine last; empty: unknown. The trainer writes this id
// to the file .fence. The requested job, whose spec names the path, may be another job: it may have run on another
// machine, or a later job may have resumed in the folder.
std::string OwnerOf(const std::string& folder) {
  if (folder.empty()) return "";
  const absl::StatusOr<std::string> fence = ReadRegularFile(JoinPath(folder, ".fence"), kFenceBytes);
  if (!fence.ok()) return "";
  const nlohmann::json json = nlohmann::json::parse(*fence, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json job = json.is_object() ? json.value("job", nlohmann::json()) : nlohmann::json();
  return job.is_string() ? job.get<std::string>() : "";
}

absl::StatusOr<std::unique_ptr<MetricsSource>> OpenJob(const Globals& globals, const std::string& name) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  ASSIGN_OR_RETURN(const std::string id, FindJob(*connection, name));
  ASSIGN_OR_RETURN(const v1::Job job, GetJob(*connection, id));
  const std::string& folder = job.spec().checkpoint().dir();
  const std::string owner = OwnerOf(folder);
  if (owner == id && FileExists(JoinPath(folder, kMetricsFile))) return OpenRun(folder);
  return ReadReportsOfJob(*connection, job, owner == id ? "" : owner);
}

absl::StatusOr<std::unique_ptr<MetricsSource>> OpenSource(const Globals& globals, const std::string& target) {
  if (target.empty()) {
    const std::string root = DefaultRunRoot(WorkingDirectory());
    const std::string newest = NewestRun(root, "", /*needs_checkpoint=*/false);
    if (!newest.empty()) return OpenRun(newest);
    return absl::NotFoundError(absl::StrCat("there is no run in ", root, "; name a run folder or a job"));
  }
  if (!MayBeJob(target)) return OpenRun(target);
  if (!globals.coordinator.empty()) return OpenJob(globals, target);
  // A run of the default folder, by its name or by the id of its job.
  const std::string root = DefaultRunRoot(WorkingDirectory());
  if (const std::string run = JoinPath(root, target); FileExists(run)) return OpenRun(run);
  if (const std::string run = RunOfJob(root, target); !run.empty()) return OpenRun(run);
  return absl::NotFoundError(absl::StrCat("there is no run folder ", Printable(target, 500),
                                          ", here or in ./trainyard-runs; for a job of a cluster, give --coordinator"));
}

absl::Status WriteTensorBoard(MetricsSource& source, const std::string& folder) {
  ASSIGN_OR_RETURN(const EventFile file, WriteEventFile(source, folder));
  if (source.totals().steps + source.totals().evals == 0) return absl::OkStatus();
  if (source.computes_times()) {
    SayUnprefixed("metrics.jsonl has no times: event times are computed from its creation time and the step durations");
  }
  Print(absl::StrCat("wrote ", file.path, "\nShow it: tensorboard --logdir ", ShellWord(folder), "\n"));
  if (file.was_replaced) {
    SayUnprefixed("the file of an earlier export was replaced; restart TensorBoard if it still shows that file");
  }
  if (file.has_others) {
    SayUnprefixed("the folder has other event files, which TensorBoard shows as parts of the same run");
  }
  return absl::OkStatus();
}

absl::Status Write(MetricsSource& source, const MetricsOptions& options) {
  if (options.csv) return WriteCsv(source);
  if (options.json) return WriteJsonLines(source);
  if (!options.tensorboard.empty()) return WriteTensorBoard(source, options.tensorboard);
  ASSIGN_OR_RETURN(const std::string plot, PlotText(source, TraitsOf(stdout)));
  if (source.totals().steps + source.totals().evals > 0) Print(plot);
  return OutputStatus();
}

absl::Status Metrics(const Globals& globals, const MetricsOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MetricsSource> source, OpenSource(globals, options.target));
  RETURN_IF_ERROR(Write(*source, options));
  if (source->totals().steps + source->totals().evals == 0) {
    return absl::NotFoundError(absl::StrCat("there are no steps and no evaluations in ", source->place(), " yet"));
  }
  for (const std::string& note : source->Notes()) {
    options.json ? PrintJson(NoticeLine("info", note)) : SayUnprefixed(note);
  }
  return source->Completeness();
}

}  // namespace

void AddMetrics(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<MetricsOptions>();
  CLI::App* verb = app.add_subcommand("metrics", "Print or export the losses and other metrics of a run");
  verb->add_option("run", options->target,
                   "Run folder, its metrics.jsonl, or a job: of this coordinator, or without --coordinator one whose "
                   "folder is in ./trainyard-runs; default: the newest run there");
  CLI::Option* plot = verb->add_flag("--plot", options->plot, "Draw the loss; the default");
  CLI::Option* csv = verb->add_flag("--csv", options->csv, "A header, and one row per step and evaluation");
  CLI::Option* tensorboard = verb->add_option("--tensorboard", options->tensorboard,
                                              "Write an event file of TensorBoard into DIR/<name of the run>")
                                 ->type_name("DIR");
  AddJson(*verb, &options->json, "One JSON object per step and evaluation, with the keys of metrics.jsonl");
  CLI::Option* json = verb->get_option("--json");
  plot->excludes(csv)->excludes(tensorboard)->excludes(json);
  csv->excludes(tensorboard)->excludes(json);
  tensorboard->excludes(json);
  verb->footer(
      "The run folder has all steps. A job whose folder is not on this machine is read from the coordinator, which\n"
      "keeps the newest 65536 reports in memory; messages on standard error say what is missing (with --json: lines\n"
      "with \"event\":\"notice\"). Of steps that a restart repeated, the later generation counts. Losses that are\n"
      "not finite are nan in CSV and null in JSON. Event files of a run folder have times that are computed from the\n"
      "durations of steps.\n\n"
      "Examples:\n"
      "  trainctl metrics\n"
      "  trainctl metrics trainyard-runs/stdlib-gpt-k3x7q2ab --csv > losses.csv\n"
      "  trainctl --coordinator 127.0.0.1:7070 metrics k3x7q2ab --tensorboard runs");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] { return ReportStatus(Metrics(globals, *options), options->json); };
  });
}

}  // namespace trainyard::client
