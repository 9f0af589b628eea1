// Gauges whose series are computed anew for every scrape: those that were not set in a scrape are removed at its end.
// So no code is needed for jobs and hosts that end or disappear.
//
//   gauges.Begin();
//   gauges.Set(family, {{"job_id", id}}, 3);   // for each series that exists now
//   gauges.End();
//
// Must be used on one thread.
#pragma once

#include <prometheus/family.h>
#include <prometheus/gauge.h>

#include <cstdint>
#include <map>

namespace trainyard {

class GaugeSet {
 public:
  using Family = prometheus::Family<prometheus::Gauge>;

  void Begin() { ++scrape_; }

  void Set(Family& family, const prometheus::Labels& labels, double value) {
    Series& series = series_[&family][labels];
    if (series.gauge == nullptr) series.gauge = &family.Add(labels);
    series.scrape = scrape_;
    series.gauge->Set(value);
  }

  void End() {
    for (auto& [family, all] : series_) {
      std::erase_if(all, [this, family = family](const auto& one) {
        const bool is_over = one.second.scrape != scrape_;
        if (is_over) family->Remove(one.second.gauge);
        return is_over;
      });
    }
  }

 private:
  struct Series {
    prometheus::Gauge* gauge = nullptr;
    uint64_t scrape = 0;  // the scrape in which it was last set
  };
  uint64_t scrape_ = 0;
  std::map<Family*, std::map<prometheus::Labels, Series>> series_;
};

}  // namespace trainyard
