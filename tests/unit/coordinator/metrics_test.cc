// The documented metrics are the served ones, series of a job are dropped with the job, and the metrics port serves
// scrapes despite slow clients.
#include "coordinator/http/metrics.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <future>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/files.h"
#include "common/limits.h"
#include "tests/unit/coordinator/fake_host.h"
#include "tests/unit/coordinator/metric_values.h"

namespace trainyard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

// Scrapes the metrics while the core handles rounds, because totals are counted only in a round.
std::vector<prometheus::MetricFamily> Scrape(CoordinatorMetrics& metrics, const Harness& harness) {
  auto scraped = std::async(std::launch::async, [&] { return metrics.Collect(); });
  while (scraped.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    metrics.ObserveRound({}, *harness.core, absl::UnixEpoch());
  }
  return scraped.get();
}

TEST(Metrics, DocumentedMetrics_AreThoseThatTheCodeServes) {
  auto text = ReadFile("docs/metrics.md");
  ASSERT_TRUE(text.ok()) << text.status();
  std::set<std::string> documented;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (!absl::ConsumePrefix(&line, "| `trainyard_") || absl::StartsWith(line, "worker_")) continue;
    documented.insert(absl::StrCat("| `trainyard_", absl::StrReplaceAll(line, {{"| |", "|  |"}})));
  }
  std::set<std::string> served;
  for (const MetricSpec& spec : CoordinatorMetricSpecs()) {
    served.insert(
        absl::StrCat("| `", spec.name, "` | ", MetricKindName(spec.kind), " | ", spec.labels, " | ", spec.help, " |"));
  }
  EXPECT_EQ(documented, served);
}

// Returns "job_id/job_name" for every series of a job.
std::vector<std::string> JobsOfSeries(CoordinatorMetrics& metrics) {
  std::vector<std::string> jobs;
  for (const auto& family : metrics.registry()->Collect()) {
    for (const auto& metric : family.metric) {
      std::string id;
      std::string name;
      for (const auto& label : metric.label) {
        EXPECT_NE(label.name, "job") << "Prometheus itself adds a label of this name to every series";
        if (label.name == "job_id") id = label.value;
        if (label.name == "job_name") name = label.value;
      }
      if (!id.empty()) jobs.push_back(absl::StrCat(id, "/", name));
    }
  }
  return jobs;
}

TEST(Metrics, JobSeries_NameTheJob_AndAreDroppedWhenItIsFinal) {
  Harness harness;
  const JobId job("job00000001");
  ASSERT_TRUE(harness.Submit(MakeSpec(1), job.value()).status.ok());
  const std::string name = harness.core->state().jobs.at(job).record.job().spec().name();
  CoordinatorMetrics metrics;
  auto event = std::make_shared<v1::Event>();
  event->mutable_step()->set_step(3);
  event->mutable_step()->set_loss(2.5);
  event->mutable_step()->set_tokens(64);
  event->mutable_step()->set_step_s(0.5);
  event->mutable_step()->set_exposed_communication_s(0.125);
  metrics.ObserveEffect(JobPublished{job, event});
  metrics.ObserveRound({}, *harness.core, absl::UnixEpoch());
  EXPECT_NE(name, "");
  EXPECT_EQ(JobsOfSeries(metrics), std::vector<std::string>(5 + 8, absl::StrCat(job.value(), "/", name)))
      << "step, loss, speed, waiting, bubble, and the eight parts of the job's time";

  metrics.ObserveEffect(JobEnded{job});
  EXPECT_THAT(JobsOfSeries(metrics), IsEmpty());
}

TEST(Metrics, JobWithCommand_HasNoSeriesOfSteps_UntilItReportsOne) {
  Harness harness;
  const JobId job("job00000001");
  v1::JobSpec spec = MakeSpec(1);
  spec.clear_train();
  spec.clear_parallel();
  spec.clear_checkpoint();
  spec.mutable_command()->add_argv("true");
  spec.mutable_command()->set_workdir("/");
  const absl::Status submitted = harness.Submit(spec, job.value()).status;
  ASSERT_TRUE(submitted.ok()) << submitted;
  CoordinatorMetrics metrics;
  Scrape(metrics, harness);
  EXPECT_EQ(JobsOfSeries(metrics).size(), 8) << "the eight parts of the job's time";

  auto event = std::make_shared<v1::Event>();
  event->mutable_step()->set_step(3);
  metrics.ObserveEffect(JobPublished{job, event});
  metrics.ObserveRound({}, *harness.core, absl::UnixEpoch());
  EXPECT_EQ(JobsOfSeries(metrics).size(), 4 + 8) << "a step without a loss";
  event->mutable_step()->set_loss(2.5);
  metrics.ObserveEffect(JobPublished{job, event});
  metrics.ObserveRound({}, *harness.core, absl::UnixEpoch());
  EXPECT_EQ(JobsOfSeries(metrics).size(), 5 + 8);

  metrics.ObserveEffect(JobEnded{job});
  EXPECT_THAT(JobsOfSeries(metrics), IsEmpty());
}

