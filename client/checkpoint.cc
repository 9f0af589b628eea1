// trainctl checkpoint ls, show, verify, rm: manages the checkpoints of a folder, without a cluster or a running job. If
// the user names a job instead of a folder, the coordinator is asked for the job's run folder or, by ls and show, for
// the checkpoints that it has recorded.
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "checkpoint/catalog.h"
#include "checkpoint/inventory.h"
#include "checkpoint/lease.h"
#include "checkpoint/read_error.h"
#include "client/byte_progress.h"
#include "client/checkpoint_job.h"
#include "client/checkpoint_verbs.h"
#include "client/checkpoint_view.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/find_job.h"
#include "client/output.h"
#include "client/text.h"
#include "common/escape.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct CheckpointOptions {
  std::string folder;
  std::vector<uint64_t> steps;  // empty: all; for show only the newest
  int threads = 0;
  bool verify = false;
  bool tensors = false;
  bool partials = false;
  bool yes = false;
  bool json = false;
};

// A run folder and some of its entries. `run_folder` is empty if the user named a checkpoint whose folder has another
// name than IsCheckpointName accepts.
struct Selection {
  std::string run_folder;
  std::vector<RunEntry> entries = {};
};

bool IsCheckpointName(const std::string& name) {
  return StepOfFolderName(name).has_value() ||
         (absl::StartsWith(name, "step-") && absl::EndsWith(name, kPartialSuffix));
}

// Selects a checkpoint, or a partial folder, by its path.
absl::StatusOr<Selection> SelectOne(const std::string& path) {
  const std::filesystem::path given(path);
  const std::string name = given.filename().string(), parent = given.parent_path().string();
  if (IsCheckpointName(name)) {
    ASSIGN_OR_RETURN(std::vector<RunEntry> entries, ListRunFolder(parent));
    std::erase_if(entries, [&](const RunEntry& entry) { return entry.name != name; });
    return Selection{parent, std::move(entries)};
  }
  RunEntry entry{.name = name, .path = path};
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(path, error)) {
    std::error_code ignored;
    entry.size_bytes += file.is_regular_file(ignored) ? file.file_size(ignored) : 0;
  }
  struct stat st = {};
  if (stat(path.c_str(), &st) == 0) entry.modified = absl::TimeFromTimespec(st.st_mtim);
  return Selection{"", {std::move(entry)}};
}

// Selects a checkpoint by its path, or the requested checkpoints of a run folder. Possible errors: NotFound: the folder
// or a step does not exist. InvalidArgument: --step for a folder that is itself a checkpoint.
absl::StatusOr<Selection> SelectEntries(const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(const std::string path, ResolveBest(AbsolutePath(options.folder, WorkingDirectory())));
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, error || !FileExists(path) ? " does not exist" : " is not a folder"));
  }
  const bool is_checkpoint =
      FileExists(JoinPath(path, kManifestName)) || IsCheckpointName(std::filesystem::path(path).filename().string());
  if (is_checkpoint && !options.steps.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--step: ", path, " is a checkpoint, not a run folder"));
  }
  if (is_checkpoint) return SelectOne(path);
  Selection chosen{.run_folder = path};
  ASSIGN_OR_RETURN(chosen.entries, ListRunFolder(path));
  if (options.steps.empty()) return chosen;
  std::erase_if(chosen.entries, [&](const RunEntry& entry) {
    const bool requested = std::find(options.steps.begin(), options.steps.end(), entry.step) != options.steps.end();
    return entry.kind != RunEntry::Kind::kCheckpoint || !requested;
  });
  for (uint64_t step : options.steps) {
    auto has_step = [&](const RunEntry& entry) { return entry.step == step; };
    if (std::any_of(chosen.entries.begin(), chosen.entries.end(), has_step)) continue;
    return absl::NotFoundError(absl::StrCat("there is no checkpoint of step ", step, " in ", path));
  }
  return chosen;
}

