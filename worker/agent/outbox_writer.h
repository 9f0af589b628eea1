// Writes the outbox's file on a thread of its own, so that no fdatasync blocks the daemon's event thread: carries out
// StoreFacts and posts the result (FactsStored).
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

// The outbox's file; tests replace it by one on a full disk. Used by one thread at a time. Errors name the path;
// ResourceExhausted means a full disk.
class OutboxStorage {
 public:
  virtual ~OutboxStorage() = default;
  // Returns the whole content; empty if there is no file.
  virtual absl::StatusOr<std::string> Read() = 0;
  // Appends and syncs. After an error the end of the file may be torn.
  virtual absl::Status Append(absl::string_view bytes) = 0;
  // Replaces the content atomically: after a crash the file has either the old or the new content.
  virtual absl::Status Replace(absl::string_view bytes) = 0;
};

std::unique_ptr<OutboxStorage> NewOutboxFile(std::string path);

class OutboxWriter {
 public:
  using Post = std::function<void(Event)>;

  // Does not own `storage`; it must outlive this object.
  OutboxWriter(OutboxStorage& storage, Post post);
  // Before it returns, writes what was passed to Write.
  ~OutboxWriter();
  OutboxWriter(const OutboxWriter&) = delete;
  OutboxWriter& operator=(const OutboxWriter&) = delete;

  // REQUIRES: the FactsStored of the previous write was posted.
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
