#include "coordinator/policy/forecast.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/policy/queue_quota.h"

namespace trainyard {
namespace {

class Forecaster {
 public:
  explicit Forecaster(const ForecastFacts& facts)
      : facts_(facts), hosts_(facts.hosts.begin(), facts.hosts.end()), use_(facts.use) {
    for (size_t i = 0; i < hosts_.size(); ++i) index_[hosts_[i].name] = i;
    forecasts_.resize(std::min(facts.waiting.size(), kForecastJobs));
    // Slots are kept only for jobs that start again, which are at the head of the queue. So these slots can count as
    // free: jobs that start for the first time are placed later.
    for (size_t i = 0; i < forecasts_.size(); ++i) {
      const WaitingJob& job = *facts.waiting[i].job;
      Free(job.kept, job.placement.cpus);
    }
    for (const EndingJob& job : facts.running) {
      if (job.ends_in.has_value()) {
        ends_.emplace(*job.ends_in, job);
      } else if (unknown_.empty()) {
        unknown_ = job.why_unknown;
      }
    }
  }

  std::vector<Forecast> Run() {
    absl::Duration now = absl::ZeroDuration();
    PlaceAll(now, "");
    for (size_t i = 0; i < kForecastEnds && !ends_.empty() && placed_ < forecasts_.size(); ++i) {
      const EndingJob job = ends_.begin()->second;
      now = std::max(now, ends_.begin()->first);
      ends_.erase(ends_.begin());
      End(job);
      PlaceAll(now, absl::StrCat("when job ", job.id.value(), " ends"));
    }
    for (size_t i = 0; i < forecasts_.size(); ++i) {
      if (forecasts_[i].start_in.has_value() || !forecasts_[i].text.empty()) continue;
      forecasts_[i].text = WhyUnknown(*facts_.waiting[i].job, facts_.waiting[i].never);
    }
    return std::move(forecasts_);
  }

 private:
  void Free(const RanksByHost& ranks, uint32_t cpus) {
    for (const auto& [name, count] : ranks) {
      const auto at = index_.find(name);
      if (at != index_.end()) FreeRanks(hosts_[at->second], count, cpus);
    }
  }

  void End(const EndingJob& job) {
    Free(job.ranks, job.cpus);
    RemoveUse(use_[job.pool], job.use);
  }

  void PlaceAll(absl::Duration now, const std::string& after) {
    uint64_t free = 0;
    for (const HostSlots& host : hosts_) free += host.free;
    for (size_t i = 0; i < forecasts_.size() && free > 0; ++i) {
      const WaitingJob& job = *facts_.waiting[i].job;
      if (forecasts_[i].start_in.has_value() || MinRanks(job.placement) > free) continue;
      free -= Place(i, job, now, after);
    }
  }

  // Returns the number of ranks that were placed.
  uint64_t Place(size_t i, const WaitingJob& job, absl::Duration now, const std::string& after) {
    PoolUse& use = use_[job.pool];
    const QuotaDecision quota = DecideQuota(*facts_.rules, use, job);
    if (quota.ranks == 0) return 0;
    PlacementFacts wanted = job.placement;
    wanted.hosts = hosts_;
    wanted.min_ranks = MinRanks(job.placement);
    wanted.ranks = quota.ranks;
    if (RanksThatFit(wanted) == 0) return 0;
    const PlacementDecision decision = DecidePlacement(wanted);
    EndingJob started{.id = job.id,
                      .pool = job.pool,
                      .ranks = *decision.ranks_by_host,
                      .cpus = job.placement.cpus,
                      .use = {},
                      .ends_in = facts_.waiting[i].lasts,
                      .why_unknown = ""};
    for (const auto& [name, count] : started.ranks) TakeRanks(hosts_[index_.at(name)], count, started.cpus);
    const uint64_t ranks = CountRanks(started.ranks);
    started.use = {.slots = ranks, .gpus = job.wants_gpus ? ranks : 0, .running = 1};
    AddStart(use, job, ranks);
    forecasts_[i].start_in = now;
    forecasts_[i].text = after.empty() ? "starts now" : after;
    ++placed_;
    if (started.ends_in.has_value()) {
      ends_.emplace(now + *started.ends_in, std::move(started));
    } else if (unknown_.empty()) {
      unknown_ = absl::StrCat("the duration of job ", job.id.value(), ", which is ahead of it, is not known");
    }
    return ranks;
  }

  std::string WhyUnknown(const WaitingJob& job, bool never) const {
    if (never) return "never: the quota of its namespace is too small";
    PlacementFacts wanted = job.placement;
    wanted.hosts = facts_.hosts;
    if (!CouldFit(wanted)) return "unknown: the attached hosts are not enough for it";
    if (!unknown_.empty()) return absl::StrCat("unknown: ", unknown_);
    return "unknown: the known ends of jobs do not free enough slots for it";
  }

  const ForecastFacts& facts_;
  std::vector<HostSlots> hosts_;
  std::map<HostName, size_t> index_;
  std::map<std::string, PoolUse> use_;
  std::multimap<absl::Duration, EndingJob> ends_;
  std::vector<Forecast> forecasts_;
  std::string unknown_;  // why the end of some job is not known
  size_t placed_ = 0;
};

}  // namespace

std::vector<Forecast> MakeForecasts(const ForecastFacts& facts) { return Forecaster(facts).Run(); }

}  // namespace trainyard
