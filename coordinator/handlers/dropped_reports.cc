#include "coordinator/handlers/dropped_reports.h"

#include "absl/strings/str_cat.h"
#include "common/plural.h"
#include "coordinator/core/turn.h"

namespace trainyard {
namespace {

constexpr absl::Duration kDropsInterval = absl::Minutes(1);

}  // namespace

void RecordDroppedReports(Turn& turn, Job& job, const Rank& rank, uint64_t count) {
  if (job.drops_since != absl::InfiniteFuture()) {
    job.reports_dropped += count;
    return;
  }
  job.drops_since = turn.now;
  turn.Notice(job, NoticeLevel::kWarning,
              absl::StrCat(Plural(count, "step report was", "step reports were"), " dropped by the daemon on ",
                           rank.record.host(), " while it could not reach the coordinator"));
}

void PublishDroppedReports(Turn& turn, Job& job) {
  if (job.drops_since == absl::InfiniteFuture() || turn.now - job.drops_since < kDropsInterval) return;
  if (job.reports_dropped > 0) {
    turn.Notice(
        job, NoticeLevel::kWarning,
        absl::StrCat(Plural(job.reports_dropped, "more step report was", "more step reports were"), " dropped in the ",
                     absl::FormatDuration(absl::Trunc(turn.now - job.drops_since, absl::Seconds(1))),
                     " since the previous notice"));
  }
  // While reports keep being dropped, a notice is published once per interval.
  job.drops_since = job.reports_dropped > 0 ? turn.now : absl::InfiniteFuture();
  job.reports_dropped = 0;
}

}  // namespace trainyard
