#include "client/checkpoint_job.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/find_job.h"
#include "client/job_calls.h"
#include "client/job_stream.h"
#include "client/output.h"
#include "client/text.h"
#include "common/ids.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

// The most bytes of a hash in the table, and of any other text.
constexpr size_t kHashShown = 12;
constexpr size_t kTextShown = 1000;

struct SaveNowOptions {
  std::string job_id;
  std::string reason = "trainctl checkpoint now";
  bool wait = false;
  bool json = false;
  ReconnectOptions reconnect;
};

std::string Age(const v1::CheckpointInfo& info, absl::Time now) {
  return DurationText(now - absl::FromUnixMillis(info.recorded_unix_ms()));
}

// A granted checkpoint is complete, but its folder is not yet known to have the final name.
const char* StateOf(const v1::CheckpointInfo& info) { return info.unconfirmed() ? "granted" : "saved"; }

// The sequence number of the newest event; 0: there is none.
absl::StatusOr<uint64_t> NewestEvent(Connection& connection, const std::string& job_id) {
  v1::ListEventsRequest request;
  request.set_job_id(job_id);
  ASSIGN_OR_RETURN(v1::ListEventsResponse events, ListEvents(connection, request));
  return events.events().empty() ? 0 : events.events().rbegin()->sequence();
}

absl::Status AwaitSave(Connection& connection, const v1::Job& job, uint64_t last_sequence,
                       const SaveNowOptions& options) {
  const AwaitedSave awaited(job, last_sequence);
  JobStream stream(connection, job.job_id(), options.reconnect.retry);
  AwaitedSave::Result result = AwaitedSave::Result::kNone;
  v1::Event last;
  auto ended = stream.Follow(
      [&](const v1::Event& event) {
        if (result != AwaitedSave::Result::kNone) return;
        result = awaited.Classify(event);
        if (result == AwaitedSave::Result::kNone) return;
        last = event;
        stream.Stop();
      },
      [](absl::string_view text) { Say(text); });
  if (result == AwaitedSave::Result::kFailed) {
    return absl::AbortedError(absl::StrCat("job ", job.job_id(), ": ", Printable(last.notice().text(), 2000)));
  }
  if (result == AwaitedSave::Result::kNone) {
    RETURN_IF_ERROR(ended.status());
    return absl::AbortedError(
        absl::StrCat("job ", job.job_id(), " is ", StateName(*ended), " and has not saved since the request"));
  }
  if (options.json) {
    PrintJson(EventLine(last));
  } else {
    Print(absl::StrCat("saved step ", last.checkpoint().step(), ": ", last.checkpoint().path(), " (",
                       BytesText(last.checkpoint().size_bytes()), ")\n"));
  }
  return absl::OkStatus();
}

absl::Status SaveNow(const Globals& globals, SaveNowOptions options) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals, options.reconnect.connect_wait()));
  ASSIGN_OR_RETURN(options.job_id, FindJob(*connection, options.job_id));
  uint64_t last_sequence = 0;
  if (options.wait) {
    ASSIGN_OR_RETURN(last_sequence, NewestEvent(*connection, options.job_id));
  }
  v1::SaveRequest request;
  request.set_job_id(options.job_id);
  request.set_reason(options.reason);
  request.set_request_id(RandomId(kRequestIdLength));
  ASSIGN_OR_RETURN(v1::Job job, SaveJob(*connection, request));
  if (options.wait) return AwaitSave(*connection, job, last_sequence, options);
  if (options.json) {
    PrintJson(JobJson(job));
  } else {
    Print(absl::StrCat(JobTitle(job), " will save after its next step; trainctl checkpoint ls ", job.job_id(),
                       " shows the checkpoint\n"));
  }
  return absl::OkStatus();
}

absl::Status NoCheckpoint(const v1::Job& job, std::optional<uint64_t> step) {
  std::vector<std::string> steps;
  for (const v1::CheckpointInfo& info : job.checkpoints()) steps.push_back(absl::StrCat(info.step()));
  return absl::NotFoundError(absl::StrCat(
      JobTitle(job),
      step.has_value() ? absl::StrCat(" has no checkpoint of step ", *step) : std::string(" has saved nothing yet"),
      steps.empty() ? "" : absl::StrCat("; saved steps: ", absl::StrJoin(steps, ", "))));
}

}  // namespace

absl::Status KeepSteps(const std::vector<uint64_t>& steps, v1::Job& job) {
  if (steps.empty()) return absl::OkStatus();
  for (uint64_t step : steps) {
    auto has_step = [&](const v1::CheckpointInfo& info) { return info.step() == step; };
    if (absl::c_none_of(job.checkpoints(), has_step)) return NoCheckpoint(job, step);
  }
  auto& all = *job.mutable_checkpoints();
  auto is_other = [&](const v1::CheckpointInfo& info) { return !absl::c_linear_search(steps, info.step()); };
  all.erase(std::remove_if(all.begin(), all.end(), is_other), all.end());
  return absl::OkStatus();
}

