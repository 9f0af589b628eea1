// Forecasts when waiting jobs start: follows the known ends of jobs in time, and places the waiting jobs in the order
// of the queue as slots become free. A forecast assumes that meanwhile no job is submitted, fails or ends early. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "coordinator/policy/queue.h"

namespace trainyard {

// Forecasts are made for this many jobs at the head of the queue, over this many ends of jobs.
inline constexpr size_t kForecastJobs = 50;
inline constexpr size_t kForecastEnds = 200;

struct EndingJob {
  JobId id;
  std::string pool;
  RanksByHost ranks;
  uint32_t cpus = 0;
  uint64_t gpus = 0;
  std::optional<absl::Duration> ends_in;  // none: its end is not known
  std::string why_unknown;                // "job ab12 is a command without command.time_limit_s"
};

// A waiting job, in the order of the queue.
struct ForecastJob {
  const WaitingJob* job = nullptr;
  std::optional<absl::Duration> lasts;  // how long it runs; none: not known
  bool never = false;                   // its quota does not permit it, however long it waits
};

struct ForecastFacts {
  const QueueRules* rules = nullptr;
  absl::Span<const HostSlots> hosts = {};
  std::map<std::string, PoolUse> use;
  std::vector<EndingJob> running;
  std::vector<ForecastJob> waiting;
};

struct Forecast {
  std::optional<absl::Duration> start_in;
  std::string text;  // what the forecast is based on, or why there is none
};

// Returns a forecast for each of the first kForecastJobs waiting jobs.
std::vector<Forecast> MakeForecasts(const ForecastFacts& facts);

}  // namespace trainyard
