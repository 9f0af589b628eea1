// trainctl schedule: draws and compares the schedules of a pipeline. It needs no coordinator.
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/commands.h"
#include "client/output.h"
#include "client/schedule_costs.h"
#include "client/schedule_view.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "plan/schedule_drawing.h"

namespace trainyard::client {
namespace {

constexpr size_t kMaxMicroBatchCounts = 32;  // of one comparison
constexpr int kDefaultMicroBatches = 8;
constexpr int kDefaultChunks = 2;  // of the schedule interleaved
constexpr char kAllSchedules[] = "all";

struct ScheduleOptions {
  int stages = 4;
  std::vector<int> micro_batches;
  std::string schedule = "1f1b";
  std::optional<int> chunks_per_rank;
  ScheduleDurations durations;
  std::vector<std::string> measured;
  std::optional<int> in_flight;
  std::string svg;
  bool list = false;
  bool json = false;
};

// Collects messages of errors, each line once.
class Refusals {
 public:
  void Add(absl::string_view message) {
    for (const absl::string_view line : absl::StrSplit(message, '\n')) {
      if (std::find(messages_.begin(), messages_.end(), line) == messages_.end()) messages_.emplace_back(line);
    }
  }
  absl::Status ToStatus() const {
    return messages_.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(messages_, "\n"));
  }

