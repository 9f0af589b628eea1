// The daemon's stream to the coordinator: opens one when the core requests it, turns messages into events, sends what
// the core emits. It decides nothing: the core decides when to dial and when to give up (core_session.cc).
//
// Each attempt has a channel of its own, so that it dials immediately, without the back-off of an earlier channel,
// resolves the address again, and uses the newest token.
//
// [Note: last reference] gRPC 1.51 breaks when the last channel of a process is released on one of gRPC's own threads,
// where callbacks run. So a stream (or call), whose context holds the channel, is deleted before its end is reported,
// and the owner of the channel waits until all of its streams and calls are deleted.
//
// Thread-safe. `post` is called from gRPC's threads; a message is read after the previous one was handled (ReadMore).
// Values bypass the core: `take_values` is called from gRPC's threads, and the next message is read immediately.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/dial.h"
#include "worker/agent/events.h"

namespace trainyard::agent {

class Session {
 public:
  using Post = std::function<void(Event)>;

  using TakeValues = std::function<void(v1::StoreValues)>;

  // Sets `coordinator.requires_trusted_peer`.
  Session(DialOptions coordinator, Post post, TakeValues take_values)
      : coordinator_(std::move(coordinator)), post_(std::move(post)), take_values_(std::move(take_values)) {
    coordinator_.requires_trusted_peer = true;
  }
  // Ends the stream and waits for its last callback.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // REQUIRES: the SessionEnded of the previous Dial was posted.
  void Dial(const v1::Hello& hello);
  void HangUp(const std::string& reason);
  // Drops the message if there is no stream: the core sends again what must not be lost.
  void Send(v1::AgentMessage message);
  void ReadMore();

  // The channel of the present or last stream, for other calls to the same coordinator. Null before the first Dial.
  CoordinatorChannel channel();

 private:
  class Stream;

  // After this call nothing uses the stream; it is deleted next.
  void ForgetStream();
  void StreamDeleted(absl::Status status);

  DialOptions coordinator_;  // constant after construction
  const Post post_;
  const TakeValues take_values_;

  absl::Mutex mu_;
  CoordinatorChannel channel_ ABSL_GUARDED_BY(mu_);
  Stream* stream_ ABSL_GUARDED_BY(mu_) = nullptr;
  int undeleted_streams_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace trainyard::agent
