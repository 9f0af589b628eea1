#include "coordinator/http/page_feed.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "coordinator/handlers/check_request.h"
#include "coordinator/http/api_status.h"
#include "coordinator/rpc/access.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard {
namespace {

// Changes of jobs are collected for this long and then sent together.
constexpr absl::Duration kRound = absl::Milliseconds(200);
constexpr absl::Duration kListInterval = absl::Seconds(1);
// All jobs are read again this often, because not every change is published.
constexpr absl::Duration kJobsInterval = absl::Seconds(5);
constexpr absl::Duration kManyRanksInterval = absl::Seconds(3);
constexpr size_t kManyRanksBytes = 64 << 10;

constexpr char kInfoTopic[] = "info";
constexpr char kJobsTopic[] = "jobs";
constexpr char kHostsTopic[] = "hosts";
constexpr char kEventsTopic[] = "events";
constexpr char kJobTopic[] = "job/";

static_assert(kFeedJobs <= kJobsPageMax);

std::string JsonText(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void Add(const std::string& key, const google::protobuf::Message& message, PageFeed::Entries& entries) {
  if (absl::StatusOr<std::string> json = MessageJson(message); json.ok()) entries[key] = *std::move(json);
}

// Removes or rounds the values that always change, so that an idle host is sent only once.
void Steady(v1::HostStatus& host) {
  constexpr double kDiskUnit = 256 << 20;
  if (host.reachable()) host.clear_last_heard_s();
  host.set_last_heard_s(std::floor(host.last_heard_s() / 10) * 10);
  host.set_clock_offset_s(std::round(host.clock_offset_s()));
  host.set_disk_free_bytes(static_cast<uint64_t>(std::floor(host.disk_free_bytes() / kDiskUnit) * kDiskUnit));
}

PageFeed::Entries EntriesOf(Reply reply) {
  PageFeed::Entries entries;
  if (auto* list = std::get_if<v1::ListResponse>(&reply.response)) {
    for (const v1::Job& job : list->jobs()) Add(job.job_id(), job, entries);
  } else if (auto* hosts = std::get_if<v1::ListHostsResponse>(&reply.response)) {
    for (v1::HostStatus& host : *hosts->mutable_hosts()) {
      Steady(host);
      Add(host.name(), host, entries);
    }
  } else if (auto* events = std::get_if<v1::ListEventsResponse>(&reply.response)) {
    for (const v1::Event& event : events->events()) Add(absl::StrCat(event.sequence()), event, entries);
  } else if (auto* job = std::get_if<v1::Job>(&reply.response)) {
    HideSpecs(*job);
    Add("", *job, entries);
  } else if (auto* info = std::get_if<v1::ServerInfo>(&reply.response)) {
    Add("", *info, entries);
  }
  return entries;
}

Event QuestionFor(const std::string& name, CallId call) {
  if (name == kJobsTopic) {
    ListJobs list{call, {}, /*brief=*/true};
    list.request.set_page_size(kFeedJobs);
    return list;
  }
  if (name == kHostsTopic) return ListHosts{call};
  if (name == kEventsTopic) {
    ListEvents list{call, {}};
    list.request.set_limit(kFeedEvents);
    return list;
  }
  if (name == kInfoTopic) return GetServerInfo{call};
  return GetJob{call, JobId(name.substr(sizeof kJobTopic - 1))};
}

absl::Duration IntervalOf(const std::string& name, size_t bytes) {
  if (name == kJobsTopic) return kJobsInterval;
  return bytes > kManyRanksBytes && absl::StartsWith(name, kJobTopic) ? kManyRanksInterval : kListInterval;
}

// Returns the text of an event with the entries of `keys`; null: all entries. Keys without an entry are listed as gone.
std::string ListText(const std::string& name, const PageFeed::Entries& entries, const std::set<std::string>* keys) {
  std::vector<absl::string_view> items;
  std::vector<std::string> gone;
  if (keys == nullptr) {
    for (const auto& [key, json] : entries) items.push_back(json);
  } else {
    for (const std::string& key : *keys) {
      const auto entry = entries.find(key);
      entry == entries.end() ? gone.push_back(JsonText(key)) : items.push_back(entry->second);
    }
  }
  return absl::StrCat("event: ", name, "\ndata: {", keys == nullptr ? "\"reset\":true," : "", "\"items\":[",
                      absl::StrJoin(items, ","), "],\"gone\":[", absl::StrJoin(gone, ","), "]}\n\n");
}

std::string TextOf(const std::string& name, const PageFeed::Entries& entries, const std::set<std::string>* keys) {
  const bool is_job = absl::StartsWith(name, kJobTopic);
  if (!is_job && name != kInfoTopic) return ListText(name, entries, keys);
  const auto entry = entries.find("");
  return entry == entries.end()
             ? ""
             : absl::StrCat("event: ", is_job ? "job" : kInfoTopic, "\ndata: ", entry->second, "\n\n");
}

}  // namespace

PageFeed::PageFeed(Ask ask) : ask_(std::move(ask)), thread_([this] { Run(); }) {}

void PageFeed::Subscribe(const std::string& topic, const std::shared_ptr<HttpExchange>& exchange) {
  absl::MutexLock lock(&mu_);
  new_readers_.emplace_back(topic, Reader{exchange});
  if (!absl::StartsWith(topic, kJobTopic)) new_readers_.emplace_back(kInfoTopic, Reader{exchange});
  has_readers_ = true;
  changed_.SignalAll();
}

void PageFeed::MarkJob(const JobId& job) {
  absl::MutexLock lock(&mu_);
  if (has_readers_) new_marks_.insert(job);
}

void PageFeed::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

void PageFeed::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      changed_.AwaitFor(&mu_, absl::InfiniteDuration(),
                        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || has_readers_; });
      // A new reader ends the round immediately; the other readers get all changes of a round together.
      changed_.AwaitFor(&mu_, kRound,
                        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !new_readers_.empty(); });
      if (stopping_) return;
    }
    TakeWork();
    for (auto& [name, topic] : topics_) Update(name, topic);
    marked_.clear();
  }
}