 private:
  std::vector<std::string> messages_;
};

bool IsFoundBySimulation(ScheduleKind kind) {
  return kind == ScheduleKind::kZeroBubble || kind == ScheduleKind::kSimulated;
}

ScheduleResult Make(const ScheduleOptions& options, ScheduleKind kind, int micro_batches) {
  // In a comparison only interleaved has several chunks.
  const bool interleaved = kind == ScheduleKind::kInterleaved, all = options.schedule == kAllSchedules;
  const int chunks = interleaved ? options.chunks_per_rank.value_or(kDefaultChunks)
                     : all       ? 1
                                 : options.chunks_per_rank.value_or(1);
  ScheduleResult result{.kind = kind,
                        .shape = {.stages = options.stages, .chunks_per_rank = chunks, .micro_batches = micro_batches},
                        .status = absl::OkStatus()};
  const auto step = CostsOfStep(options.durations, result.shape);
  const SimulatedOptions simulated{.costs = step.ok() ? step->costs : PipelineCosts(),
                                   .in_flight = options.in_flight.value_or(0)};
  auto schedule = MakeSchedule(kind, result.shape, simulated);
  result.status = schedule.status();
  result.status.Update(step.status());
  if (!step.ok() && !schedule.ok()) {
    result.status =
        absl::InvalidArgumentError(absl::StrCat(schedule.status().message(), "\n", step.status().message()));
  }
  if (!result.status.ok()) return result;
  result.schedule = *std::move(schedule);
  auto simulation = Simulate(result.schedule, simulated.costs);
  result.status = simulation.status();
  if (!simulation.ok()) return result;
  result.simulation = *std::move(simulation);
  result.samples = step->samples;
  if (options.durations.of_one_step()) result.overhead = step->overhead / (result.simulation.total * options.stages);
  return result;
}

// The kinds that the options name. Problems that MakeSchedule cannot see are added to `refusals`.
std::vector<ScheduleKind> CheckOptions(const ScheduleOptions& options, Refusals* refusals) {
  std::vector<ScheduleKind> kinds;
  if (options.schedule == kAllSchedules) {
    kinds.assign(AllScheduleKinds().begin(), AllScheduleKinds().end());
  } else if (const auto kind = ScheduleKindOf(options.schedule); kind.ok()) {
    kinds.push_back(*kind);
    if (options.in_flight.has_value() && !IsFoundBySimulation(*kind)) {
      refusals->Add(
          absl::StrCat("--in-flight limits the schedules zero_bubble and simulated; --schedule is ", options.schedule));
    }
  } else {
    refusals->Add(absl::StrCat("--schedule: ", kind.status().message(), " (or `all` to compare them)"));
  }
  if (options.in_flight.has_value() && *options.in_flight < 1) {
    refusals->Add(absl::StrCat("--in-flight is ", *options.in_flight, "; it must be 1 or more"));
  }
  for (const std::string& problem : DurationProblems(options.durations)) refusals->Add(problem);
  if (options.micro_batches.size() > kMaxMicroBatchCounts) {
    refusals->Add(absl::StrCat("--micro-batches has ", options.micro_batches.size(), " numbers; it may have at most ",
                               kMaxMicroBatchCounts));
  }
  if (!options.svg.empty() && (kinds.size() > 1 || options.micro_batches.size() > 1)) {
    refusals->Add("--svg draws one schedule; name one --schedule and one number of --micro-batches");
  }
  // Replacing a folder is impossible, and users do not expect that a device or a link is replaced.
  if (struct stat st; lstat(options.svg.c_str(), &st) == 0 && !S_ISREG(st.st_mode)) {
    refusals->Add(absl::StrCat("--svg: ", options.svg,
                               " exists and is not a regular file; name a new file, or a file to replace"));
  }
  return kinds;
}

absl::Status WriteSvg(const std::string& path, const ScheduleResult& result) {
  ASSIGN_OR_RETURN(const std::string svg, ScheduleSvg(result.schedule, result.simulation, ScheduleTitle(result)));
  RETURN_IF_ERROR(WriteFileAtomically(path, svg)) << "--svg must name a file in an existing folder";
  return absl::OkStatus();
}

void PrintLists(const std::vector<ScheduleResult>& results) {
  for (const ScheduleResult& result : results) {
    if (!result.status.ok()) continue;
    Print(absl::StrCat("\n", ScheduleTitle(result), "\n", ScheduleLists(result.schedule)));
  }
}

// Parses --measured, and chooses the numbers of micro-batches if --micro-batches is not given.
ScheduleOptions Completed(ScheduleOptions options, Refusals* refusals) {
  for (const std::string& text : options.measured) {
    const auto measured = ParseMeasured(text);
    if (measured.ok()) {
      options.durations.measured.push_back(*measured);
    } else {
      refusals->Add(measured.status().message());
    }
  }
  if (!options.micro_batches.empty()) return options;
  for (const MeasuredStage& each : options.durations.measured) options.micro_batches.push_back(each.micro_batches);
  if (options.micro_batches.empty()) options.micro_batches = {kDefaultMicroBatches};
  return options;
}

absl::Status Schedule(const ScheduleOptions& given) {
  Refusals refusals;
  ScheduleOptions options = Completed(given, &refusals);
  std::vector<ScheduleKind> kinds = CheckOptions(options, &refusals);
  const bool checked = refusals.ToStatus().ok();
  // After an error in the options, the shapes are still checked. Durations of one step are replaced by the defaults, so
  // that they cause no further problems.
  if (!checked && options.durations.of_one_step()) options.durations = {};
  if (kinds.empty()) kinds.push_back(ScheduleKind::kOneForwardOneBackward);  // to check the other options
  std::vector<ScheduleResult> results;
  bool any = false;
  for (size_t i = 0; i < std::min(options.micro_batches.size(), kMaxMicroBatchCounts); ++i) {
    for (const ScheduleKind kind : kinds) {
      results.push_back(Make(options, kind, options.micro_batches[i]));
      any = any || results.back().status.ok();
    }
  }
  if (!any || !checked) {
    for (const ScheduleResult& result : results) {
      if (!result.status.ok()) refusals.Add(result.status.message());
    }
    return refusals.ToStatus();
  }
  if (!options.svg.empty()) {
    RETURN_IF_ERROR(WriteSvg(options.svg, results[0]));
  }
  const bool one = results.size() == 1;
  if (options.json) {
    PrintJson(ScheduleJson(results, one || options.list));
    return OutputStatus();
  }
  Print(one ? ScheduleReport(results[0], OutputColumns()) : ScheduleTable(results, OutputColumns()));
  if (options.list) PrintLists(results);
  return OutputStatus();
}

void AddDurations(CLI::App& verb, ScheduleOptions& options) {
  ScheduleDurations& durations = options.durations;
  verb.add_option("--forward", durations.forward,
                  "Duration of a forward in a stage, in any unit; or a list with one for each model chunk")
      ->delimiter(',')
      ->default_str("1");
  verb.add_option("--backward", durations.backward,
                  "Duration of a backward in a stage; or a list with one for each model chunk")
      ->delimiter(',')
      ->default_str("2");
  verb.add_option("--weight-share", durations.weight_share,
                  "The part of a backward that computes weight gradients, which zero_bubble defers")
      ->capture_default_str();
  verb.add_option("--link", durations.link, "Duration of a transfer between two stages")->default_str("0");
  verb.add_option("--samples", durations.samples,
                  "Samples of a step in one pipeline, which its micro-batches share; --forward, --backward and --link "
                  "are then durations of one sample");
  verb.add_option(
          "--fixed-forward", durations.fixed_forward,
          "With --samples: duration that each forward adds, however few samples it has; or a list with one for each "
          "model chunk")
      ->delimiter(',')
      ->default_str("0");
  verb.add_option("--fixed-backward", durations.fixed_backward,
                  "With --samples: duration that each backward adds; or a list with one for each model chunk")
      ->delimiter(',')
      ->default_str("0");
  verb.add_option("--fixed-link", durations.fixed_link, "With --samples: duration that each transfer adds")
      ->default_str("0");
  verb.add_option("--measured", options.measured,
                  "Replaces --samples, --forward, --backward and --link: durations of a stage, measured for several "
                  "numbers of micro-batches, as a list of "
                  "M:FORWARD:BACKWARD or M:FORWARD:BACKWARD:LINK")
      ->delimiter(',');
}

}  // namespace

