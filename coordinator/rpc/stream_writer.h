// The writing side of a server stream: messages are written one at a time, in order, followed by the end. gRPC allows
// one write at a time and a single Finish; this class keeps both rules for calls from any thread. Thread-safe.
//
// The owner calls OnWriteDone from the reactor's callback of that name.
#pragma once

#include <grpcpp/support/status.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace trainyard {

template <typename Reactor, typename Message>
class StreamWriter {
 public:
  // `reactor` owns this object.
  explicit StreamWriter(Reactor* reactor) : reactor_(reactor) {}

  // Drops the message if the stream is ending.
  void Push(std::shared_ptr<const Message> message) {
    absl::MutexLock lock(&mu_);
    if (ending_) return;
    queue_.push_back(std::move(message));
    if (!writing_) WriteFirst();
  }

  // The number of messages that were not written yet, including the one that is being written.
  size_t waiting() const {
    absl::MutexLock lock(&mu_);
    return queue_.size();
  }

  // Ends the stream after the queued messages.
  void End(grpc::Status status) {
    absl::MutexLock lock(&mu_);
    if (ending_) return;
    ending_ = true;
    status_ = std::move(status);
    if (!writing_) FinishOnce();
  }

  // Ends the stream without the queued messages.
  void Abort(grpc::Status status) {
    absl::MutexLock lock(&mu_);
    queue_.resize(writing_ ? 1 : 0);
    if (!ending_) status_ = std::move(status);
    ending_ = true;
    if (!writing_) FinishOnce();
  }

  void OnWriteDone(bool ok) {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) {
      queue_.clear();
      if (!ending_) status_ = grpc::Status(grpc::StatusCode::CANCELLED, "the reader has disconnected");
      ending_ = true;
    }
    if (!queue_.empty()) {
      WriteFirst();
    } else if (ending_) {
      FinishOnce();
    }
  }

 private:
  void WriteFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    writing_ = true;
    reactor_->StartWrite(queue_.front().get());
  }
  void FinishOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!std::exchange(finished_, true)) reactor_->Finish(status_);
  }

  Reactor* const reactor_;
  mutable absl::Mutex mu_;
  std::deque<std::shared_ptr<const Message>> queue_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
