// Lists that do not fit into one page of the API, nor into the buffer of a reader: every reader gets every entry.
#include "coordinator/http/page_feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/http_limits.h"
#include "tests/unit/holds_in_time.h"

namespace trainyard {
namespace {

constexpr size_t kPage = 1'000;

// A reader of a stream of events. The test holds both ends of the socket, so the reader receives only in Read.
class Reader {
 public:
  Reader() : exchange_(std::make_shared<HttpExchange>(shared_, Head())) {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds_), 0);
    EXPECT_TRUE(exchange_->Begin({.type = "text/event-stream"}));
  }
  ~Reader() {
    exchange_->Close();
    close(fds_[0]);
    close(fds_[1]);
  }
  const std::shared_ptr<HttpExchange>& exchange() const { return exchange_; }

  // Receives what waits, and applies the events of hosts. Returns the received bytes.
  size_t Read() {
    size_t bytes = 0;
    char buffer[64 << 10];
    while (true) {
      const HttpExchange::Progress progress = exchange_->SendTo(fds_[0]);
      for (ssize_t n = 0; (n = recv(fds_[1], buffer, sizeof buffer, MSG_DONTWAIT)) > 0; bytes += size_t(n)) {
        text_.append(buffer, size_t(n));
      }
      if (progress != HttpExchange::Progress::kBlocked) break;
    }
    for (size_t end = 0; (end = text_.find("\n\n")) != std::string::npos; text_.erase(0, end + 2)) {
      static const std::string kHosts = "event: hosts\ndata: ";
      static const std::string kJobs = "event: jobs\ndata: ";
      const std::string event = text_.substr(0, end);
      const size_t at = event.find(kHosts);  // the head of the response is before the first event
      if (at != std::string::npos) Apply(nlohmann::json::parse(event.substr(at + kHosts.size())));
      const size_t at_jobs = event.find(kJobs);
      if (at_jobs != std::string::npos) ApplyJobs(nlohmann::json::parse(event.substr(at_jobs + kJobs.size())));
    }
    return bytes;
  }
  template <typename Done>
  bool ReadUntil(Done done) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    for (Read(); !done(); Read()) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(5));
    }
    return true;
  }

  std::map<std::string, std::string> notes;  // the trouble of each host, by its name
  std::map<std::string, std::string> steps;  // the last step of each job that was ever in the list, by its id
  int resets = 0;

 private:
  static HttpRequest Head() {
    HttpRequest head;
    head.method = "GET";
    head.is_http10 = true;  // so that the response is not chunked
    return head;
  }
  void Apply(const nlohmann::json& change) {
    if (change.value("reset", false)) {
      notes.clear();
      ++resets;
    }
    for (const auto& host : change["items"]) notes[host["name"]] = host.value("trouble", "");
    for (const std::string name : change["gone"]) notes.erase(name);
  }
  void ApplyJobs(const nlohmann::json& change) {
    for (const auto& job : change["items"]) steps[job["job_id"]] = job.value("last_step", "");
  }

  const std::shared_ptr<HttpShared> shared_ = std::make_shared<HttpShared>("", HttpObserver());
  const std::shared_ptr<HttpExchange> exchange_;
  int fds_[2];
  std::string text_;
};

class PageFeedTest : public testing::Test {
 protected:
  static std::string Name(size_t index) { return absl::StrFormat("h%05d", index); }
  void AddHosts(size_t count, size_t label_bytes) {
    absl::MutexLock lock(&mu_);
    for (size_t i = 0; i < count; ++i) {
      v1::HostStatus& host = hosts_[Name(i)];
      host.set_name(Name(i));
      (*host.mutable_labels())["filler"] = std::string(label_bytes, 'x');
    }
  }
  void SetTrouble(size_t index, const std::string& trouble) {
    absl::MutexLock lock(&mu_);
    hosts_.at(Name(index)).set_trouble(trouble);
  }
  void Remove(size_t index) {
    absl::MutexLock lock(&mu_);
    hosts_.erase(Name(index));
  }
  int rounds() {
    absl::MutexLock lock(&mu_);
    return rounds_;
  }