absl::StatusOr<InspectedEntry> InspectEntry(const RunEntry& entry, bool verify, int threads) {
  InspectedEntry one{.entry = entry};
  if (entry.kind == RunEntry::Kind::kOrphan) return one;
  absl::StatusOr<VerifiedCheckpoint> quick = QuickVerifyCheckpoint(entry.path);
  if (IsFailedRead(quick.status())) {
    one.found.problems.push_back({.file = kManifestName,
                                  .expected = "a readable manifest",
                                  .found = std::string(quick.status().message()),
                                  .failed_read = quick.status()});
    return one;
  }
  ASSIGN_OR_RETURN(one.found, std::move(quick));
  if (!verify || !one.found.manifest.has_value()) return one;
  ASSIGN_OR_RETURN(std::unique_ptr<CheckpointLease> lease, CheckpointLease::ToRead(entry.path));
  uint64_t total = 0;
  for (const ManifestFile& file : one.found.manifest->files) total += file.bytes;
  ByteProgress progress(stderr, absl::StrCat("verify ", entry.name), total);
  ASSIGN_OR_RETURN(
      one.found, VerifyCheckpoint(entry.path, {.threads = threads, .on_bytes = [&](uint64_t n) { progress.Add(n); }}));
  one.verified = true;
  if (one.found.manifest.has_value() && entry.step.value_or(one.found.manifest->step) != one.found.manifest->step) {
    one.found.problems.push_back({.file = kManifestName,
                                  .expected = absl::StrCat("step ", *entry.step),
                                  .found = absl::StrCat("step ", one.found.manifest->step)});
  }
  return one;
}

bool IsNamed(const CheckpointOptions& options, const RunEntry& entry) {
  return AbsolutePath(options.folder, WorkingDirectory()) == entry.path;
}

// Inspects an entry. If the entry is gone and the user has not named it, prints a message and returns none: a running
// job may remove a checkpoint (checkpoint.keep) after it was listed or while it is being read.
absl::StatusOr<std::optional<InspectedEntry>> InspectUnlessRemoved(const CheckpointOptions& options,
                                                                   const Selection& chosen, const RunEntry& entry,
                                                                   bool verify) {
  absl::StatusOr<InspectedEntry> inspected = InspectEntry(entry, verify, options.threads);
  const bool has_problem = !inspected.ok() || !inspected->found.problems.empty();
  struct stat st;
  // Another error, such as an I/O error, does not show that the entry is missing.
  const bool is_missing = stat(entry.path.c_str(), &st) != 0 && errno == ENOENT;
  const bool is_gone = absl::IsUnavailable(inspected.status()) || is_missing;
  if (has_problem && is_gone && !IsNamed(options, entry) && FileExists(chosen.run_folder)) {
    Say(absl::StrCat(entry.name, " was removed in the meantime"));
    return std::optional<InspectedEntry>();
  }
  RETURN_IF_ERROR(inspected.status());
  return std::optional<InspectedEntry>(*std::move(inspected));
}

absl::Status ListCheckpoints(const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(Selection chosen, SelectEntries(options));
  std::optional<StepFolder> best;
  if (!chosen.run_folder.empty()) {
    // If a manifest cannot be read, the list shows which one, and no checkpoint is marked as the best.
    best = FindBest(chosen.run_folder).value_or(std::nullopt);
  }
  std::vector<InspectedEntry> all;
  for (const RunEntry& entry : chosen.entries) {
    ASSIGN_OR_RETURN(std::optional<InspectedEntry> one, InspectUnlessRemoved(options, chosen, entry, options.verify));
    if (!one.has_value()) continue;
    one->best = best.has_value() && best->path == entry.path;
    if (options.json) PrintJson(InspectedEntryJson(*one));
    all.push_back(*std::move(one));
  }
  if (options.json) return absl::OkStatus();
  const std::string holder = chosen.run_folder.empty() ? "" : RunFolderHolder(chosen.run_folder);
  Print(CheckpointTable(all, holder, absl::Now(), OutputColumns()));
  return absl::OkStatus();
}

