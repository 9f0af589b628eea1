// trainctl status: the state of a job and of each of its ranks.
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands.h"
#include "client/event_json.h"
#include "client/exit_code.h"
#include "client/find_job.h"
#include "client/goodput_view.h"
#include "client/job_calls.h"
#include "client/layout_view.h"
#include "client/output.h"
#include "client/status.h"
#include "client/text.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "spec/job_layout.h"

namespace trainyard::client {
namespace {

constexpr size_t kPathBytes = 1000;

// ", 1.2 GiB, 35.2 s of CPU" for a process that has ended.
std::string UsageText(const v1::RankStatus& rank) {
  if (rank.max_rss_bytes() == 0) return "";
  return absl::StrFormat(", %s, %.1f s of CPU", BytesText(rank.max_rss_bytes()), rank.user_s() + rank.system_s());
}

// The place of each rank in the model is shown if stages or tensor ranks divide the model.
std::string RankTable(const v1::Job& job, int columns) {
  const JobLayout layout = LayoutOf(job.spec());
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](std::string rank, std::string stage, std::string tensor, const std::vector<std::string>& rest) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(std::move(rank));
    if (layout.stages > 1) row.push_back(std::move(stage));
    if (layout.tensor > 1) row.push_back(std::move(tensor));
    row.insert(row.end(), rest.begin(), rest.end());
  };
  add("RANK", "STAGE", "TENSOR",
      {"HOST", "PHASE", "FOR", "LAST STEP", "COMPUTE", "WAITED", "REPORT AGE", "PID", "WAITS IN", "EXIT"});
  for (const v1::RankStatus& rank : job.ranks()) {
    const bool ended = !rank.exit().empty();
    add(absl::StrCat(rank.rank()), absl::StrCat(layout.StageOf(rank.rank())),
        absl::StrCat(layout.TensorRankOf(rank.rank())),
        {Printable(rank.host(), 253), absl::StrCat(Printable(rank.phase(), 40), rank.straggler() ? " (straggler)" : ""),
         ended ? "-" : DurationText(absl::Seconds(rank.phase_s())), absl::StrCat(rank.last_step()),
         rank.compute_s() > 0 ? absl::StrFormat("%.3f s", rank.compute_s()) : "-",
         rank.compute_s() > 0 ? absl::StrFormat("%.0f %%", 100 * rank.wait_share()) : "-",
         DurationText(absl::Seconds(rank.last_report_age_s())), rank.pid() > 0 ? absl::StrCat(rank.pid()) : "-",
         rank.waits_in().empty() ? "-" : Printable(rank.waits_in(), 80),
         absl::StrCat(Printable(rank.exit(), 200), UsageText(rank))});
  }
  return Table(rows, columns);
}

// A table of the memory of each rank by kind, "now (peak)"; empty if no rank has reported it.
std::string MemoryText(const v1::Job& job, int columns) {
  std::vector<std::vector<std::string>> rows;
  for (const v1::RankStatus& rank : job.ranks()) {
    if (rank.memory_size() == 0) continue;
    if (rows.empty()) {
      rows.push_back({"RANK"});
      for (const v1::MemoryUse& use : rank.memory())
        rows[0].push_back(absl::AsciiStrToUpper(Printable(use.kind(), 32)));
    }
    rows.push_back({absl::StrCat(rank.rank())});
    for (const v1::MemoryUse& use : rank.memory()) {
      rows.back().push_back(absl::StrCat(BytesText(use.bytes()), " (", BytesText(use.peak_bytes()), ")"));
    }
  }
  return rows.empty() ? "" : absl::StrCat("\nmemory now (and peak)\n", Table(rows, columns));
}

}  // namespace

