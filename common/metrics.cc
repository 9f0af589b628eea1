#include "common/metrics.h"

#include <prometheus/text_serializer.h>

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/limits.h"
#include "common/listen.h"
#include "common/process_metrics.h"

namespace trainyard {
namespace {

constexpr char kPath[] = "/metrics";
// The type that Prometheus requests.
constexpr char kType[] = "text/plain; version=0.0.4; charset=utf-8";

// Collects the metrics once for all requests that arrived before the collection. Thread-safe.
class Scraper {
 public:
  explicit Scraper(std::shared_ptr<prometheus::Collectable> source) : source_(std::move(source)) {}

  std::string Scrape(absl::Time arrival) {
    absl::MutexLock lock(&mu_);
    if (arrival > begun_) {
      begun_ = HttpNow();
      std::vector<prometheus::MetricFamily> families = source_->Collect();
      for (prometheus::MetricFamily& family : CollectProcessMetrics()) families.push_back(std::move(family));
      text_ = prometheus::TextSerializer().Serialize(families);
    }
    return text_;
  }

 private:
  const std::shared_ptr<prometheus::Collectable> source_;
  absl::Mutex mu_;
  absl::Time begun_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();  // when the collection of the text began
  std::string text_ ABSL_GUARDED_BY(mu_);
};

// Returns the options of a server that answers requests for /metrics, and handles all other requests as `options` says.
HttpServerOptions AddMetrics(HttpServerOptions options, std::shared_ptr<Scraper> scraper) {
  options.admit = [admit = options.admit](const HttpRequest& head) -> absl::optional<HttpResponse> {
    if (head.path == kPath && head.content_length == 0) return absl::nullopt;
    return admit ? admit(head) : absl::nullopt;
  };
  options.handle = [handle = options.handle, scraper = std::move(scraper)](HttpRequest request,
                                                                           std::shared_ptr<HttpExchange> exchange) {
    if (request.path != kPath && handle) return handle(std::move(request), std::move(exchange));
    if (request.method != "GET" && request.method != "HEAD") {
      return exchange->Respond(HttpText(405, "use GET\n", "Allow: GET, HEAD\r\n"));
    }
    if (request.path != kPath) {
      return exchange->Respond(HttpText(404, absl::StrCat("the metrics are at ", kPath, "\n")));
    }
    exchange->Respond({.code = 200, .type = kType, .body = scraper->Scrape(request.arrival)});
  };
  return options;
}

}  // namespace

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
  endpoint->server_ = std::make_unique<HttpServer>(
      listener->fd, AddMetrics(options.http, std::make_shared<Scraper>(std::move(source))));
  return endpoint;
}

}  // namespace trainyard
