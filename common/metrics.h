// The /metrics endpoint of a daemon, and the rows that say which metrics there are. A daemon keeps one table of
// MetricSpec; its families are made from the table and docs/metrics.md is tested against it, so code and list cannot
// part.
//
//   constexpr MetricSpec kHosts = {"trainyard_hosts", MetricKind::kGauge, "Hosts by reachability.", "state"};
//   auto& hosts = GaugeFamily(*registry, kHosts);
//   ASSIGN_OR_RETURN(auto endpoint, MetricsEndpoint::Start("127.0.0.1:7071", registry));
//
// Thread-safe, as prometheus-cpp is. Names are trainyard_*, units are base units (seconds, bytes).
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace trainyard {

enum class MetricKind { kCounter, kGauge, kHistogram };

struct MetricSpec {
  const char* name;
  MetricKind kind;
  const char* help;         // one sentence
  const char* labels = "";  // names, parted by ", "
};

const char* MetricKindName(MetricKind kind);

// REQUIRES: the spec's kind is that of the function.
prometheus::Family<prometheus::Counter>& CounterFamily(prometheus::Registry& registry, const MetricSpec& spec);
prometheus::Family<prometheus::Gauge>& GaugeFamily(prometheus::Registry& registry, const MetricSpec& spec);
prometheus::Family<prometheus::Histogram>& HistogramFamily(prometheus::Registry& registry, const MetricSpec& spec);

// Serves GET /metrics until destroyed.
class MetricsEndpoint {
 public:
  // `address` is host:port; port 0: a free one. A port that is taken is no reason not to run: a free one is taken and
  // `warning()` says so. Possible errors: InvalidArgument: the address cannot be listened on at all.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(absl::string_view address,
                                                                std::shared_ptr<prometheus::Collectable> source);

  // Takes milliseconds, though the web server below looks at its stop flag only every second or two.
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  const std::string& address() const { return address_; }
  // Empty, or the sentence to log.
  const std::string& warning() const { return warning_; }

 private:
  MetricsEndpoint() = default;

  std::shared_ptr<prometheus::Collectable> source_;
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::string address_;
  std::string warning_;
};

}  // namespace trainyard