TEST(Metrics, SeriesOfANamespace_AreDroppedWithItsLastUnfinishedJob) {
  Harness harness;
  v1::JobSpec spec = MakeSpec(1);
  spec.set_namespace_("experiment-17");
  const absl::Status submitted = harness.Submit(spec, kJob).status;
  ASSERT_TRUE(submitted.ok()) << submitted;
  CoordinatorMetrics metrics;
  std::vector<prometheus::MetricFamily> scraped = Scrape(metrics, harness);
  EXPECT_THAT(ValuesOf(scraped, "trainyard_queue_jobs", "namespace"), ElementsAre(Pair("experiment-17", 1)));
  EXPECT_THAT(ValuesOf(scraped, "trainyard_preemptions_total", "namespace"), ElementsAre(Pair("experiment-17", 0)));

  ASSERT_TRUE(harness.Cancel(kJob).status.ok());

  scraped = Scrape(metrics, harness);
  EXPECT_THAT(ValuesOf(scraped, "trainyard_queue_jobs", "namespace"), IsEmpty());
  EXPECT_THAT(ValuesOf(scraped, "trainyard_preemptions_total", "namespace"), IsEmpty());
}

TEST(Metrics, NewReasonOfAState_CountsAsNoTransition) {
  Harness harness;
  FakeHost host(harness, "w1", 1, 11);
  ASSERT_TRUE(harness.Submit(MakeSpec(2), "job00000001").status.ok());
  host.Attach();  // it has too few slots, which is another reason to wait
  CoordinatorMetrics metrics;
  int states = 0;
  for (const JobPublished& published : harness.published) {
    metrics.ObserveEffect(published);
    states += published.event->has_state() ? 1 : 0;
  }

  ASSERT_GT(states, 1) << "the reason did not change";
  EXPECT_THAT(ValuesOf(metrics.registry()->Collect(), "trainyard_job_transitions_total", "state"),
              ElementsAre(Pair("queued", 1)));
}

TEST(Metrics, StepOfAJob_IsKnownAfterARestartOfTheCoordinator) {
  Harness harness;
  FakeHost host(harness, "w1", 1, 11);
  host.Attach();
  const std::string job = "job00000001";
  ASSERT_TRUE(harness.Submit(MakeSpec(1), job).status.ok());
  BringToRunning(harness, host, job);
  host.Report(Key(job, 1, 0), 1, 7);
  harness.Advance(absl::Seconds(2));  // the newest step is recorded once a second

  harness.Restart();
  CoordinatorMetrics metrics;
  Scrape(metrics, harness);

  EXPECT_THAT(ValuesOf(metrics.registry()->Collect(), "trainyard_job_step", "job_id"), ElementsAre(Pair(job, 7)));
}

TEST(Metrics, MemoryOfARank_IsShownWhileTheRankRuns) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  host.Attach();
  const std::string job = "job00000001";
  ASSERT_TRUE(harness.Submit(MakeSpec(2), job).status.ok());
  BringToRunning(harness, host, job);
  RankReportsReceived received{host.session, {}};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    v1::RankReport& report = *received.reports.add_reports();
    *report.mutable_key() = Key(job, 1, rank);
    report.add_memory()->set_kind("host");
    report.mutable_memory(0)->set_bytes(100 + rank);
  }
  harness.Handle(std::move(received));
  CoordinatorMetrics metrics;
  Scrape(metrics, harness);
  EXPECT_THAT(ValuesOf(metrics.registry()->Collect(), "trainyard_rank_memory_bytes", "rank"),
              ElementsAre(Pair("0", 100), Pair("1", 101)));

  host.Exit(Key(job, 1, 1), 1);
  Scrape(metrics, harness);
  EXPECT_THAT(ValuesOf(metrics.registry()->Collect(), "trainyard_rank_memory_bytes", "rank"),
              ElementsAre(Pair("0", 100)));
}

TEST(Metrics, Totals_AreCountedForEachScrape) {
  Harness harness;
  FakeHost host(harness, "w1", 2, 11);
  CoordinatorMetrics metrics;
  EXPECT_EQ(ValuesOf(Scrape(metrics, harness), "trainyard_hosts", "state").at("attached"), 0);

  host.Attach();

  EXPECT_EQ(ValuesOf(Scrape(metrics, harness), "trainyard_hosts", "state").at("attached"), 1)
      << "the totals were counted before this scrape";
}

