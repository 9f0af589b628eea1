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
#include "common/limits.h"
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
// A job whose JSON has more bytes than this, because it has many ranks, is read less often, even after a change.
constexpr size_t kManyRanksBytes = 64 << 10;
constexpr absl::Duration kManyRanksInterval = absl::Seconds(3);
// A list of more hosts than this is read less often, because the core makes the complete list each time.
constexpr size_t kManyHosts = 1'000;
constexpr absl::Duration kManyHostsInterval = absl::Seconds(3);

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
  const double heard_unit = host.last_heard_s() < 600 ? 10 : 600;
  host.set_last_heard_s(std::floor(host.last_heard_s() / heard_unit) * heard_unit);
  host.set_clock_offset_s(std::round(host.clock_offset_s()));
  host.set_disk_free_bytes(static_cast<uint64_t>(std::floor(host.disk_free_bytes() / kDiskUnit) * kDiskUnit));
}

PageFeed::Entries EntriesOf(Reply reply) {
  PageFeed::Entries entries;
  if (auto* list = std::get_if<v1::ListResponse>(&reply.response)) {
    for (const v1::Job& job : list->jobs()) Add(job.job_id(), job, entries);
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

// Returns when the oldest job of a full list was submitted; 0: the list contains all jobs.
int64_t OldestOf(const Reply& reply) {
  const auto* list = std::get_if<v1::ListResponse>(&reply.response);
  const bool is_full = list != nullptr && !list->jobs().empty() && !list->next_page_token().empty();
  return is_full ? list->jobs().rbegin()->submitted_unix_ms() : 0;
}

Event QuestionFor(const std::string& name, CallId call) {
  if (name == kJobsTopic) {
    ListJobs list{call, {}, /*brief=*/true};
    list.request.set_page_size(kFeedJobs);
    return list;
  }
  if (name == kEventsTopic) {
    ListEvents list{call, {}};
    list.request.set_limit(kFeedEvents);
    return list;
  }
  if (name == kInfoTopic) return GetServerInfo{call};
  return GetJob{call, JobId(name.substr(sizeof kJobTopic - 1))};
}

absl::Duration IntervalOf(const std::string& name, size_t entries, size_t bytes) {
  if (name == kJobsTopic) return kJobsInterval;
  if (name == kHostsTopic && entries > kManyHosts) return kManyHostsInterval;
  return bytes > kManyRanksBytes && absl::StartsWith(name, kJobTopic) ? kManyRanksInterval : kListInterval;
}

bool IsList(const std::string& name) { return name != kInfoTopic && !absl::StartsWith(name, kJobTopic); }

std::string ListText(const std::string& name, bool is_first, const std::vector<absl::string_view>& items,
                     const std::vector<std::string>& gone) {
  return absl::StrCat("event: ", name, "\ndata: {", is_first ? "\"reset\":true," : "", "\"items\":[",
                      absl::StrJoin(items, ","), "],\"gone\":[", absl::StrJoin(gone, ","), "]}\n\n");
}

// Returns the text of an event with the next part of a list: the entries after the key `*last`. Sets `*last` to the key
// of the last entry in this part.
std::string PartText(const std::string& name, const PageFeed::Entries& entries, bool is_first, std::string* last) {
  std::vector<absl::string_view> items;
  size_t bytes = 0;
  for (auto entry = is_first ? entries.begin() : entries.upper_bound(*last);
       entry != entries.end() && (items.empty() || bytes + entry->second.size() <= kFeedPartBytes); ++entry) {
    items.push_back(entry->second);
    bytes += entry->second.size();
    *last = entry->first;
  }
  return ListText(name, is_first, items, {});
}

// Returns the text of an event with the changed entries, whose keys are `keys`, and removes the keys of those that fit
// into the text. A key without an entry is reported as gone.
std::string ChangeText(const std::string& name, const PageFeed::Entries& entries, std::set<std::string>& keys) {
  if (IsList(name)) {
    std::vector<absl::string_view> items;
    std::vector<std::string> gone;
    auto key = keys.begin();
    for (size_t bytes = 0; key != keys.end() && bytes < kFeedPartBytes; ++key) {
      const auto entry = entries.find(*key);
      entry == entries.end() ? gone.push_back(JsonText(*key)) : items.push_back(entry->second);
      bytes += entry == entries.end() ? key->size() : entry->second.size();
    }
    keys.erase(keys.begin(), key);
    return ListText(name, /*is_first=*/false, items, gone);
  }
  keys.clear();
  const bool is_job = name != kInfoTopic;
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
  if (!topic.known || is_marked || HttpNow() >= topic.read_at + IntervalOf(name, topic.entries.size(), bytes)) {
    if (!ReadAll(name, topic, changed)) return;
  } else if (name == kJobsTopic && !marked_.empty()) {
    ReadMarked(topic, changed);
  }
  Send(name, topic, changed);
}

// Returns whether the topic can be sent: false if the core has never answered for it. Without an answer, the topic
// keeps its entries and is read again in a later round.
bool PageFeed::ReadAll(const std::string& name, Topic& topic, std::set<std::string>& changed) {
  absl::StatusOr<Entries> entries = ReadEntries(name, topic);
  if (!entries.ok() && !absl::IsNotFound(entries.status())) return topic.known;
  Replace(entries.ok() ? *std::move(entries) : Entries(), topic, changed);
  topic.known = true;
  topic.read_at = HttpNow();
  return true;
}

absl::StatusOr<PageFeed::Entries> PageFeed::ReadEntries(const std::string& name, Topic& topic) {
  if (name == kHostsTopic) return ReadHosts(topic);
  absl::StatusOr<Reply> reply = ask_([&name](CallId call) { return QuestionFor(name, call); });
  if (!reply.ok()) return reply.status();
  topic.oldest_unix_ms = OldestOf(*reply);
  return EntriesOf(*std::move(reply));
}

// Reads all pages, whose hosts are at most limits::kHosts together. Each page is an event of its own, so that the core
// handles other events between them.
absl::StatusOr<PageFeed::Entries> PageFeed::ReadHosts(Topic& topic) {
  Entries entries;
  std::map<std::string, size_t> hashes;
  v1::ListHostsRequest request;
  do {
    absl::StatusOr<Reply> reply = ask_([&request](CallId call) { return ListHosts{call, request}; });
    if (!reply.ok()) return reply.status();
    auto& page = std::get<v1::ListHostsResponse>(reply->response);
    for (v1::HostStatus& host : *page.mutable_hosts()) {
      Steady(host);
      const size_t hash = std::hash<std::string>()(host.SerializeAsString());
      const auto before = topic.hashes.find(host.name());
      const auto known = topic.entries.find(host.name());
      if (before != topic.hashes.end() && before->second == hash && known != topic.entries.end()) {
        entries.emplace(known->first, known->second);
      } else {
        Add(host.name(), host, entries);
      }
      hashes[host.name()] = hash;
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty() && entries.size() < limits::kHosts);
  topic.hashes = std::move(hashes);
  return entries;
}

// Reads the jobs that have changed. A job that is too old for the list stays out of it: otherwise it would appear with
// each of its steps and disappear in the next round, which would read the complete list again.
void PageFeed::ReadMarked(Topic& topic, std::set<std::string>& changed) {
  const std::vector<JobId> jobs(marked_.begin(), marked_.end());
  absl::StatusOr<Reply> reply = ask_([&jobs](CallId call) { return ListJobs{call, {}, /*brief=*/true, jobs}; });
  if (!reply.ok()) {
    topic.read_at = absl::InfinitePast();
    return;
  }
  Entries entries = topic.entries;
  for (const JobId& job : jobs) entries.erase(job.value());
  for (const v1::Job& job : std::get<v1::ListResponse>(reply->response).jobs()) {
    const bool is_left_out = job.submitted_unix_ms() < topic.oldest_unix_ms && topic.entries.count(job.job_id()) == 0;
    if (!is_left_out) Add(job.job_id(), job, entries);
  }
  // A new job may displace the oldest one from the list. The next round reads the complete list, without that oldest
  // job.
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
  Parts parts;
  std::set<std::string> rest = changed;       // the changed keys that did not fit into `change`
  std::shared_ptr<const std::string> change;  // the text of the other changed keys, made once for all readers
  for (Reader& reader : topic.readers) {
    // Changed entries in parts that the reader has not received yet are left out, because those parts will have the
    // newest state.
    const auto end = reader.has_all     ? changed.end()
                     : reader.has_begun ? changed.upper_bound(reader.last)
                                        : changed.begin();
    reader.behind.insert(changed.begin(), end);
    SendParts(name, topic, reader, parts);
    while (reader.has_all && !reader.behind.empty() && !reader.exchange->IsFull()) {
      if (reader.behind != changed) {
        reader.exchange->Write(ChangeText(name, topic.entries, reader.behind));
        continue;
      }
      if (change == nullptr) change = std::make_shared<const std::string>(ChangeText(name, topic.entries, rest));
      reader.exchange->Write(change);
      reader.behind = rest;
    }
  }
}

void PageFeed::SendParts(const std::string& name, const Topic& topic, Reader& reader, Parts& parts) {
  if (!IsList(name)) {
    if (!reader.has_all) reader.behind.insert("");
    reader.has_begun = reader.has_all = true;
    return;
  }
  while (!reader.has_all && !reader.exchange->IsFull()) {
    Part& part = parts[reader.has_begun ? reader.last : ""];  // no entry of a list has an empty key
    if (part.text == nullptr) {
      part.last = reader.last;
      part.text = std::make_shared<const std::string>(PartText(name, topic.entries, !reader.has_begun, &part.last));
    }
    reader.exchange->Write(part.text);
    reader.last = part.last;
    reader.has_begun = true;
    reader.has_all = topic.entries.upper_bound(reader.last) == topic.entries.end();
  }
}

}  // namespace trainyard
