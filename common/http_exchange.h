// One HTTP request and its answer, which may come later and from any thread: a complete response, or a stream that ends
// when the handler ends it. Thread-safe.
//
//   exchange->Respond({.body = "{}"});
//
//   if (!exchange->Begin({.type = "text/event-stream"}, ": alive\n\n")) return;   // refused: too many streams
//   exchange->OnChange([...] { the stream is no longer full, or exchange->IsClosed() });
//   exchange->Write("data: 1\n\n");
//   exchange->End();
//
// A stream holds at most kHttpStreamBytes that its reader has not received, plus one text: a handler must write no more
// while IsFull.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/http_message.h"

namespace trainyard {

// Returns the time of the steady clock, in which arrivals and deadlines are given.
absl::Time HttpNow();

// What a server reports about its clients. Any function may be empty. They are called on any thread.
struct HttpObserver {
  std::function<void(int code)> responded = nullptr;  // a response or a stream began
  // A request or a connection was refused or ended early: the reason as a label of a metric, and the client's address.
  std::function<void(const char* reason, const std::string& peer)> refused = nullptr;
  std::function<void(size_t open)> streams = nullptr;  // the number of open streams has changed
};

// Makes the response to a request that the server itself refuses. `reason`: the same as in HttpObserver::refused.
// `plain`: the response in plain text, with the code and the headers to use. Called on any thread.
using HttpRefusal = std::function<HttpResponse(const char* reason, const HttpResponse& plain)>;

// The state that the exchanges share with their server, and that outlives the server.
class HttpShared {
 public:
  // `refusal` may be empty: refusals are in plain text.
  HttpShared(std::string headers, HttpObserver observer, HttpRefusal refusal = nullptr);
  ~HttpShared();
  HttpShared(const HttpShared&) = delete;
  HttpShared& operator=(const HttpShared&) = delete;

  void Wake() const;
  int wake_fd() const { return wake_fd_; }
  const std::string& headers() const { return headers_; }
  void Responded(int code) const;
  void Refused(const char* reason, const std::string& peer) const;
  HttpResponse MakeRefusal(const char* reason, HttpResponse plain) const;
  // Returns false if there are too many streams.
  bool AddStream();
  void RemoveStream();

 private:
  const int wake_fd_;
  const std::string headers_;
  const HttpObserver observer_;
  const HttpRefusal refusal_;
  std::atomic<size_t> streams_{0};
};

class HttpExchange {
 public:
  HttpExchange(std::shared_ptr<HttpShared> shared, const HttpRequest& head);
  ~HttpExchange();
  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  // ---- for handlers. Only the first Respond or Begin has an effect; once IsClosed, nothing is sent any more.

  void Respond(const HttpResponse& response);
  // Begins a stream with the code, type and headers of `head`. `heartbeat` is written when nothing else was written for
  // some time; empty: no heartbeat. Returns false if the answer has begun already, if the exchange is closed, or (after
  // a response with 503) if there are too many streams.
  bool Begin(const HttpResponse& head, std::string heartbeat = "");
  void Write(std::string text);
  // Several streams may share a text.
  void Write(const std::shared_ptr<const std::string>& text);
  void End();
  bool IsFull() const;
  bool HasBegun() const;
  // The client has gone, or the server has ended the exchange.
  bool IsClosed() const;
  // `changed` is called when a full stream accepts text again, and once when the exchange is closed (at once, if it is
  // closed already). It runs on the server's thread, or on the calling thread if the exchange is closed already, and
  // must not wait. From this call on, the server notices when a client of HTTP/1.1 disconnects before its answer has
  // begun, and then closes the exchange.
  void OnChange(std::function<void()> changed);

  // ---- for the server

  enum class Progress { kNothingToSend, kBlocked, kDone, kGone };
  // Sends what the socket accepts.
  Progress SendTo(int fd);
  // When to call Tick again.
  absl::Time wake_at() const;
  // Writes a heartbeat if it is due. Returns false if the reader is too slow.
  bool Tick(absl::Time now);
  bool is_stream() const;
  // Whether the server must detect that the client disconnects: OnChange was called, the answer has not begun, and the
  // client understands interim responses (HTTP/1.1).
  bool MustDetectDisconnect() const;
  void Close();

 private:
  using Text = std::shared_ptr<const std::string>;

  void Push(Text text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PushChunk(const Text& text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Drop(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // When the reader becomes too slow for the first text, or, if no text is queued, when the next heartbeat is due.
  absl::Time DueAt() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns the function of OnChange if a stream that was full is less than half full now; otherwise null.
  std::function<void()> CallbackIfRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<HttpShared> shared_;
  const bool with_body_;
  const bool chunked_;
  mutable absl::Mutex mu_;
  bool begun_ ABSL_GUARDED_BY(mu_) = false;
  bool streams_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;  // nothing follows what is queued
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool was_full_ ABSL_GUARDED_BY(mu_) = false;
  std::string heartbeat_ ABSL_GUARDED_BY(mu_);
  std::deque<Text> texts_ ABSL_GUARDED_BY(mu_);  // not sent yet
  size_t sent_ ABSL_GUARDED_BY(mu_) = 0;         // of the first text
  size_t unsent_ ABSL_GUARDED_BY(mu_) = 0;       // bytes of all texts
  absl::Time first_since_ ABSL_GUARDED_BY(mu_);  // since when the first text waits
  absl::Time written_ ABSL_GUARDED_BY(mu_);      // when something was queued last
  std::function<void()> changed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace trainyard
