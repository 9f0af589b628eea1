// Writes the outbox's file on a thread of its own, so that no fdatasync holds up the daemon's event thread: takes what
// the core emits (StoreFacts), posts what came of it (FactsStored).
//
//   OutboxWriter writer(*storage, post);
//   writer.Write(std::move(store_facts));   // FactsStored follows
//
// Thread-safe. `post` is called from the writer's thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "worker/agent/events.h"

namespace trainyard::agent {

// Where the bytes go; a test hands in one that runs full. One thread at a time. Errors name the path; ResourceExhausted
// is a full disk.
class OutboxStorage {
 public:
  virtual ~OutboxStorage() = default;
  // All that is there; empty when there is nothing.
  virtual absl::StatusOr<std::string> Read() = 0;
  // Behind what is there, synced. After an error the end of the file may be torn.
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // Everything, at once: a crash leaves the old or the new.
  virtual absl::Status Replace(absl::string_view bytes) = 0;
};

std::unique_ptr<OutboxStorage> NewOutboxFile(std::string path);

class OutboxWriter {
 public:
  using Post = std::function<void(Event)>;

  // Does not own `storage`; it must outlive this object.
  OutboxWriter(OutboxStorage& storage, Post post);
  // What was given is still written.
  ~OutboxWriter();
  OutboxWriter(const OutboxWriter&) = delete;
  OutboxWriter& operator=(const OutboxWriter&) = delete;

  // REQUIRES: the FactsStored of the write before was posted.
  void Write(StoreFacts facts);

 private:
  void Run();

  OutboxStorage& storage_;
  const Post post_;
  absl::Mutex mu_;
  std::optional<StoreFacts> next_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace trainyard::agent