absl::Status NoCheckpointError(const Selection& chosen) {
  return absl::NotFoundError(absl::StrCat(chosen.run_folder, " is not a checkpoint and contains no step-* folder"));
}

absl::Status ShowCheckpoint(const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(Selection chosen, SelectEntries(options));
  if (chosen.entries.empty() || chosen.entries[0].kind == RunEntry::Kind::kOrphan) return NoCheckpointError(chosen);
  ASSIGN_OR_RETURN(InspectedEntry one, InspectEntry(chosen.entries[0], options.verify, options.threads));
  if (options.json) {
    PrintJson(ManifestJson(one, options.tensors));
  } else {
    Print(ManifestView(one, options.tensors, OutputColumns()));
  }
  if (one.found.problems.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(FailedReadOf(one.found.problems));
  return absl::DataLossError(absl::StrCat(one.entry.path, " is damaged"));
}

absl::Status Verify(const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(Selection chosen, SelectEntries(options));
  size_t num_checked = 0, num_damaged = 0;
  absl::Status failed_read;  // of the first checkpoint that cannot be read
  for (const RunEntry& entry : chosen.entries) {
    // Of a run folder, only checkpoints are verified. A partial folder is verified if the user has named it.
    const bool skips_partial = entry.kind == RunEntry::Kind::kPartial && !IsNamed(options, entry);
    if (entry.kind == RunEntry::Kind::kOrphan || skips_partial) continue;
    ASSIGN_OR_RETURN(const std::optional<InspectedEntry> one,
                     InspectUnlessRemoved(options, chosen, entry, /*verify=*/true));
    if (!one.has_value()) continue;
    if (options.json) {
      PrintJson(InspectedEntryJson(*one));
    } else {
      Print(VerdictText(*one));
    }
    ++num_checked;
    absl::Status read = FailedReadOf(one->found.problems);
    if (read.ok() && !IsGood(*one)) ++num_damaged;
    failed_read.Update(std::move(read));
  }
  if (num_checked == 0) return NoCheckpointError(chosen);
  if (num_damaged == 0) return failed_read;
  return absl::DataLossError(absl::StrCat(num_damaged, " of ", num_checked,
                                          num_checked == 1 ? " checkpoint is" : " checkpoints are",
                                          " damaged or not finite"));
}

absl::StatusOr<std::vector<RunEntry>> EntriesToRemove(const CheckpointOptions& options, const Selection& chosen) {
  if (chosen.run_folder.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(chosen.entries[0].path, " is not a step folder of a run folder; rm removes only step folders"));
  }
  const bool is_step_folder = AbsolutePath(options.folder, WorkingDirectory()) != chosen.run_folder;
  if (is_step_folder && options.partials) {
    return absl::InvalidArgumentError(
        absl::StrCat("--partials: ", options.folder, " is a step folder, not a run folder"));
  }
  if (!is_step_folder && options.steps.empty() && !options.partials) {
    return absl::InvalidArgumentError(absl::StrCat(
        chosen.run_folder,
        " is a run folder: choose what to remove with --step N or --partials, or give the path of a step folder"));
  }
  std::vector<RunEntry> entries;
  for (const RunEntry& entry : chosen.entries) {
    const bool is_checkpoint = entry.kind == RunEntry::Kind::kCheckpoint;
    if (is_step_folder || (is_checkpoint ? !options.steps.empty() : options.partials)) entries.push_back(entry);
  }
  return entries;
}

absl::Status Confirm(const CheckpointOptions& options, const std::string& what) {
  if (options.yes) return absl::OkStatus();
  if (isatty(STDIN_FILENO) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("this would remove ", what, "; give --yes to confirm"));
  }
  WriteNow(stderr, absl::StrCat("Remove ", EscapeText(what), "? [y/N] "));
  std::string answer;
  std::getline(std::cin, answer);
  answer = absl::AsciiStrToLower(absl::StripAsciiWhitespace(answer));
  if (answer == "y" || answer == "yes") return absl::OkStatus();
  return absl::CancelledError("nothing was removed");
}

