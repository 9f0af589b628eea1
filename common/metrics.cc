#include "common/metrics.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace trainyard {
namespace {

// The web server below reports a port it cannot bind by an exception, and nothing finer.
std::unique_ptr<prometheus::Exposer> TryListen(const std::string& address) {
  try {
    return std::make_unique<prometheus::Exposer>(address, 1);
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Connects and hangs up: whoever listens there wakes from its poll.
void Knock(const std::string& address) {
  size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  std::string port = address.substr(colon + 1);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return;
  int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0) {
    (void)connect(fd, found->ai_addr, found->ai_addrlen);
    close(fd);
  }
  freeaddrinfo(found);
}

}  // namespace

MetricsEndpoint::~MetricsEndpoint() {
  if (exposer_ == nullptr) return;
  absl::Notification stopped;
  std::thread knocker([&] {
    while (!stopped.WaitForNotificationWithTimeout(absl::Milliseconds(10))) Knock(address_);
  });
  exposer_.reset();
  stopped.Notify();
  knocker.join();
}

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

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(
    absl::string_view address, std::shared_ptr<prometheus::Collectable> source) {
  size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics address '", address, "' must be host:port with a port of 0 to 65535"));
  }
  std::string host(address.substr(0, colon));
  auto endpoint = std::unique_ptr<MetricsEndpoint>(new MetricsEndpoint);
  endpoint->exposer_ = TryListen(std::string(address));
  if (endpoint->exposer_ == nullptr && port != 0) endpoint->exposer_ = TryListen(absl::StrCat(host, ":0"));
  if (endpoint->exposer_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics cannot be served on ", address, ": '", host, "' is not an address of this host"));
  }
  std::vector<int> ports = endpoint->exposer_->GetListeningPorts();
  endpoint->address_ = absl::StrCat(host, ":", ports.empty() ? static_cast<int>(port) : ports.front());
  if (port != 0 && endpoint->address_ != address) {
    endpoint->warning_ =
        absl::StrCat("metrics port ", address, " is taken; serving on ", endpoint->address_, " instead");
  }
  endpoint->source_ = std::move(source);
  endpoint->exposer_->RegisterCollectable(endpoint->source_);
  return endpoint;
}

}  // namespace trainyard
