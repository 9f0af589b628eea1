// Calls its subscribers when a file in one of their folders is created, written or renamed, so that they do not poll
// folders that do not change. Uses one inotify instance, because a user has few of them (128 by default).
//
//   uint64_t subscriber = watch.Subscribe([this] { ... });
//   if (!watch.Watch(subscriber, folder)) ...   // look at the folder from time to time
//   watch.Unsubscribe(subscriber);
//
// A subscriber may be called late, and once for several changes, but never before a change. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace trainyard::agent {

class FolderWatch {
 public:
  using OnChange = std::function<void()>;

  FolderWatch() = default;
  ~FolderWatch();
  FolderWatch(const FolderWatch&) = delete;
  FolderWatch& operator=(const FolderWatch&) = delete;

  // `on_change` is called from the thread of this class and must not call methods of this class.
  uint64_t Subscribe(OnChange on_change);
  // Returns false if changes in the folder cannot be detected, because it does not exist or a limit of the kernel is
  // reached. A folder that is removed later is forgotten.
  bool Watch(uint64_t subscriber, const std::string& folder);
  // After this call, `on_change` is not called any more.
  void Unsubscribe(uint64_t subscriber);

 private:
  bool Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run();
  // Reads a buffer of events and calls the affected subscribers. Returns false if there was no event.
  bool ReadEvents();

  absl::Mutex mu_;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_subscriber_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, OnChange> subscribers_ ABSL_GUARDED_BY(mu_);
  std::map<int, std::set<uint64_t>> watches_ ABSL_GUARDED_BY(mu_);  // by inotify watch descriptor
  int inotify_ = -1;                                                // set once, before the thread is started
  int stop_ = -1;
  std::thread thread_;
};

}  // namespace trainyard::agent