absl::Status Remove(const CheckpointOptions& options) {
  if (options.partials && !options.steps.empty()) {
    return absl::InvalidArgumentError("--partials and --step cannot be combined");
  }
  ASSIGN_OR_RETURN(Selection chosen, SelectEntries(options));
  ASSIGN_OR_RETURN(std::vector<RunEntry> entries, EntriesToRemove(options, chosen));
  std::vector<std::string> names;
  uint64_t bytes = 0;
  for (const RunEntry& entry : entries) {
    names.push_back(entry.name);
    bytes += entry.size_bytes;
  }
  const std::string what =
      absl::StrCat(absl::StrJoin(names, ", "), " (", BytesText(bytes), ") from ", chosen.run_folder);
  if (!names.empty()) {
    RETURN_IF_ERROR(Confirm(options, what));
    RETURN_IF_ERROR(RemoveFromRunFolder(chosen.run_folder, names, FileSystem::Real()));
  }
  if (options.json) {
    PrintJson(RemovedJson(names, bytes));
  } else {
    Print(names.empty() ? "there is nothing to remove\n" : absl::StrCat("removed ", what, "\n"));
  }
  return absl::OkStatus();
}

using FolderCommand = absl::Status (*)(const CheckpointOptions& options);

// Runs `act` on a folder, which may be given as the name of its job.
absl::Status RunOnFolder(const Globals& globals, CheckpointOptions options, FolderCommand act) {
  ASSIGN_OR_RETURN(options.folder, RunFolderOf(globals, options.folder));
  return act(options);
}

CLI::App* AddFolderVerb(CLI::App& app, const Globals& globals, Chosen* chosen, const char* name, const char* help,
                        const std::shared_ptr<CheckpointOptions>& options, FolderCommand act) {
  CLI::App* verb = app.add_subcommand(name, help);
  verb->add_option("folder", options->folder, "Run folder (checkpoint.dir), one checkpoint in it, or a job")
      ->required();
  verb->add_option("--step", options->steps, "In a run folder: the checkpoint of this step")
      ->type_name("N")
      ->allow_extra_args(false);
  AddJson(*verb, &options->json, "One JSON object per line, one for each checkpoint");
  verb->callback([&globals, options, chosen, act] {
    *chosen = [&globals, options, act] { return ReportStatus(RunOnFolder(globals, *options, act), options->json); };
  });
  return verb;
}

// If the argument names a job (no folder here has that name) and a coordinator is configured, shows what the
// coordinator has recorded. With --verify or --tensors, which need more than these records, reads the job's run folder.
void UseRecordsOfJob(CLI::App& verb, const Globals& globals, Chosen* chosen,
                     const std::shared_ptr<CheckpointOptions>& options, FolderCommand of_folder,
                     absl::Status (*of_job)(const Globals&, const CheckpointOptions&)) {
  verb.callback([&globals, options, chosen, of_folder, of_job] {
    *chosen = [&globals, options, of_folder, of_job] {
      const bool recorded = !options->verify && !options->tensors;
      const bool online = !globals.coordinator.empty() && MayBeJob(options->folder);
      return ReportStatus(online && recorded ? of_job(globals, *options) : RunOnFolder(globals, *options, of_folder),
                          options->json);
    };
  });
}

absl::Status ListJob(const Globals& globals, const CheckpointOptions& options) {
  return ListJobCheckpoints(globals, options.folder, options.steps, options.json);
}

absl::Status ShowJob(const Globals& globals, const CheckpointOptions& options) {
  if (options.steps.size() > 1) return absl::InvalidArgumentError("--step: give it once; show prints one checkpoint");
  std::optional<uint64_t> step;
  if (!options.steps.empty()) step = options.steps.front();
  return ShowJobCheckpoint(globals, options.folder, step, options.json);
}

