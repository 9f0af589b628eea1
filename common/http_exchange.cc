#include "common/http_exchange.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/http_limits.h"

namespace trainyard {
namespace {

constexpr size_t kTextsPerSend = 32;

// How long a reader may take to receive a text of this size.
absl::Duration SendLimit(size_t bytes) {
  return limits::kHttpReaderWait + absl::Seconds(static_cast<double>(bytes) / limits::kHttpBytesPerSecond);
}

}  // namespace

absl::Time HttpNow() { return Clock::GetSteadyClock().TimeNow(); }

HttpShared::HttpShared(std::string headers, HttpObserver observer, HttpRefusal refusal)
    : wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      headers_(std::move(headers)),
      observer_(std::move(observer)),
      refusal_(std::move(refusal)) {}

HttpShared::~HttpShared() { close(wake_fd_); }

void HttpShared::Wake() const { eventfd_write(wake_fd_, 1); }

void HttpShared::Responded(int code) const {
  if (observer_.responded) observer_.responded(code);
}

void HttpShared::Refused(const char* reason, const std::string& peer) const {
  if (observer_.refused) observer_.refused(reason, peer);
}

HttpResponse HttpShared::MakeRefusal(const char* reason, HttpResponse plain) const {
  return refusal_ ? refusal_(reason, plain) : plain;
}

bool HttpShared::AddStream() {
  const size_t before = streams_.fetch_add(1);
  if (before >= limits::kHttpStreams) {
    streams_.fetch_sub(1);
    return false;
  }
  if (observer_.streams) observer_.streams(before + 1);
  return true;
}

void HttpShared::RemoveStream() {
  const size_t before = streams_.fetch_sub(1);
  if (observer_.streams) observer_.streams(before - 1);
}

HttpExchange::HttpExchange(std::shared_ptr<HttpShared> shared, const HttpRequest& head)
    : shared_(std::move(shared)), with_body_(head.method != "HEAD"), chunked_(!head.is_http10) {}

HttpExchange::~HttpExchange() {
  absl::MutexLock lock(&mu_);
  if (streams_ && !closed_) shared_->RemoveStream();
}

void HttpExchange::Respond(const HttpResponse& response) {
  {
    absl::MutexLock lock(&mu_);
    if (begun_ || closed_) return;
    begun_ = ended_ = true;
    Push(std::make_shared<const std::string>(SerializeHttpResponse(response, shared_->headers(), with_body_)));
  }
  shared_->Responded(response.code);
  shared_->Wake();
}

bool HttpExchange::Begin(const HttpResponse& head, std::string heartbeat) {
  if (IsClosed()) return false;
  if (!shared_->AddStream()) {
    shared_->Refused("too_many_streams", "");
    Respond(shared_->MakeRefusal(
        "too_many_streams",
        HttpText(503, "there are too many open streams; close some, or try again later\n", "Retry-After: 5\r\n")));
    return false;
  }
  {
    absl::MutexLock lock(&mu_);
    if (begun_ || closed_) {
      shared_->RemoveStream();
      return false;
    }
    begun_ = streams_ = true;
    ended_ = !with_body_;
    heartbeat_ = std::move(heartbeat);
    Push(std::make_shared<const std::string>(SerializeHttpHead(head, shared_->headers(), chunked_)));
  }
  shared_->Responded(head.code);
  shared_->Wake();
  return true;
}

void HttpExchange::Write(std::string text) { Write(std::make_shared<const std::string>(std::move(text))); }

void HttpExchange::Write(const std::shared_ptr<const std::string>& text) {
  if (text->empty()) return;  // an empty chunk would end the body
  {
    absl::MutexLock lock(&mu_);
    if (!streams_ || ended_ || closed_) return;
    PushChunk(text);
  }
  shared_->Wake();
}

void HttpExchange::End() {
  {
    absl::MutexLock lock(&mu_);
    if (!streams_ || ended_ || closed_) return;
    if (chunked_) Push(std::make_shared<const std::string>(SerializeHttpChunk("")));
    ended_ = true;
  }
  shared_->Wake();
}

bool HttpExchange::IsFull() const {
  absl::MutexLock lock(&mu_);
  return unsent_ >= limits::kHttpStreamBytes;
}

bool HttpExchange::HasBegun() const {
  absl::MutexLock lock(&mu_);
  return begun_;
}

bool HttpExchange::IsClosed() const {
  absl::MutexLock lock(&mu_);
  return closed_;
}

bool HttpExchange::is_stream() const {
  absl::MutexLock lock(&mu_);
  return streams_;
}

void HttpExchange::OnChange(std::function<void()> changed) {
  bool is_open = false;
  {
    absl::MutexLock lock(&mu_);
    is_open = !closed_;
    if (is_open) changed_ = std::move(changed);
  }
  if (!is_open) return changed();
  // The server now also polls for the disconnection of the client (MustDetectDisconnect).
  shared_->Wake();
}

bool HttpExchange::MustDetectDisconnect() const {
  absl::MutexLock lock(&mu_);
  return changed_ != nullptr && !begun_ && chunked_;  // HTTP/1.0 has no interim responses
}

void HttpExchange::Push(Text text) {
  const absl::Time now = HttpNow();
  if (texts_.empty()) first_since_ = now;
  written_ = now;
  unsent_ += text->size();
  texts_.push_back(std::move(text));
  if (unsent_ >= limits::kHttpStreamBytes) was_full_ = true;
}

void HttpExchange::PushChunk(const Text& text) {
  if (!chunked_) return Push(text);
  // The frame of a chunk, without a copy of its text.
  static const auto* kLineEnd = new Text(std::make_shared<const std::string>("\r\n"));
  Push(std::make_shared<const std::string>(absl::StrCat(absl::Hex(text->size()), "\r\n")));
  Push(text);
  Push(*kLineEnd);
}

HttpExchange::Progress HttpExchange::SendTo(int fd) {
  std::function<void()> changed;
  Progress progress = Progress::kNothingToSend;
  {
    absl::MutexLock lock(&mu_);
    while (!texts_.empty()) {
      iovec parts[kTextsPerSend];
      size_t count = 0;
      for (; count < std::min(texts_.size(), kTextsPerSend); ++count) {
        const size_t skipped = count == 0 ? sent_ : 0;
        parts[count] = {const_cast<char*>(texts_[count]->data()) + skipped, texts_[count]->size() - skipped};
      }
      msghdr message = {};
      message.msg_iov = parts;
      message.msg_iovlen = count;
      const ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        progress = errno == EAGAIN || errno == EWOULDBLOCK ? Progress::kBlocked : Progress::kGone;
        break;
      }
      Drop(static_cast<size_t>(n));
    }
    if (texts_.empty() && begun_ && ended_) progress = Progress::kDone;
    changed = CallbackIfRoom();
  }
  if (changed) changed();
  return progress;
}

