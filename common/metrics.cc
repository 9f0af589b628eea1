#include "common/metrics.h"

#include <prometheus/text_serializer.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "common/listen.h"
#include "common/process_metrics.h"
#include "common/scrape_server.h"

namespace trainyard {

const char* MetricKindName(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kGauge:
      return "gauge";
    case MetricKind::kHistogram:
      return "histogram";
  }
  return "unknown";
}

prometheus::Family<prometheus::Counter>& CounterFamily(prometheus::Registry& registry, const MetricSpec& spec) {
  return prometheus::BuildCounter().Name(spec.name).Help(spec.help).Register(registry);
}

prometheus::Family<prometheus::Gauge>& GaugeFamily(prometheus::Registry& registry, const MetricSpec& spec) {
  return prometheus::BuildGauge().Name(spec.name).Help(spec.help).Register(registry);
}

prometheus::Family<prometheus::Histogram>& HistogramFamily(prometheus::Registry& registry, const MetricSpec& spec) {
  return prometheus::BuildHistogram().Name(spec.name).Help(spec.help).Register(registry);
}

prometheus::Labels LabelsWith(prometheus::Labels labels, const prometheus::Labels& more) {
  labels.insert(more.begin(), more.end());
  return labels;
}

MetricsEndpoint::~MetricsEndpoint() = default;

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    const MetricsEndpointOptions& options, std::shared_ptr<prometheus::Collectable> source) {
  const std::string& address = options.address;
  auto endpoint = std::unique_ptr<MetricsEndpoint>(new MetricsEndpoint);
  absl::StatusOr<Listener> listener =
      ListenOn(address, options.may_use_free_port ? absl::ZeroDuration() : limits::kTakeOverWait);
  if (options.may_use_free_port && absl::IsUnavailable(listener.status())) {
    listener = ListenOn(absl::StrCat(address.substr(0, address.rfind(':')), ":0"), absl::ZeroDuration());
    if (listener.ok()) {
      endpoint->warning_ =
          absl::StrCat("metrics port ", address, " is in use; serving on ", listener->address, " instead");
    }
  }
  if (absl::IsUnavailable(listener.status())) {
    return absl::UnavailableError(absl::StrCat("metrics: ", listener.status().message(),
                                               "; stop the program that listens there, or give --metrics another "
                                               "address (port 0: any free port; an empty address: no metrics)"));
  }
  if (!listener.ok()) {
    return absl::Status(listener.status().code(), absl::StrCat("metrics: ", listener.status().message()));
  }
  endpoint->address_ = listener->address;
  endpoint->server_ = std::make_unique<ScrapeServer>(
      listener->fd,
      [source = std::move(source)] {
        std::vector<prometheus::MetricFamily> families = source->Collect();
        for (prometheus::MetricFamily& family : CollectProcessMetrics()) families.push_back(std::move(family));
        return prometheus::TextSerializer().Serialize(families);
      },
      options.answer_other);
  return endpoint;
}

}  // namespace trainyard
