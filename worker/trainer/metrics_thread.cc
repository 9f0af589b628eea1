#include "worker/trainer/metrics_thread.h"

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/steady_cond_var.h"

namespace trainyard {
namespace {

// A folder that has not answered for this time is reported in the log.
constexpr absl::Duration kLateAnswer = absl::Seconds(10);
// The pause after each time that lines were written. Waking the thread for every step of a small model, whose steps
// take a few milliseconds on all cores, made these steps slower by about 5 %.
constexpr absl::Duration kPause = absl::Milliseconds(50);

}  // namespace

struct MetricsThread::State {
  State(std::unique_ptr<MetricsFile> metrics, std::function<absl::Status()> check, Clock& steady)
      : file(std::move(metrics)), check_fence(std::move(check)), clock(steady) {}

  const std::unique_ptr<MetricsFile> file;  // used by the thread only
  const std::function<absl::Status()> check_fence;
  Clock& clock;

  absl::Mutex mu;
  SteadyCondVar changed;
  std::string lines ABSL_GUARDED_BY(mu);                               // that wait
  uint64_t requested ABSL_GUARDED_BY(mu) = 0;                          // the number of calls of Write and Check
  uint64_t done ABSL_GUARDED_BY(mu) = 0;                               // the number of those that are done
  uint64_t awaited ABSL_GUARDED_BY(mu) = 0;                            // a caller waits for calls up to this number
  bool pausing ABSL_GUARDED_BY(mu) = false;                            // the thread is not woken by Write
  absl::Time busy_since ABSL_GUARDED_BY(mu) = absl::InfiniteFuture();  // infinite: the thread waits for a call
  absl::Status fence ABSL_GUARDED_BY(mu);
  absl::Status written ABSL_GUARDED_BY(mu);  // of the newest lines
  std::string warning ABSL_GUARDED_BY(mu);
  bool reported_late ABSL_GUARDED_BY(mu) = false;  // since `busy_since`
  bool closing ABSL_GUARDED_BY(mu) = false;
};

MetricsThread::MetricsThread(std::unique_ptr<MetricsFile> file, std::function<absl::Status()> check_fence, Clock& clock)
    : state_(std::make_shared<State>(std::move(file), std::move(check_fence), clock)),
      thread_(std::make_unique<LeavableThread>([state = state_] { Serve(*state); })) {}

MetricsThread::~MetricsThread() {
  absl::MutexLock lock(&state_->mu);
  state_->closing = true;
  state_->changed.SignalAll();
}

void MetricsThread::Serve(State& state) {
  while (true) {
    std::string lines;
    uint64_t requested = 0;
    {
      absl::MutexLock lock(&state.mu);
      state.changed.AwaitFor(&state.mu, absl::InfiniteDuration(), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu) {
        return state.closing || state.requested > state.done;
      });
      if (state.requested == state.done) return;
      lines.swap(state.lines);
      requested = state.requested;
      state.busy_since = state.clock.TimeNow();
    }
    absl::Status fence = state.check_fence();
    const bool writes = fence.ok() && state.file != nullptr && !lines.empty();
    absl::Status written = writes ? state.file->Append(lines) : absl::OkStatus();
    absl::MutexLock lock(&state.mu);
    if (!written.ok() && state.written.ok()) {
      state.warning = absl::StrCat("metrics cannot be written now, training continues: ", written.message());
    }
    if (writes) state.written = std::move(written);
    state.fence = std::move(fence);
    state.done = requested;
    state.busy_since = absl::InfiniteFuture();
    state.reported_late = false;
    state.changed.SignalAll();
    state.pausing = true;
    state.changed.AwaitFor(&state.mu, kPause, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu) {
      return state.closing || state.awaited > state.done;
    });
    state.pausing = false;
  }
}

void MetricsThread::Write(absl::string_view line) {
  absl::MutexLock lock(&state_->mu);
  const bool has_space = state_->lines.size() + line.size() <= kPendingBytesMax;
  if (has_space) state_->lines.append(line.data(), line.size());
  ++state_->requested;
  if (!state_->pausing) state_->changed.SignalAll();
}

void MetricsThread::Check() { Write(""); }

bool MetricsThread::Await(absl::Duration limit) {
  absl::MutexLock lock(&state_->mu);
  const uint64_t call = state_->requested;
  if (state_->done < call && state_->clock.TimeNow() - state_->busy_since > limit) return false;
  state_->awaited = call;
  state_->changed.SignalAll();
  return state_->changed.AwaitFor(
      &state_->mu, limit, [this, call]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu) { return state_->done >= call; });
}

absl::Status MetricsThread::fence() const {
  absl::MutexLock lock(&state_->mu);
  return state_->fence;
}

std::string MetricsThread::TakeWarning() {
  absl::MutexLock lock(&state_->mu);
  const absl::Duration busy_for = state_->clock.TimeNow() - state_->busy_since;
  if (busy_for >= kLateAnswer && !std::exchange(state_->reported_late, true)) {
    return absl::StrCat("warning: checkpoint.dir has not answered for ",
                        absl::FormatDuration(absl::Floor(busy_for, absl::Seconds(1))),
                        " (is its disk or file server away?); training continues, and metrics wait");
  }
  return std::exchange(state_->warning, "");
}

}  // namespace trainyard
