// Reads the values of metrics in tests.
#pragma once

#include <prometheus/metric_family.h>

#include <map>
#include <string>
#include <vector>

namespace trainyard {

// The values of a gauge or counter, or the counts of a histogram, by the value of this label.
inline std::map<std::string, double> ValuesOf(const std::vector<prometheus::MetricFamily>& families,
                                              const std::string& name, const std::string& label) {
  std::map<std::string, double> values;
  for (const auto& family : families) {
    if (family.name != name) continue;
    for (const auto& metric : family.metric) {
      std::string key;
      for (const auto& each : metric.label) key = each.name == label ? each.value : key;
      values[key] = metric.gauge.value + metric.counter.value + static_cast<double>(metric.histogram.sample_count);
    }
  }
  return values;
}

}  // namespace trainyard