std::string StatusText(const v1::Job& job, int columns) {
  std::string text =
      absl::StrCat(JobTitle(job), ": ", StateName(job.state()),
                   job.unconfirmed() ? ", not yet confirmed by all its hosts since the coordinator started" : "",
                   job.unreachable() ? ", none of its hosts can be reached" : "", "\n");
  if (!job.reason().empty()) absl::StrAppend(&text, "  ", Printable(job.reason(), 2000), "\n");
  std::vector<std::vector<std::string>> job_rows;
  // A script may report steps without losses.
  const std::string loss =
      job.last_step() > 0 && job.has_last_loss() ? absl::StrFormat(", loss %.4f", job.last_loss()) : "";
  if (job.spec().has_train()) {
    job_rows.push_back({"  step", absl::StrCat(job.last_step(), " of ", job.spec().train().steps(), loss)});
  } else if (job.last_step() > 0) {
    job_rows.push_back({"  step", absl::StrCat(job.last_step(), loss)});
  }
  if (job.has_priority()) {
    const std::string& name = job.spec().namespace_();
    const std::string preempted =
        job.preemptions() > 0 ? absl::StrCat(", preempted ", Plural(job.preemptions(), "time")) : "";
    const std::string in_namespace =
        HasHiddenSpec(job) ? "" : absl::StrCat(" in namespace ", Printable(name.empty() ? "default" : name, 63));
    job_rows.push_back({"  priority", absl::StrCat(job.priority(), in_namespace, preempted)});
  }
  std::string planned =
      job.planned_restarts() > 0 ? absl::StrCat(", plus ", job.planned_restarts(), " not counted") : "";
  const std::string limit = HasHiddenSpec(job) ? "" : absl::StrCat(" of ", job.spec().recovery().max_restarts());
  job_rows.push_back({"  generation", absl::StrCat(job.generation(), ", restarts ", job.restarts(), limit, planned)});
  if (const v1::CheckpointInfo* newest = NewestConfirmed(job); newest != nullptr) {
    job_rows.push_back(
        {"  checkpoint", absl::StrCat("step ", newest->step(), ", ", Printable(newest->path(), kPathBytes))});
  }
  if (job.goodput().total_s() > 0) {
    job_rows.push_back({"  goodput", absl::StrFormat("%.1f %% (trainctl goodput %s shows where the rest went)",
                                                     100 * GoodputShare(job.goodput()), job.job_id())});
  }
  if (const std::string strategy = StrategyLine(job); !strategy.empty()) {
    job_rows.push_back({"  strategy", strategy});
  }
  if (const std::string layout = LayoutLine(job.spec()); !layout.empty()) job_rows.push_back({"  layout", layout});
  if (job.spec().has_train())
    job_rows.push_back({"  run folder", Printable(job.spec().checkpoint().dir(), kPathBytes)});
  absl::StrAppend(&text, Table(job_rows, columns));
  if (job.ranks_size() == 0) return text;
  return absl::StrCat(text, "\n", RankTable(job, columns), MemoryText(job, columns));
}

void AddStatus(CLI::App& app, const Globals& globals, Chosen* chosen) {
  struct Options {
    std::string job_id;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("status", "Show the state of a job and of each rank");
  verb->alias("describe")->alias("show");
  verb->add_option("job", options->job_id, kJobHelp)->required();
  AddJson(*verb, &options->json, "One JSON object");
  verb->footer("Examples:\n  trainctl status k3x7q2ab\n  trainctl status k3x7q2ab --json | jq .ranks");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] {
      auto job = [&]() -> absl::StatusOr<v1::Job> {
        ASSIGN_OR_RETURN(auto connection, Connect(globals));
        ASSIGN_OR_RETURN(const std::string id, FindJob(*connection, options->job_id));
        return GetJob(*connection, id);
      }();
      if (!job.ok()) return ReportStatus(job.status(), options->json);
      if (options->json) {
        PrintJson(JobJson(*job));
      } else {
        Print(StatusText(*job, OutputColumns()));
      }
      return static_cast<int>(kClientDone);
    };
  });
}

}  // namespace trainyard::client