void AddSchedule(CLI::App& app, const Globals&, Chosen* chosen) {
  auto options = std::make_shared<ScheduleOptions>();
  CLI::App* verb = app.add_subcommand("schedule", "Draw and compare the schedules of a pipeline");
  verb->add_option("--stages", options->stages, "Stages of the pipeline")->capture_default_str();
  verb->add_option("--micro-batches", options->micro_batches,
                   "Micro-batches of a step; several numbers (1,2,4,8) are compared. Default with --measured: all "
                   "numbers that were measured")
      ->delimiter(',')
      ->default_str(absl::StrCat(kDefaultMicroBatches));
  verb->add_option("--schedule", options->schedule,
                   "gpipe, 1f1b, interleaved, zero_bubble or simulated; all: compare them")
      ->capture_default_str();
  verb->add_option("--chunks-per-rank", options->chunks_per_rank, "Chunks of each rank, for interleaved (default: 2)");
  AddDurations(*verb, *options);
  verb->add_option(
      "--in-flight", options->in_flight,
      "The most micro-batches whose activations a rank may hold, for zero_bubble and simulated (default: the number "
      "of stages)");
  verb->add_flag("--list", options->list, "Also print the list of actions of each rank");
  verb->add_option("--svg", options->svg, "Also write the drawing to this file");
  AddJson(*verb, &options->json, "One JSON object; for a single schedule, it includes the times of every action");
  verb->footer(
      "Needs no cluster. In a drawing, F is a forward, B a backward, and I and W are the two parts of a backward\n"
      "(gradients of inputs and of weights). The number after the letter is the micro-batch, or CHUNK.MICRO-BATCH if\n"
      "ranks have several chunks; '-' continues an action, and '.' is a bubble. The bubble is the share of time in\n"
      "which ranks compute nothing. plan/README.md explains the schedules.\n\n"
      "Few micro-batches leave a large bubble; small micro-batches compute less efficiently. --samples with the\n"
      "fixed durations, or --measured, estimates both: every number of micro-batches then divides the same step,\n"
      "OVERHEAD is the share of time that small micro-batches add, and the fastest number is named.\n\n"
      "Examples:\n"
      "  trainctl schedule --stages 4 --micro-batches 8 --schedule gpipe\n"
      "  trainctl schedule --schedule all --micro-batches 16 --link 0.2\n"
      "  trainctl schedule --schedule 1f1b --micro-batches 1,2,4,8,16,32\n"
      "  trainctl schedule --samples 32 --micro-batches 1,2,4,8,16,32 --fixed-forward 0.5 --fixed-backward 1\n"
      "  trainctl schedule --schedule all --measured 4:80:161,8:41:83,16:23:48,32:15:33\n"
      "  trainctl schedule --schedule interleaved --chunks-per-rank 2 --list --svg interleaved.svg");
  verb->callback(
      [options, chosen] { *chosen = [options] { return ReportStatus(Schedule(*options), options->json); }; });
}

}  // namespace trainyard::client