void AddThreads(CLI::App& verb, CheckpointOptions& options) {
  verb.add_option("--threads", options.threads, "Number of files to verify in parallel; 0: one per core, at most 8")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
}

void AddLs(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<CheckpointOptions>();
  CLI::App* verb = AddFolderVerb(app, globals, chosen, "ls", "List the checkpoints of a folder, newest first", options,
                                 ListCheckpoints);
  verb->add_flag("--verify", options->verify, "Verify every byte, not only manifests, names and lengths");
  AddThreads(*verb, *options);
  UseRecordsOfJob(*verb, globals, chosen, options, ListCheckpoints, ListJob);
  verb->footer(
      "Partial folders and leftovers of crashes are listed below the table. For a job, shows what the\n"
      "coordinator has recorded.\n\n"
      "Examples:\n  trainctl checkpoint ls trainyard-runs/stdlib-gpt-k3x7q2ab\n  trainctl checkpoint ls RUN --verify "
      "--json");
}

void AddShow(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<CheckpointOptions>();
  CLI::App* verb =
      AddFolderVerb(app, globals, chosen, "show", "Show the contents of a checkpoint; for a run folder, of the newest",
                    options, ShowCheckpoint);
  verb->add_flag("--verify", options->verify, "Verify every byte");
  verb->add_flag("--tensors", options->tensors, "List every tensor and where its pieces are stored");
  AddThreads(*verb, *options);
  UseRecordsOfJob(*verb, globals, chosen, options, ShowCheckpoint, ShowJob);
  verb->footer(
      "Examples:\n  trainctl checkpoint show RUN\n  trainctl checkpoint show k3x7q2ab --step 100\n  trainctl "
      "checkpoint show RUN/step-00000100 --tensors --json");
}

void AddVerify(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<CheckpointOptions>();
  CLI::App* verb =
      AddFolderVerb(app, globals, chosen, "verify",
                    "Verify every byte of a checkpoint, or of all checkpoints in a run folder", options, Verify);
  AddThreads(*verb, *options);
  verb->footer(
      "Reports every problem with its file, tensor, expected and found value, and tensors with values that are\n"
      "not finite: no run resumes from such a checkpoint automatically. Exit code 0: all are good; 1: some are\n"
      "not; 2: there is none.\n\n"
      "Examples:\n  trainctl checkpoint verify RUN\n  trainctl checkpoint verify k3x7q2ab\n  trainctl checkpoint "
      "verify RUN/step-00000100 --json");
}

void AddRemove(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<CheckpointOptions>();
  CLI::App* verb = AddFolderVerb(app, globals, chosen, "rm", "Remove checkpoints, or leftovers of interrupted saves",
                                 options, Remove);
  verb->add_flag("--partials", options->partials, "Remove partial folders and temporary files instead of checkpoints");
  verb->add_flag("--yes", options->yes, "Do not ask for confirmation");
  verb->footer(
      "Does not remove the last good checkpoint, a checkpoint that is being read (its readers hold a lock on\n"
      "the manifest), or anything in a folder in which a job trains (its rank 0 holds .lock).\n\n"
      "Examples:\n  trainctl checkpoint rm RUN/step-00000100\n  trainctl checkpoint rm RUN --step 100 --step 200 "
      "--yes");
}

}  // namespace

void AddCheckpoint(CLI::App& app, const Globals& globals, Chosen* chosen) {
  CLI::App* verb = app.add_subcommand("checkpoint", "List, show, verify, make, remove and convert checkpoints");
  verb->require_subcommand(1);
  AddLs(*verb, globals, chosen);
  AddShow(*verb, globals, chosen);
  AddVerify(*verb, globals, chosen);
  AddRemove(*verb, globals, chosen);
  AddCheckpointNow(*verb, globals, chosen);
  AddCheckpointExport(*verb, globals, chosen);
  AddCheckpointImport(*verb, chosen);
  AddCheckpointReshard(*verb, globals, chosen);
}

}  // namespace trainyard::client
