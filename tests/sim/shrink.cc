#include "tests/sim/shrink.h"

#include <algorithm>
#include <string>
#include <utility>

namespace trainyard::sim {
namespace {

class Shrinker {
 public:
  Shrinker(Scenario scenario, const WorldOptions& options, int runs_max)
      : best_(std::move(scenario)), options_(options), runs_max_(runs_max) {
    options_.trace = false;
    invariant_ = World(best_, options_).Run().violation->invariant;
  }

  void Run() {
    bool smaller = true;
    while (smaller && runs_ < runs_max_) {
      smaller = LeaveOut(&Scenario::faults) | LeaveOut(&Scenario::operations) | LeaveOut(&Scenario::jobs);
      smaller |= Shorten();
    }
  }
  const Scenario& best() const { return best_; }
  int runs() const { return runs_; }

 private:
  bool StillBreaks(const Scenario& scenario) {
    ++runs_;
    Result result = World(scenario, options_).Run();
    return result.violation.has_value() && result.violation->invariant == invariant_;
  }

  bool Try(Scenario scenario) {
    if (runs_ >= runs_max_ || !StillBreaks(scenario)) return false;
    best_ = std::move(scenario);
    return true;
  }

  // Tries to remove halves of the list first, then smaller and smaller parts of it.
  template <typename List>
  bool LeaveOut(List Scenario::*list) {
    bool any = false;
    for (size_t size = std::max<size_t>((best_.*list).size() / 2, 1); size >= 1; size /= 2) {
      for (size_t begin = 0; begin < (best_.*list).size();) {
        Scenario smaller = best_;
        auto from = (smaller.*list).begin() + static_cast<ptrdiff_t>(begin);
        auto to = (smaller.*list).begin() + static_cast<ptrdiff_t>(std::min(begin + size, (smaller.*list).size()));
        (smaller.*list).erase(from, to);
        bool accepted = Try(std::move(smaller));
        any |= accepted;
        if (!accepted) begin += size;
      }
    }
    return any;
  }

  bool Shorten() {
    bool any = false;
    // Removes hosts from the end, so that the remaining hosts keep their numbers.
    while (best_.hosts.size() > 1) {
      Scenario fewer = best_;
      fewer.hosts.pop_back();
      std::erase_if(fewer.faults, [&](const Fault& fault) { return fault.host >= fewer.hosts.size(); });
      std::erase_if(fewer.operations, [&](const Operation& operation) { return operation.host >= fewer.hosts.size(); });
      if (!Try(std::move(fewer))) break;
      any = true;
    }
    for (size_t i = 0; i < best_.jobs.size(); ++i) {
      Scenario fewer_ranks = best_;
      JobPlan& job = fewer_ranks.jobs[i];
      const uint32_t unit = job.is_script() ? std::max(1u, job.ranks_per_host) : job.stages * job.tensor;
      if (job.ranks > std::max(unit, job.min_ranks)) {
        job.ranks -= unit;
        any |= Try(std::move(fewer_ranks));
      }
    }
    return any;
  }

  Scenario best_;
  WorldOptions options_;
  const int runs_max_;
  std::string invariant_;
  int runs_ = 0;
};

}  // namespace

Shrunk Shrink(Scenario scenario, WorldOptions options, int runs_max) {
  Shrinker shrinker(std::move(scenario), options, runs_max);
  shrinker.Run();
  options.trace = true;
  return {.scenario = shrinker.best(), .result = World(shrinker.best(), options).Run(), .runs = shrinker.runs()};
}

}  // namespace trainyard::sim
