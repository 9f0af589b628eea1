// Forecasts when waiting jobs start: goes through the known ends of jobs in the order of their times, and places
// waiting jobs in the order of the queue as slots become free. A forecast assumes that until then no job is submitted,
// fails or ends early. Pure.
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

// The number of jobs at the head of the queue that get a forecast, and the number of ends of jobs that are considered.
inline constexpr size_t kForecastJobs = 50;
inline constexpr size_t kForecastEnds = 200;

struct EndingJob {
  JobId id;
  std::string pool;
  RanksByHost ranks;  // those whose slots its end frees
  uint32_t cpus = 0;
  PoolUse use = {};                       // what counts against the quota of its pool until then
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
