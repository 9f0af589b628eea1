#include "coordinator/core/core_loop.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/error_details.h"
#include "common/limits.h"
#include "common/status_macros.h"
#include "coordinator/core/commits.h"

namespace trainyard {
namespace {

constexpr size_t kBatchEvents = 1'024;
// A batch with more records is committed immediately, not held to be committed with the next batches (kHoldMax).
constexpr size_t kHoldRecords = 1'024;
constexpr absl::Duration kTickInterval = absl::Milliseconds(100);
// The store does its housekeeping when nothing has been committed for this time.
constexpr absl::Duration kQuietTime = absl::Milliseconds(100);
constexpr absl::Duration kStoreCheckInterval = absl::Seconds(1);
// A commit that the store refuses is tried again after 50 ms, then after twice as long each time, up to a second. The
// refusal is logged every 30 s.
constexpr absl::Duration kRetryMin = absl::Milliseconds(50);
constexpr absl::Duration kRetryMax = absl::Seconds(1);
constexpr absl::Duration kStallLogInterval = absl::Seconds(30);

void CheckInvariants(const Core& core, const Event* event) {
#ifdef TRAINYARD_CHECK_INVARIANTS
  if (absl::Status status = core.Check(); !status.ok()) {
    std::fprintf(stderr, "invariant broken after %s: %s\n", event == nullptr ? "start" : NameOf(*event),
                 std::string(status.message()).c_str());
    std::abort();
  }
#else
  (void)core;
  (void)event;
#endif
}

// Whether the event only reads. Reads are answered from memory even if the disk fails.
bool IsRead(const Event& event) {
  return std::visit(
      [](const auto& what) {
        using T = std::decay_t<decltype(what)>;
        return std::is_same_v<T, GetJob> || std::is_same_v<T, ListJobs> || std::is_same_v<T, FindJobs> ||
               std::is_same_v<T, ListHosts> || std::is_same_v<T, ListEvents> || std::is_same_v<T, GetServerInfo> ||
               std::is_same_v<T, GetQueue>;
      },
      event);
}

// Returns the call that waits for an answer; none: the event is not a call. While the store refuses records, a call is
// refused rather than left waiting.
std::optional<CallId> CallOf(const Event& event) {
  return std::visit(
      [](const auto& what) -> std::optional<CallId> {
        if constexpr (requires { what.call; }) {
          return what.call;
        } else {
          return std::nullopt;
        }
      },
      event);
}

// Whether a caller or a daemon waits for the effect, so that it must be released immediately. Logs, metrics and
// acknowledgements can be held.
bool IsAwaited(const Effect& effect) {
  return std::visit(
      [](const auto& what) {
        using T = std::decay_t<decltype(what)>;
        if constexpr (std::is_same_v<T, SendToHost>) {
          return !what.message.has_ack();
        } else {
          return !(std::is_same_v<T, WriteLog> || std::is_same_v<T, JobPublished> || std::is_same_v<T, EventsDropped> ||
                   std::is_same_v<T, FailureCounted> || std::is_same_v<T, SaveCounted>);
        }
      },
      effect);
}

bool IsTransient(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
}

}  // namespace

CoreLoop::CoreLoop(Options options) : options_(std::move(options)), revision_(options_.revision) {}

CoreLoop::~CoreLoop() { Stop(); }

void CoreLoop::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void CoreLoop::Stop() {
  options_.queue->Close();
  if (thread_.joinable()) thread_.join();
}

void CoreLoop::Loop() {
  while (true) {
    bool closed = options_.queue->closed();
    // The core's time stands still while the store refuses records, so there is no tick to wake up for.
    absl::Time until = std::min({stalled_.has_value() ? retry_at_ : next_tick_, flush_at_, held_until_});
    absl::StatusOr<size_t> handled = RunOnce(until);
    if (!handled.ok()) {
      options_.queue->Close();
      options_.failed(handled.status());
      return;
    }
    if (closed && *handled == 0) return;
  }
}

std::vector<Event> CoreLoop::TakeBatch(absl::Time until) {
  if (deferred_.empty()) return options_.queue->Take(until - options_.clock->TimeNow(), kBatchEvents);
  size_t count = std::min(deferred_.size(), kBatchEvents);
  auto end = deferred_.begin() + static_cast<ptrdiff_t>(count);
  std::vector<Event> batch(std::make_move_iterator(deferred_.begin()), std::make_move_iterator(end));
  deferred_.erase(deferred_.begin(), end);
  for (const Event& event : batch) deferred_bytes_ -= QueuedBytes(event);
  return batch;
}

absl::StatusOr<size_t> CoreLoop::RunOnce(absl::Time until) {
  if (stalled_.has_value()) return RunStalled(until);
  std::vector<Event> batch = TakeBatch(until);
  size_t handled = batch.size();
  Clock& wall = options_.wall == nullptr ? *options_.clock : *options_.wall;
  const CoreTime now = last_now_ = time_.Advance(options_.clock->TimeNow(), wall.TimeNow());
  if (options_.check_store && now.steady >= next_store_check_) {
    next_store_check_ = now.steady + kStoreCheckInterval;
    if (absl::Status found = options_.check_store(); !found.ok() && !IsTransient(found)) return found;
  }
  Unwritten unwritten = std::exchange(held_, {});
  LoopRound& round = unwritten.round;
  round.queue_length = options_.queue->size() + deferred_.size();
  round.reports_dropped += options_.queue->TakeDroppedReports();
  const auto collect = [&](Output output) {
    round.records += output.records.size();
    if (!output.records.empty()) unwritten.turns.push_back(std::move(output.records));
    std::move(output.effects.begin(), output.effects.end(), std::back_inserter(unwritten.effects));
  };
  if (!std::exchange(started_core_, true)) {
    collect(options_.core->Start(now));
    CheckInvariants(*options_.core, nullptr);
  }
  if (now.steady >= next_tick_) {
    // The tick comes after the batch, so that a contact is not handled before the events that arrived with it.
    Tick tick{options_.contacts ? options_.contacts() : std::vector<Tick::Contact>()};
    for (Tick::Contact& contact : tick.contacts) contact.time = time_.FromSteady(contact.time);
    batch.push_back(std::move(tick));
    next_tick_ = now.steady + kTickInterval;
  }
  absl::Time begin = Clock::GetSteadyClock().TimeNow();
  for (Event& event : batch) {
    if (std::optional<Reply> answer = AnswerIfGivenUp(event)) {
      unwritten.effects.push_back(*std::move(answer));
      continue;
    }
    round.events.push_back(NameOf(event));
#ifdef TRAINYARD_CHECK_INVARIANTS
    Event copy = event;
    collect(options_.core->Handle(std::move(event), now));
    CheckInvariants(*options_.core, &copy);
#else
    collect(options_.core->Handle(std::move(event), now));
#endif
  }
  round.handle_time += Clock::GetSteadyClock().TimeNow() - begin;
  if (held_until_ == absl::InfiniteFuture()) held_until_ = now.steady + kHoldMax;
  if (MayHold(unwritten) && now.steady < held_until_) {
    held_ = std::move(unwritten);
    flush_at_ = options_.clock->TimeNow() + options_.sink->Flush();
    return handled;
  }
  held_until_ = absl::InfiniteFuture();
  unwritten.commits = MakeCommits(std::exchange(unwritten.turns, {}));
  if (!unwritten.commits.empty()) last_commit_at_ = now.steady;
  RETURN_IF_ERROR(Write(std::move(unwritten)));
  if (now.steady - last_commit_at_ >= kQuietTime && !stalled_.has_value()) options_.store->TidyUp();
  return handled;
}

std::optional<Reply> CoreLoop::AnswerIfGivenUp(const Event& event) const {
  const std::optional<CallId> call = CallOf(event);
  if (!call.has_value() || !options_.check_waiting) return std::nullopt;
  absl::Status waiting = options_.check_waiting(*call);
  if (waiting.ok()) return std::nullopt;
  return Reply{*call, std::move(waiting), {}};
}

bool CoreLoop::MayHold(const Unwritten& unwritten) const {
  if (unwritten.turns.empty() || unwritten.round.records > kHoldRecords || options_.queue->closed()) return false;
  return std::none_of(unwritten.effects.begin(), unwritten.effects.end(), IsAwaited);
}

// Writes all commits, or up to the first that the store refuses; then the rest waits, and so does every effect.
absl::Status CoreLoop::Write(Unwritten unwritten) {
  absl::Time begin = Clock::GetSteadyClock().TimeNow();
  for (; unwritten.written < unwritten.commits.size(); ++unwritten.written) {
    absl::StatusOr<uint64_t> revision = options_.store->Commit(unwritten.commits[unwritten.written], revision_);
    if (!revision.ok()) {
      if (!IsTransient(revision.status())) return revision.status();
      Stall(std::move(unwritten), revision.status());
      return absl::OkStatus();
    }
    revision_ = *revision;
  }
  if (!unwritten.commits.empty()) unwritten.round.commit_time = Clock::GetSteadyClock().TimeNow() - begin;
  Release(unwritten);
  return absl::OkStatus();
}

void CoreLoop::Release(Unwritten& written) {
  for (Effect& effect : written.effects) options_.sink->Release(std::move(effect));
  flush_at_ = options_.clock->TimeNow() + options_.sink->Flush();
  Observe(written.round);
}

void CoreLoop::Observe(const LoopRound& round) {
  if (options_.observe) options_.observe(round, *options_.core);
}

void CoreLoop::Stall(Unwritten unwritten, const absl::Status& status) {
  absl::Time now = options_.clock->TimeNow();
  bool first = retry_wait_ == absl::ZeroDuration();
  if (first) stalled_since_ = now;
  retry_wait_ = first ? kRetryMin : std::min(retry_wait_ * 2, kRetryMax);
  retry_at_ = now + retry_wait_;
  stalled_ = std::move(unwritten);
  time_.HoldUp();
  if (first && options_.stalled) options_.stalled(std::string(status.message()));
  if (first || now - logged_at_ >= kStallLogInterval) {
    logged_at_ = now;
    options_.sink->Release(
        WriteLog{WriteLog::Level::kError,
                 absl::StrCat("the store accepts no records: ", std::string(status.message()),
                              "; nothing is acknowledged until it does; jobs continue, and the store is tried again")});
  }
  LoopRound round;
  round.commit_failures = 1;
  round.stalled = true;
  round.queue_length = options_.queue->size() + deferred_.size();
  Observe(round);
}

absl::StatusOr<size_t> CoreLoop::RunStalled(absl::Time until) {
  // `until` may be the time of an overdue tick, which must not shorten the wait: no tick is handled until the store
  // accepts records again.
  const absl::Time now = options_.clock->TimeNow();
  absl::Duration wait = (until > now ? std::min(until, retry_at_) : retry_at_) - now;
  std::vector<Event> batch;
  const bool has_space = deferred_bytes_ < limits::kFactBytesQueued + limits::kReportBytesQueued;
  if (has_space && deferred_.size() < limits::kCoreQueueEvents) {
    batch = options_.queue->Take(wait, kBatchEvents);
  } else {
    options_.queue->AwaitClosed(wait);
  }
  size_t handled = batch.size();
  for (Event& event : batch) HandleStalled(std::move(event));
  flush_at_ = options_.clock->TimeNow() + options_.sink->Flush();
  if (options_.clock->TimeNow() < retry_at_ && !options_.queue->closed()) return handled;
  Unwritten unwritten = *std::exchange(stalled_, std::nullopt);
  RETURN_IF_ERROR(Write(std::move(unwritten)));
  if (stalled_.has_value()) return handled;
  retry_wait_ = absl::ZeroDuration();
  if (options_.stalled) options_.stalled("");
  options_.sink->Release(
      WriteLog{WriteLog::Level::kInfo, absl::StrCat("the store accepts records again after ",
                                                    absl::FormatDuration(options_.clock->TimeNow() - stalled_since_))});
  return handled + 1;  // not 0: a loop that is ending must still handle the deferred events
}

void CoreLoop::HandleStalled(Event event) {
  if (std::optional<Reply> answer = AnswerIfGivenUp(event)) {
    options_.sink->Release(*std::move(answer));
  } else if (IsRead(event)) {
    Output output = options_.core->Handle(std::move(event), last_now_);
    for (Effect& effect : output.effects) options_.sink->Release(std::move(effect));
  } else if (std::optional<CallId> call = CallOf(event)) {
    options_.sink->Release(
        Reply{*call,
              AddReason(absl::UnavailableError("the coordinator cannot write to its store (is its disk full?), so "
                                               "nothing was changed; free space, then try again"),
                        reasons::kStoreUnwritable),
              {}});
  } else {
    deferred_bytes_ += QueuedBytes(event);
    deferred_.push_back(std::move(event));
  }
}

}  // namespace trainyard
