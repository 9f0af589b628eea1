#include "worker/agent/folder_watch.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <iterator>
#include <utility>

#include "common/clock.h"

namespace trainyard::agent {
namespace {

constexpr uint32_t kChanges = IN_CREATE | IN_MODIFY | IN_MOVED_TO | IN_ONLYDIR;
// While a file is written all the time, subscribers are called at this interval.
constexpr absl::Duration kBusyInterval = absl::Milliseconds(20);

}  // namespace

FolderWatch::~FolderWatch() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    (void)!write(stop_, &one, sizeof one);
    thread_.join();
  }
  if (inotify_ >= 0) close(inotify_);
  if (stop_ >= 0) close(stop_);
}

bool FolderWatch::Start() {
  if (std::exchange(started_, true)) return inotify_ >= 0;
  stop_ = eventfd(0, EFD_CLOEXEC);
  if (stop_ >= 0) inotify_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (inotify_ < 0) return false;
  thread_ = std::thread([this] { Run(); });
  return true;
}

uint64_t FolderWatch::Subscribe(OnChange on_change) {
  absl::MutexLock lock(&mu_);
  subscribers_[++last_subscriber_] = std::move(on_change);
  return last_subscriber_;
}

bool FolderWatch::Watch(uint64_t subscriber, const std::string& folder) {
  absl::MutexLock lock(&mu_);
  if (!Start()) return false;
  const int watch = inotify_add_watch(inotify_, folder.c_str(), kChanges);
  if (watch < 0) return false;
  watches_[watch].insert(subscriber);
  return true;
}

void FolderWatch::Unsubscribe(uint64_t subscriber) {
  absl::MutexLock lock(&mu_);
  subscribers_.erase(subscriber);
  for (auto at = watches_.begin(); at != watches_.end();) {
    at->second.erase(subscriber);
    if (at->second.empty()) inotify_rm_watch(inotify_, at->first);
    at = at->second.empty() ? watches_.erase(at) : std::next(at);
  }
}

void FolderWatch::Run() {
  Clock& clock = Clock::GetSteadyClock();
  absl::Time read_at = absl::InfinitePast();
  pollfd fds[2] = {{stop_, POLLIN, 0}, {inotify_, POLLIN, 0}};
  while (true) {
    if (poll(fds, 2, -1) < 0 && errno != EINTR) return;
    if (fds[0].revents != 0) return;
    if (fds[1].revents == 0) continue;
    if (clock.TimeNow() - read_at < kBusyInterval) {
      poll(fds, 1, static_cast<int>(absl::ToInt64Milliseconds(kBusyInterval)));
    }
    while (ReadEvents()) {
    }
    read_at = clock.TimeNow();
  }
}

bool FolderWatch::ReadEvents() {
  alignas(inotify_event) char buffer[16 << 10];
  const ssize_t size = read(inotify_, buffer, sizeof buffer);
  if (size <= 0) return false;
  absl::MutexLock lock(&mu_);
  std::set<int> changed;
  for (const char* at = buffer; at < buffer + size;) {
    const auto* event = reinterpret_cast<const inotify_event*>(at);
    at += sizeof *event + event->len;
    changed.insert(event->wd);  // -1: events were lost, so that anything may have changed
    // The folder was removed, or is not watched any more. The kernel does not reuse the watch's number soon.
    if ((event->mask & IN_IGNORED) != 0) watches_.erase(event->wd);
  }
  if (changed.contains(-1)) {
    for (const auto& [subscriber, on_change] : subscribers_) on_change();
    return true;
  }
  std::set<uint64_t> affected;
  for (const int watch : changed) {
    const auto found = watches_.find(watch);
    if (found != watches_.end()) affected.insert(found->second.begin(), found->second.end());
  }
  for (const uint64_t subscriber : affected) {
    if (const auto found = subscribers_.find(subscriber); found != subscribers_.end()) found->second();
  }
  return true;
}

}  // namespace trainyard::agent
