// The data of the status page as streams of events. Each topic (the jobs, the hosts, the events of the cluster, the
// totals, one job) is computed once for all of its readers, on a separate thread, and only while it has readers. The
// reader of a list gets all entries once, then only those that have changed; a slow reader gets the newest state of
// each entry later. A long list is sent in parts, each when its reader accepts more text, so a reader costs a bounded
// amount of memory however long the list is. Thread-safe.
//
//   event: info    data: ServerInfo, the totals
//   event: jobs    data: {"reset": true, "items": [Job, ...]}   then   {"items": [Job], "gone": ["JOB_ID"]}
//                  the rest of a long list follows its first part as changes
//   event: hosts, event: events    in the same form, of HostStatus and Event
//   event: job     data: Job
//
// The spec of a job is reduced to its name and its number of ranks, because a spec may contain secrets (access.h,
// HideSpecs).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/http_exchange.h"
#include "common/steady_cond_var.h"
#include "coordinator/core/effect.h"
#include "coordinator/core/event.h"

namespace trainyard {

inline constexpr size_t kFeedJobs = 1'000;  // the newest jobs
inline constexpr size_t kFeedEvents = 500;  // the newest events of the cluster
// The bytes of a part of a list; a part has at least one entry. 1,000 jobs fit into one part.
inline constexpr size_t kFeedPartBytes = 1 << 20;

class PageFeed {
 public:
  // Passes the event to the core, and returns the core's reply.
  using Ask = std::function<absl::StatusOr<Reply>(const std::function<Event(CallId)>& make_event)>;
  // The JSON of each entry of a list by its key. A topic that is no list has one entry with the key "".
  using Entries = std::map<std::string, std::string>;

  explicit PageFeed(Ask ask);
  ~PageFeed() { Stop(); }
  PageFeed(const PageFeed&) = delete;
  PageFeed& operator=(const PageFeed&) = delete;

  // Adds a reader, whose stream has begun, of "jobs", "hosts", "events" or "job/ID"; the reader of a list also gets the
  // totals.
  void Subscribe(const std::string& topic, const std::shared_ptr<HttpExchange>& exchange);
  // The job has changed. Cheap; called on the loop's thread.
  void MarkJob(const JobId& job);
  void Stop();

 private:
  struct Reader {
    std::shared_ptr<HttpExchange> exchange;
    bool has_begun = false;             // it has received the first part of the topic
    bool has_all = false;               // it has received the whole topic
    std::string last = {};              // the key of the last entry that it has received, until it has all
    std::set<std::string> behind = {};  // entries that have changed since it received them
  };
  struct Topic {
    Entries entries = {};
    // The hashes of the messages from which the entries of hosts were made. The JSON of a host is made again only if
    // its hash has changed.
    std::map<std::string, size_t> hashes = {};
    int64_t oldest_unix_ms = 0;                 // jobs submitted before this were left out, because the list was full
    bool known = false;                         // `entries` has been read
    absl::Time read_at = absl::InfinitePast();  // when all entries were last read
    std::vector<Reader> readers = {};
  };

  // A part of a list, and the key of its last entry. Made once for all readers who have received the entries before it.
  // `Parts` finds it by the key of the last entry before it; "" for the first part.
  struct Part {
    std::shared_ptr<const std::string> text = nullptr;
    std::string last = {};
  };
  using Parts = std::map<std::string, Part>;

  void Run();
  void TakeWork();
  void Update(const std::string& name, Topic& topic);
  bool ReadAll(const std::string& name, Topic& topic, std::set<std::string>& changed);
  absl::StatusOr<Entries> ReadEntries(const std::string& name, Topic& topic);
  absl::StatusOr<Entries> ReadHosts(Topic& topic);
  void ReadMarked(Topic& topic, std::set<std::string>& changed);
  void Replace(Entries entries, Topic& topic, std::set<std::string>& changed) const;
  void Send(const std::string& name, Topic& topic, const std::set<std::string>& changed) const;
  // Sends the parts of a topic that the reader has not received, while it has room.
  static void SendParts(const std::string& name, const Topic& topic, Reader& reader, Parts& parts);

  const Ask ask_;
  // Used by the thread alone.
  std::map<std::string, Topic> topics_;
  std::set<JobId> marked_;

  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool has_readers_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::pair<std::string, Reader>> new_readers_ ABSL_GUARDED_BY(mu_);
  std::set<JobId> new_marks_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace trainyard