  // There is one job more than the list has room for. All jobs have made the same number of steps.
  static JobId JobAt(size_t index) { return JobId(absl::StrFormat("j%05d", index)); }
  v1::ListResponse Jobs(const ListJobs& list) {
    v1::ListResponse response;
    absl::MutexLock lock(&mu_);
    for (size_t index = kFeedJobs + 1; index-- > 0;) {
      const JobId id = JobAt(index);
      if (!list.only.empty() && std::count(list.only.begin(), list.only.end(), id) == 0) continue;
      if (list.only.empty() && index == 0) {
        response.set_next_page_token("the oldest job");
        break;
      }
      v1::Job& job = *response.add_jobs();
      job.set_job_id(id.value());
      job.set_submitted_unix_ms(static_cast<int64_t>(1'000 + index));
      job.set_last_step(job_steps_);
    }
    return response;
  }
  void MakeJobStep() {
    absl::MutexLock lock(&mu_);
    ++job_steps_;
  }

  // Answers as the core does.
  absl::StatusOr<Reply> Ask(const std::function<Event(CallId)>& make_event) {
    const Event event = make_event(CallId(1));
    if (std::holds_alternative<GetServerInfo>(event)) return Reply{CallId(1), absl::OkStatus(), v1::ServerInfo()};
    if (const auto* list = std::get_if<ListJobs>(&event)) return Reply{CallId(1), absl::OkStatus(), Jobs(*list)};
    const std::string& after = std::get<ListHosts>(event).request.page_token();
    v1::ListHostsResponse response;
    absl::MutexLock lock(&mu_);
    if (after.empty()) ++rounds_;
    for (auto it = hosts_.upper_bound(after); it != hosts_.end(); ++it) {
      if (response.hosts_size() == kPage) {
        response.set_next_page_token(response.hosts(kPage - 1).name());
        break;
      }
      *response.add_hosts() = it->second;
    }
    return Reply{CallId(1), absl::OkStatus(), std::move(response)};
  }

  absl::Mutex mu_;
  std::map<std::string, v1::HostStatus> hosts_ ABSL_GUARDED_BY(mu_);
  int rounds_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t job_steps_ ABSL_GUARDED_BY(mu_) = 1;
  PageFeed feed_{[this](const std::function<Event(CallId)>& make_event) { return Ask(make_event); }};
};

TEST_F(PageFeedTest, ListOfManyPages_ArrivesWhole_AndThenItsChanges) {
  AddHosts(5'000, 100);
  Reader reader;
  feed_.Subscribe("hosts", reader.exchange());
  ASSERT_TRUE(reader.ReadUntil([&] { return reader.notes.size() == 5'000; }))
      << "received " << reader.notes.size() << " of 5000 hosts";
  EXPECT_EQ(reader.resets, 1);

  SetTrouble(4'999, "no disk");
  AddHosts(5'001, 100);
  Remove(17);

  EXPECT_TRUE(reader.ReadUntil([&] {
    return reader.notes.count("h05000") == 1 && reader.notes.count("h00017") == 0 &&
           reader.notes["h04999"] == "no disk";
  }));
  EXPECT_EQ(reader.notes.size(), 5'000u);
  EXPECT_EQ(reader.resets, 1);
  Reader late;
  feed_.Subscribe("hosts", late.exchange());
  EXPECT_TRUE(late.ReadUntil([&] { return late.notes.size() == 5'000; }));
}

TEST_F(PageFeedTest, ReaderThatDoesNotRead_BuffersOnlyOnePart_AndMissesNoChange) {
  constexpr size_t kHosts = 3'000;
  AddHosts(kHosts, 2'000);  // 6 MB
  Reader reader;
  feed_.Subscribe("hosts", reader.exchange());
  ASSERT_TRUE(HoldsInTime([&] { return reader.exchange()->IsFull(); }));
  SetTrouble(0, "in the part that waits");
  SetTrouble(kHosts - 1, "in a later part");
  Remove(1);
  Remove(kHosts - 2);
  const int before = rounds();
  ASSERT_TRUE(HoldsInTime([&] { return rounds() >= before + 2; }));

  // Reading makes space, so the feed may send one more part meanwhile.
  EXPECT_LT(reader.Read(), limits::kHttpStreamBytes + 2 * kFeedPartBytes + (64 << 10));
  const size_t in_first_part = reader.notes.size();
  EXPECT_TRUE(reader.ReadUntil([&] { return reader.notes.size() == kHosts - 2 && !reader.notes["h00000"].empty(); }));

  EXPECT_LT(in_first_part, kHosts / 2);
  EXPECT_EQ(reader.resets, 1);
  EXPECT_EQ(reader.notes.at("h00000"), "in the part that waits");
  EXPECT_EQ(reader.notes.at("h02999"), "in a later part");
  EXPECT_EQ(reader.notes.count("h00001") + reader.notes.count("h02998"), 0u);
}

TEST_F(PageFeedTest, EmptyList_IsSentOnce) {
  Reader reader;
  feed_.Subscribe("hosts", reader.exchange());

  EXPECT_TRUE(reader.ReadUntil([&] { return reader.resets == 1; }));
  AddHosts(1, 10);
  EXPECT_TRUE(reader.ReadUntil([&] { return reader.notes.size() == 1; }));
  EXPECT_EQ(reader.resets, 1);
}

TEST_F(PageFeedTest, JobThatIsTooOldForTheList_StaysOutWhenItChanges) {
  Reader reader;
  feed_.Subscribe("jobs", reader.exchange());
  ASSERT_TRUE(reader.ReadUntil([&] { return reader.steps.size() == kFeedJobs; }));

  MakeJobStep();
  feed_.MarkJob(JobAt(0));
  feed_.MarkJob(JobAt(kFeedJobs));

  ASSERT_TRUE(reader.ReadUntil([&] { return reader.steps.at(JobAt(kFeedJobs).value()) == "2"; }));
  EXPECT_EQ(reader.steps.count(JobAt(0).value()), 0u);
}

}  // namespace
}  // namespace trainyard
