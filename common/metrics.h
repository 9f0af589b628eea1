// The Prometheus metrics of a daemon. Each daemon has a table of MetricSpec from which it makes its metric families;
// docs/metrics.md is tested against the tables, so that code and documentation cannot differ. MetricsEndpoint serves
// the families, and adds metrics of the process.
//
//   constexpr MetricSpec kHosts = {"trainyard_hosts", MetricKind::kGauge, "Hosts by reachability.", "state"};
//   auto& hosts = GaugeFamily(*registry, kHosts);
//   ASSIGN_OR_RETURN(auto endpoint, MetricsEndpoint::Start({.address = "127.0.0.1:7071"}, registry));
//
// Thread-safe, as prometheus-cpp is. Names are trainyard_*; units are base units (seconds, bytes).
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/http_server.h"

namespace trainyard {

enum class MetricKind { kCounter, kGauge, kHistogram };

struct MetricSpec {
  const char* name;
  MetricKind kind;
  const char* help;         // one sentence
  const char* labels = "";  // names, separated by ", "
};

const char* MetricKindName(MetricKind kind);

// REQUIRES: `spec.kind` is the kind that the function makes.
prometheus::Family<prometheus::Counter>& CounterFamily(prometheus::Registry& registry, const MetricSpec& spec);
prometheus::Family<prometheus::Gauge>& GaugeFamily(prometheus::Registry& registry, const MetricSpec& spec);
prometheus::Family<prometheus::Histogram>& HistogramFamily(prometheus::Registry& registry, const MetricSpec& spec);

// Returns `labels` with those of `more` added.
prometheus::Labels LabelsWith(prometheus::Labels labels, const prometheus::Labels& more);

struct MetricsEndpointOptions {
  std::string address;  // host:port; port 0: any free port
  // True: the user did not choose the port. If it is in use, a free one is used, and `warning()` says so.
  bool may_use_free_port = false;
  // The options of the server, whose handler answers requests for other paths on the same port. Requests for /metrics
  // need no admission and have no body. `http.handle` may be empty: there are no other paths.
  HttpServerOptions http = {};
};

// Serves GET /metrics until destroyed. See http_server.h for its limits on clients.
class MetricsEndpoint {
 public:
  // Possible errors: those of ListenOn (listen.h).
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(const MetricsEndpointOptions& options,
                                                                std::shared_ptr<prometheus::Collectable> source);

  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  const std::string& address() const { return address_; }
  // Empty, or the sentence to log.
  const std::string& warning() const { return warning_; }

 private:
  MetricsEndpoint() = default;

  std::unique_ptr<HttpServer> server_;
  std::string address_;
  std::string warning_;
};

}  // namespace trainyard
