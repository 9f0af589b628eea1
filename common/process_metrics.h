// Metrics of this process with the names that Prometheus's client libraries use: CPU time, memory, descriptors, threads
// and the time of its start, read from /proc when a scrape asks for them. MetricsEndpoint adds them to every response.
#pragma once

#include <prometheus/metric_family.h>

#include <vector>

#include "common/metrics.h"

namespace trainyard {

// The specs of these metrics, in the order in which they are served.
const std::vector<MetricSpec>& ProcessMetricSpecs();

// Thread-safe. Leaves out what cannot be read.
std::vector<prometheus::MetricFamily> CollectProcessMetrics();

}  // namespace trainyard
