#include "client/summary.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/exit_code.h"
#include "client/job_calls.h"
#include "client/plot.h"
#include "client/text.h"

namespace trainyard::client {
namespace {

constexpr size_t kLineBytes = 500;

std::string StepsText(const v1::Job& job, const RunStats& stats) {
  std::string text = absl::StrCat(job.last_step(), " of ", job.spec().train().steps());
  if (stats.steps() > 0 && stats.first_step() > 1)
    absl::StrAppend(&text, ", from step ", stats.first_step(), " in this run");
  if (job.started_unix_ms() > 0 && job.finished_unix_ms() >= job.started_unix_ms()) {
    absl::StrAppend(&text, " in ", DurationText(absl::Milliseconds(job.finished_unix_ms() - job.started_unix_ms())));
  }
  return text;
}

std::string LossText(const RunStats& stats) {
  std::string text = LossesText(stats);
  if (stats.newest_eval().has_value()) {
    absl::StrAppendFormat(&text, "%sevaluation %.4f at step %d", text.empty() ? "" : "; ", stats.newest_eval()->loss(),
                          stats.newest_eval()->step());
  }
  return text;
}

std::string CheckpointText(const v1::Job& job) {
  const v1::CheckpointInfo* newest = NewestConfirmed(job);
  const uint64_t saved = newest == nullptr ? 0 : newest->step();
  std::string text = "none";
  if (newest != nullptr) {
    text = absl::StrCat(Printable(newest->path(), kLineBytes), " (step ", saved, ", ", BytesText(newest->size_bytes()),
                        ")");
  }
  if (job.state() == v1::JOB_STATE_SUCCEEDED || job.last_step() <= saved || newest == nullptr) return text;
  return absl::StrCat(text, "; ", job.last_step() - saved == 1 ? "step " : absl::StrCat("steps ", saved + 1, " to "),
                      job.last_step(), job.last_step() - saved == 1 ? " is" : " are", " not in any checkpoint");
}

// The first rank of the job that the text names; -1: it names none. A reason begins with the failed rank; the error
// message of a script, which follows, may name others.
int FirstRankIn(absl::string_view text, const v1::Job& job) {
  constexpr absl::string_view kName = "rank ";
  for (size_t at = text.find(kName); at != absl::string_view::npos; at = text.find(kName, at + 1)) {
    const absl::string_view rest = text.substr(at + kName.size());
    uint32_t number = 0;
    if (!absl::SimpleAtoi(rest.substr(0, rest.find_first_not_of("0123456789")), &number)) continue;
    const auto is_named = [number](const v1::RankStatus& rank) { return rank.rank() == number; };
    if (std::any_of(job.ranks().begin(), job.ranks().end(), is_named)) return static_cast<int>(number);
  }
  return -1;
}

}  // namespace

int FailedRank(const v1::Job& job) {
  if (const int named = FirstRankIn(job.reason(), job); named >= 0) return named;
  for (const v1::RankStatus& rank : job.ranks()) {
    if (!rank.exit().empty() && rank.exit() != "exit code 0") return static_cast<int>(rank.rank());
  }
  return -1;
}

std::string Summary(const SummaryInput& input) {
  const v1::Job& job = input.job;
  const RunStats& stats = input.stats;
  std::string text =
      absl::StrCat(StateName(job.state()), "  ", Printable(job.spec().name(), kLineBytes), " (", job.job_id(), ")");
  if (!job.reason().empty()) absl::StrAppend(&text, ": ", Printable(job.reason(), 2000));
  text += '\n';
  std::vector<std::vector<std::string>> rows;
  const bool trains = job.spec().has_train();
  if (trains) rows.push_back({"  steps", StepsText(job, stats)});
  if (stats.steps() > 0) {
    rows.push_back({"  tokens/s", absl::StrCat(Amount(stats.TokensPerSecond()), " over ",
                                               Amount(static_cast<double>(stats.tokens())), " tokens")});
    if (const std::string text = LossText(stats); !text.empty()) rows.push_back({"  loss", text});
  }
  rows.push_back({"  restarts", absl::StrCat(job.restarts())});
  if (trains) rows.push_back({"  checkpoint", CheckpointText(job)});
  if (!job.spec().checkpoint().dir().empty()) {
    const std::string folder = Printable(job.spec().checkpoint().dir(), kLineBytes);
    rows.push_back({"  run folder", folder});
    if (stats.steps() > 0) rows.push_back({"  metrics", absl::StrCat(folder, "/metrics.jsonl")});
  }
  if (!input.logs_place.empty()) rows.push_back({"  logs", input.logs_place});
  absl::StrAppend(&text, Table(rows, input.traits.is_terminal ? input.traits.columns : 0));
  std::string plot = Plot(
      stats.curve(), {.columns = std::min(input.traits.columns - 1, 72), .rows = 10, .unicode = input.traits.unicode});
  if (!plot.empty()) absl::StrAppend(&text, "\nloss\n", plot);
  if (!input.last_lines.empty()) {
    absl::StrAppend(&text, "\nlast lines of rank ", FailedRank(job), ":\n");
    for (const std::string& line : input.last_lines) absl::StrAppend(&text, "  ", Printable(line, kLineBytes), "\n");
  }
  return text;
}

}  // namespace trainyard::client