void HttpExchange::Drop(size_t bytes) {
  unsent_ -= bytes;
  sent_ += bytes;
  while (!texts_.empty() && sent_ >= texts_.front()->size()) {
    sent_ -= texts_.front()->size();
    texts_.pop_front();
    first_since_ = HttpNow();
  }
}

std::function<void()> HttpExchange::CallbackIfRoom() {
  if (!was_full_ || unsent_ >= limits::kHttpStreamBytes / 2) return nullptr;
  was_full_ = false;
  return changed_;
}

absl::Time HttpExchange::wake_at() const {
  absl::MutexLock lock(&mu_);
  return DueAt();
}

absl::Time HttpExchange::DueAt() const {
  if (!texts_.empty()) return first_since_ + SendLimit(texts_.front()->size());
  if (streams_ && !ended_ && !heartbeat_.empty()) return written_ + limits::kHttpHeartbeat;
  return absl::InfiniteFuture();
}

bool HttpExchange::Tick(absl::Time now) {
  absl::MutexLock lock(&mu_);
  if (now < DueAt()) return true;
  if (!texts_.empty()) return false;
  PushChunk(std::make_shared<const std::string>(heartbeat_));
  return true;
}

void HttpExchange::Close() {
  std::function<void()> changed;
  {
    absl::MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = true;
    if (streams_) shared_->RemoveStream();
    texts_.clear();
    unsent_ = sent_ = 0;
    changed = std::move(changed_);
    changed_ = nullptr;
  }
  if (changed) changed();
}

}  // namespace trainyard
