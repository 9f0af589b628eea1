#include "worker/saving/save_thread.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/status_macros.h"
#include "common/steady_cond_var.h"
#include "worker/saving/save_work.h"
#include "worker/saving/throttle.h"

namespace trainyard {
namespace {

// Lowers the I/O and CPU priorities of this thread. Some disk schedulers ignore the I/O priority.
void LowerPriority() {
  constexpr int kOfProcess = 1, kBestEffort = 2, kLowest = 7, kClassShift = 13;
  (void)syscall(SYS_ioprio_set, kOfProcess, 0, (kBestEffort << kClassShift) | kLowest);
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);
}

}  // namespace

struct SaveThread::State {
  State(FileSystem& files, Clock& steady, uint64_t bytes_per_s, Wait waiting)
      : file_system(files), clock(steady), wait(std::move(waiting)), throttle(bytes_per_s) {}

  FileSystem& file_system;
  Clock& clock;
  const Wait wait;
  Throttle throttle;  // used by the writer only

  absl::Mutex mu;
  SteadyCondVar changed;
  std::shared_ptr<SaveWork> to_copy ABSL_GUARDED_BY(mu), to_write ABSL_GUARDED_BY(mu);
  std::shared_ptr<SaveBuffer> newest_whole ABSL_GUARDED_BY(mu);   // holds the newest sealed snapshot
  SnapshotPlace place ABSL_GUARDED_BY(mu);                        // of the snapshot that is copied
  std::optional<SnapshotPlace> remove_older ABSL_GUARDED_BY(mu);  // where to remove snapshots of older generations
  bool writer_busy ABSL_GUARDED_BY(mu) = false;                   // with a save, until its write has returned
  bool closing ABSL_GUARDED_BY(mu) = false;
};

SaveThread::SaveThread(FileSystem& file_system, Clock& clock, uint64_t bytes_per_s, Wait wait)
    : state_(std::make_shared<State>(file_system, clock, bytes_per_s, std::move(wait))),
      copier_([state = state_] { CopyForever(*state); }),
      writer_(std::make_unique<LeavableThread>([state = state_] { WriteForever(*state); })) {}

SaveThread::~SaveThread() {
  GiveUp(absl::CancelledError("the rank is leaving"));
  {
    absl::MutexLock lock(&state_->mu);
    state_->closing = true;
    state_->changed.SignalAll();
  }
  copier_.join();  // it reads the training state, so it cannot be left behind
}

absl::Status SaveThread::AcquireBuffer(SaveWork& work) {
  {
    absl::MutexLock lock(&state_->mu);
    if (state_->writer_busy) return absl::UnavailableError("an earlier save is still blocked by the disk");
  }
  if (!work.task.needs_copy) return absl::OkStatus();
  const uint64_t bytes = BytesToCopy(work.task);
  RETURN_IF_ERROR(memory_.ReservePrivate(bytes));  // if it was not reserved, or the state has grown
  absl::MutexLock lock(&state_->mu);
  work.buffer = memory_.Next(state_->newest_whole.get());
  state_->place = memory_.place();
  if (work.buffer->snapshot() != nullptr) work.buffer->snapshot()->Begin();
  return absl::OkStatus();
}

void SaveThread::Begin(SaveTask task) {
  auto work = std::make_shared<SaveWork>();
  work->task = std::move(task);
  work->began = state_->clock.TimeNow();
  last_ = work;
  absl::Status acquired = AcquireBuffer(*work);
  if (acquired.ok()) PlanChunks(*work);
  absl::MutexLock lock(&state_->mu);
  if (!acquired.ok()) {
    work->task.owner.reset();
    work->copied = true;
    work->end = SaveEnd{.save = work->task.save, .status = std::move(acquired)};
    return;
  }
  state_->to_copy = work;
  state_->to_write = work;
  state_->writer_busy = true;
  state_->changed.SignalAll();
}

void SaveThread::ProcessChunks(State& state, SaveWork& work) {
  for (size_t i; (i = work.next_chunk.fetch_add(1)) < work.chunks.size();) {
    {
      absl::MutexLock lock(&state.mu);
      if (work.cancelled) {
        work.incomplete = true;
        ++work.chunks_done;
        continue;
      }
    }
    ProcessChunk(work.chunks[i]);
    absl::MutexLock lock(&state.mu);
    ++work.chunks_done;
  }
  absl::MutexLock lock(&state.mu);
  if (work.chunks_done == work.chunks.size()) work.copied = true;
  state.changed.SignalAll();
}