std::string JobCheckpointTable(const v1::Job& job, absl::Time now, int columns) {
  if (job.checkpoints().empty()) {
    const std::string& folder =
        job.spec().has_command() ? job.spec().command().checkpoint_dir() : job.spec().checkpoint().dir();
    return absl::StrCat("job ", job.job_id(), " is ", StateName(job.state()), " and has saved nothing yet",
                        folder.empty() ? "" : absl::StrCat("; its folder is ", Printable(folder, kTextShown)), "\n");
  }
  std::vector<std::vector<std::string>> rows = {{"STEP", "GENERATION", "SIZE", "AGE", "STATE", "MANIFEST", "PATH"}};
  for (auto info = job.checkpoints().rbegin(); info != job.checkpoints().rend(); ++info) {
    rows.push_back({absl::StrCat(info->step()), absl::StrCat(info->generation()), BytesText(info->size_bytes()),
                    Age(*info, now), StateOf(*info), Printable(info->manifest_hash(), kHashShown),
                    Printable(info->path(), kTextShown)});
  }
  return Table(rows, columns);
}

std::string JobCheckpointView(const v1::CheckpointInfo& info, absl::Time now, int columns) {
  const char* state = info.unconfirmed() ? "granted; the final name of its folder is not yet confirmed" : "saved";
  return Table({{"step", absl::StrCat(info.step())},
                {"generation", absl::StrCat(info.generation())},
                {"state", state},
                {"path", Printable(info.path(), kTextShown)},
                {"manifest hash", Printable(info.manifest_hash(), kTextShown)},
                {"size", BytesText(info.size_bytes())},
                {"age", Age(info, now)}},
               columns);
}

absl::Status ListJobCheckpoints(const Globals& globals, const std::string& name, const std::vector<uint64_t>& steps,
                                bool json) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  ASSIGN_OR_RETURN(const std::string id, FindJob(*connection, name));
  ASSIGN_OR_RETURN(v1::Job job, GetJob(*connection, id));
  RETURN_IF_ERROR(KeepSteps(steps, job));
  if (!json) {
    Print(JobCheckpointTable(job, absl::Now(), OutputColumns()));
    return absl::OkStatus();
  }
  for (auto info = job.checkpoints().rbegin(); info != job.checkpoints().rend(); ++info) {
    PrintJson(CheckpointLine(*info));
  }
  return absl::OkStatus();
}

absl::Status ShowJobCheckpoint(const Globals& globals, const std::string& name, std::optional<uint64_t> step,
                               bool json) {
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  ASSIGN_OR_RETURN(const std::string id, FindJob(*connection, name));
  ASSIGN_OR_RETURN(v1::Job job, GetJob(*connection, id));
  const v1::CheckpointInfo* chosen = nullptr;
  for (const v1::CheckpointInfo& info : job.checkpoints()) {
    if (!step.has_value() || info.step() == *step) chosen = &info;
  }
  if (chosen == nullptr) return NoCheckpoint(job, step);
  if (json) {
    PrintJson(CheckpointLine(*chosen));
  } else {
    Print(JobCheckpointView(*chosen, absl::Now(), OutputColumns()));
  }
  return absl::OkStatus();
}

AwaitedSave::Result AwaitedSave::Classify(const v1::Event& event) const {
  if (event.sequence() <= last_sequence_) return Result::kNone;
  // A script may save without a request, and repeats steps after a restart. So only `requested` shows that a checkpoint
  // answers a request.
  if (is_command_) return event.has_checkpoint() && event.checkpoint().requested() ? Result::kSaved : Result::kNone;
  // A later generation still carries out the request. It may begin at an earlier step, so any of its saves counts.
  const uint64_t first_step = event.generation() > generation_ ? 1 : step_at_request_;
  if (event.has_checkpoint() && event.checkpoint().step() >= first_step) return Result::kSaved;
  const uint64_t failed = event.has_notice() ? event.notice().failed_save_step() : 0;
  return failed > 0 && failed >= first_step ? Result::kFailed : Result::kNone;
}

void AddCheckpointNow(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<SaveNowOptions>();
  CLI::App* verb = app.add_subcommand("now", "Make a running job save at its next step");
  verb->add_option("job", options->job_id, kJobHelp)->required();
  verb->add_option("--reason", options->reason, "Reason, recorded in the events");
  verb->add_flag("--wait", options->wait, "Wait until the save is recorded or has failed, or the job has ended");
  AddJson(*verb, &options->json, "Print the job, or with --wait the checkpoint, as a JSON object");
  AddReconnectFor(*verb, &options->reconnect);
  verb->footer(
      "Returns once the request is stored; a job that is restarting saves once it trains again. Requests during\n"
      "a save lead to one more save after it. Exit code 0: requested, or with --wait saved; 1: the save failed;\n"
      "2: there is no such job, or it is not training.\n\n"
      "Examples:\n  trainctl checkpoint now k3x7q2ab --wait");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] { return ReportStatus(SaveNow(globals, *options), options->json); };
  });
}

}  // namespace trainyard::client
