// The daemon's stream to the coordinator: opens one when the core says so, turns what comes into events, sends what the
// core emits. It decides nothing: when to dial and when to give up is the core's (core_session.cc).
//
// Each attempt has a channel of its own, so that it dials at once, whatever back-off the one before was in, looks anew
// at who listens there, and shows the newest token.
//
// [Note: last reference] gRPC 1.51 breaks when the last channel of a process is released on one of its own threads,
// where callbacks run. So a stream (or call), whose context holds the channel, is deleted before its end is told, and
// whoever owns the channel waits for that.
//
// Thread-safe. `post` is called from gRPC's threads; a message is read once the one before has been handled (ReadMore).
// Values are no business of the core: `take_values` is called from gRPC's threads, and what follows is read at once.
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

  // `coordinator.obey` is taken as true.
  Session(DialOptions coordinator, Post post, TakeValues take_values)
      : coordinator_(std::move(coordinator)), post_(std::move(post)), take_values_(std::move(take_values)) {
    coordinator_.obey = true;
  }
  // Ends the stream and waits for its last callback.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // REQUIRES: the SessionEnded of the Dial before has been posted.
  void Dial(const v1::Hello& hello);
  void HangUp(const std::string& reason);
  // Dropped when there is no stream: the core sends again what must not be lost.
  void Send(v1::AgentMessage message);
  void ReadMore();

  // Of the stream that is up, or was last; for other calls to the same coordinator. Null before the first Dial.
  CoordinatorChannel channel();

 private:
  class Stream;

  // From here on nobody uses the stream; it is deleted next.
  void ForgetStream();
  void StreamDeleted(absl::Status status);

  DialOptions coordinator_;  // not changed after construction
  const Post post_;
  const TakeValues take_values_;

  absl::Mutex mu_;
  CoordinatorChannel channel_ ABSL_GUARDED_BY(mu_);
  Stream* stream_ ABSL_GUARDED_BY(mu_) = nullptr;
  int undeleted_streams_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace trainyard::agent