void SaveThread::CopyForever(State& state) {
  while (true) {
    std::shared_ptr<SaveWork> work;
    {
      absl::MutexLock lock(&state.mu);
      state.changed.AwaitFor(&state.mu, absl::InfiniteDuration(), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu) {
        return state.closing || state.to_copy != nullptr;
      });
      if (state.to_copy == nullptr) return;
      work = std::exchange(state.to_copy, nullptr);
    }
    ProcessChunks(state, *work);
  }
}

void SaveThread::WaitForCopy() {
  if (last_ == nullptr) return;
  ProcessChunks(*state_, *last_);
  absl::MutexLock lock(&state_->mu);
  state_->changed.AwaitFor(&state_->mu, absl::InfiniteDuration(), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu) {
    return last_->copied || last_->cancelled;
  });
}

std::optional<SaveEnd> SaveThread::ended() const {
  absl::MutexLock lock(&state_->mu);
  return last_ == nullptr ? std::nullopt : last_->end;
}

bool SaveThread::AwaitEnd(absl::Duration limit) {
  absl::MutexLock lock(&state_->mu);
  return last_ == nullptr ||
         state_->changed.AwaitFor(&state_->mu, limit,
                                  [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu) { return last_->end.has_value(); });
}

void SaveThread::LiftByteLimit() {
  absl::MutexLock lock(&state_->mu);
  if (last_ != nullptr) last_->unlimited = true;
  state_->changed.SignalAll();
}

void SaveThread::GiveUp(absl::Status why) {
  absl::MutexLock lock(&state_->mu);
  if (last_ == nullptr || last_->end.has_value()) return;
  last_->cancelled = true;
  last_->end = SaveEnd{.save = last_->task.save, .status = std::move(why)};
  state_->changed.SignalAll();
}

void SaveThread::RemoveOlderSnapshots(SnapshotPlace place) {
  absl::MutexLock lock(&state_->mu);
  state_->remove_older = std::move(place);
  state_->changed.SignalAll();
}

void SaveThread::WriteForever(State& state) {
  LowerPriority();
  while (true) {
    std::shared_ptr<SaveWork> work;
    std::optional<SnapshotPlace> remove_older;
    {
      absl::MutexLock lock(&state.mu);
      state.changed.AwaitFor(&state.mu, absl::InfiniteDuration(), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu) {
        return state.closing || state.remove_older.has_value() || (state.to_write != nullptr && state.to_write->copied);
      });
      if (state.closing) return;
      remove_older = std::exchange(state.remove_older, std::nullopt);
      if (state.to_write != nullptr && state.to_write->copied) work = std::exchange(state.to_write, nullptr);
    }
    if (remove_older.has_value()) {
      trainyard::RemoveOlderSnapshots(remove_older->folder, remove_older->job_id, remove_older->generation);
    }
    if (work != nullptr) WriteOne(state, *work);
  }
}

void SaveThread::WriteOne(State& state, SaveWork& work) {
  const absl::Time copied = state.clock.TimeNow();
  absl::Status sealed;
  SnapshotPlace place;
  bool seals = work.buffer != nullptr && work.buffer->snapshot() != nullptr;
  {
    absl::MutexLock lock(&state.mu);
    seals = seals && !work.incomplete;
    place = state.place;
  }
  if (seals) sealed = SealSnapshot(place.job_id, work);
  if (seals && sealed.ok()) {
    absl::MutexLock lock(&state.mu);
    state.newest_whole = work.buffer;
  }
  uint64_t bytes = 0;
  absl::Status status = WriteSave(
      state.file_system, work, [&](uint64_t count) { return BeforeWrite(state, work, count); }, bytes);
  absl::MutexLock lock(&state.mu);
  state.writer_busy = false;
  if (!work.end.has_value()) {
    work.end = SaveEnd{.save = work.task.save,
                       .status = std::move(status),
                       .copying = copied - work.began,
                       .writing = state.clock.TimeNow() - copied,
                       .bytes = bytes,
                       .snapshot = std::move(sealed),
                       .beyond_range = work.beyond_range};
  }
  work.task.owner.reset();
  state.changed.SignalAll();
}

absl::Status SaveThread::BeforeWrite(State& state, SaveWork& work, uint64_t bytes) {
  const absl::Duration wait = state.throttle.Consume(state.clock.TimeNow(), bytes);
  if (wait > absl::ZeroDuration() && state.wait != nullptr) state.wait(wait);
  absl::MutexLock lock(&state.mu);
  if (wait > absl::ZeroDuration() && state.wait == nullptr) {
    state.changed.AwaitFor(&state.mu, wait, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu) {
      return work.cancelled || work.unlimited || state.closing;
    });
  }
  return work.cancelled ? absl::CancelledError("the save was given up") : absl::OkStatus();
}

}  // namespace trainyard