TEST(Metrics, PortInUse_FailsTheStart_UnlessItIsTheDefault) {
  CoordinatorMetrics metrics;
  auto first = MetricsEndpoint::Start({.address = "127.0.0.1:0"}, metrics.registry());
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT((*first)->warning(), IsEmpty());

  absl::Status chosen = MetricsEndpoint::Start({.address = (*first)->address()}, metrics.registry()).status();
  EXPECT_TRUE(absl::IsUnavailable(chosen)) << chosen;
  EXPECT_THAT(std::string(chosen.message()), HasSubstr(absl::StrCat("port ", (*first)->address(), " is in use")));

  auto moved = MetricsEndpoint::Start({.address = (*first)->address(), .may_use_free_port = true}, metrics.registry());
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_NE((*moved)->address(), (*first)->address());
  EXPECT_EQ((*moved)->warning(), absl::StrCat("metrics port ", (*first)->address(), " is in use; serving on ",
                                              (*moved)->address(), " instead"));
  for (const char* address : {"nonsense", "192.0.2.1:0", "127.0.0.1:70000"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(MetricsEndpoint::Start({.address = address}, metrics.registry()).status()))
        << address;
  }
}

// A client of the metrics port.
class Client {
 public:
  explicit Client(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    to.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to), 0) << strerror(errno);
  }
  ~Client() { close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void Send(const std::string& text) const {
    EXPECT_EQ(send(fd_, text.data(), text.size(), MSG_NOSIGNAL), ssize_t(text.size()));
  }
  // Reads everything until the end.
  std::string Read() const {
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = recv(fd_, buffer, sizeof buffer, 0)) > 0;) text.append(buffer, static_cast<size_t>(n));
    return text;
  }
  std::string Request(const std::string& line) const {
    Send(absl::StrCat(line, "\r\nHost: h\r\n\r\n"));
    return Read();
  }

 private:
  int fd_;
};

TEST(MetricsEndpoint, SilentAndSlowClients_DelayNoScrape) {
  CoordinatorMetrics metrics;
  auto endpoint = MetricsEndpoint::Start({.address = "127.0.0.1:0"}, metrics.registry());
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  std::deque<Client> crowd;
  for (size_t i = 0; i < 3 * limits::kScrapeConnections; ++i) {
    crowd.emplace_back((*endpoint)->address());
    if (i % 2 == 1) crowd.back().Send("GET /metrics HTTP/1.1\r\nX-Slow: ");
  }
  const absl::Time begin = absl::Now();

  for (int i = 0; i < 20; ++i) {
    EXPECT_THAT(Client((*endpoint)->address()).Request("GET /metrics HTTP/1.1"),
                AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("\ntrainyard_coordinator_build_info{")));
  }

  EXPECT_LT(absl::Now() - begin, limits::kScrapeWait) << "a scrape waited for another client";
  EXPECT_EQ(crowd.front().Read(), "") << "the client that was connected longest without a request must be closed";
}

TEST(MetricsEndpoint, AnswersOnlyGetAndHeadOfItsPage) {
  CoordinatorMetrics metrics;
  auto endpoint = MetricsEndpoint::Start({.address = "127.0.0.1:0"}, metrics.registry());
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const auto request = [&](const std::string& line) { return Client((*endpoint)->address()).Request(line); };

  const std::string page = request("GET /metrics?x=1 HTTP/1.0");
  EXPECT_THAT(page, AllOf(HasSubstr("Content-Type: text/plain; version=0.0.4"),
                          HasSubstr(absl::StrCat("Content-Length: ", page.size() - page.find("\r\n\r\n") - 4, "\r\n")),
                          Not(HasSubstr("exposer_"))));
  const std::string head = request("HEAD /metrics HTTP/1.1");
  // The length may differ: the metrics of the process change.
  const auto without_length = [](const std::string& response) {
    const std::string header = response.substr(0, response.find("\r\n\r\n") + 4);
    const size_t length = header.find("Content-Length: ");
    return header.substr(0, length) + header.substr(header.find("\r\n", length));
  };
  EXPECT_EQ(without_length(head), without_length(page));
  EXPECT_EQ(head.find("\r\n\r\n") + 4, head.size());
  EXPECT_THAT(request("GET / HTTP/1.1"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(request("POST /metrics HTTP/1.1"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(request("nonsense"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(request(std::string(limits::kScrapeRequestBytes - 30, 'x')), StartsWith("HTTP/1.1 400 "));
  Client endless((*endpoint)->address());
  endless.Send(std::string(limits::kScrapeRequestBytes + 1, 'x'));
  EXPECT_THAT(endless.Read(), StartsWith("HTTP/1.1 431 "));
}

}  // namespace
}  // namespace trainyard