// Adds new readers. Removes readers whose connections are closed, and then topics without readers.
void PageFeed::TakeWork() {
  absl::MutexLock lock(&mu_);
  marked_.swap(new_marks_);
  for (auto& [name, reader] : new_readers_) topics_[name].readers.push_back(std::move(reader));
  new_readers_.clear();
  for (auto topic = topics_.begin(); topic != topics_.end();) {
    auto& readers = topic->second.readers;
    readers.erase(std::remove_if(readers.begin(), readers.end(),
                                 [](const Reader& reader) { return reader.exchange->IsClosed(); }),
                  readers.end());
    topic = readers.empty() ? topics_.erase(topic) : std::next(topic);
  }
  has_readers_ = !topics_.empty();
}

void PageFeed::Update(const std::string& name, Topic& topic) {
  std::set<std::string> changed;
  const size_t bytes = topic.entries.size() == 1 ? topic.entries.begin()->second.size() : 0;
  const bool is_marked = absl::StartsWith(name, kJobTopic) && bytes <= kManyRanksBytes &&
                         marked_.count(JobId(name.substr(sizeof kJobTopic - 1))) > 0;
  if (!topic.known || is_marked || HttpNow() >= topic.read_at + IntervalOf(name, bytes)) {
    if (!ReadAll(name, topic, changed)) return;
  } else if (name == kJobsTopic && !marked_.empty()) {
    ReadMarked(topic, changed);
  }
  Send(name, topic, changed);
}

// Returns false if the core has not answered; the next round asks again.
bool PageFeed::ReadAll(const std::string& name, Topic& topic, std::set<std::string>& changed) {
  absl::StatusOr<Reply> reply = ask_([&name](CallId call) { return QuestionFor(name, call); });
  if (!reply.ok() && !absl::IsNotFound(reply.status())) return topic.known;
  Replace(reply.ok() ? EntriesOf(*std::move(reply)) : Entries(), topic, changed);
  topic.known = true;
  topic.read_at = HttpNow();
  return true;
}

// Reads the jobs that have changed.
void PageFeed::ReadMarked(Topic& topic, std::set<std::string>& changed) {
  const std::vector<JobId> jobs(marked_.begin(), marked_.end());
  absl::StatusOr<Reply> reply = ask_([&jobs](CallId call) { return ListJobs{call, {}, /*brief=*/true, jobs}; });
  if (!reply.ok()) {
    topic.read_at = absl::InfinitePast();
    return;
  }
  Entries entries = topic.entries;
  for (const JobId& job : jobs) entries.erase(job.value());
  for (auto& [key, json] : EntriesOf(*std::move(reply))) entries[key] = std::move(json);
  // A new job may displace an older one, which the next complete list shows.
  if (entries.size() > kFeedJobs) topic.read_at = absl::InfinitePast();
  Replace(std::move(entries), topic, changed);
}

void PageFeed::Replace(Entries entries, Topic& topic, std::set<std::string>& changed) const {
  for (const auto& [key, json] : entries) {
    const auto before = topic.entries.find(key);
    if (before == topic.entries.end() || before->second != json) changed.insert(key);
  }
  for (const auto& [key, json] : topic.entries) {
    if (entries.count(key) == 0) changed.insert(key);
  }
  topic.entries = std::move(entries);
}

void PageFeed::Send(const std::string& name, Topic& topic, const std::set<std::string>& changed) const {
  std::shared_ptr<const std::string> all, difference;  // made once for all readers that need them
  for (Reader& reader : topic.readers) {
    if (!reader.has_all) reader.behind.clear();
    if (reader.has_all) reader.behind.insert(changed.begin(), changed.end());
    if (reader.exchange->IsFull() || (reader.has_all && reader.behind.empty())) continue;
    if (!reader.has_all) {
      if (all == nullptr) all = std::make_shared<const std::string>(TextOf(name, topic.entries, nullptr));
      reader.exchange->Write(all);
    } else if (reader.behind == changed) {
      if (difference == nullptr) {
        difference = std::make_shared<const std::string>(TextOf(name, topic.entries, &changed));
      }
      reader.exchange->Write(difference);
    } else {
      reader.exchange->Write(TextOf(name, topic.entries, &reader.behind));
    }
    reader.has_all = true;
    reader.behind.clear();
  }
}

}  // namespace trainyard
