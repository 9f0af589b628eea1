#include "worker/trainer/commit_thread.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "common/steady_cond_var.h"
#include "worker/checkpoint/fault_points.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/settle.h"
#include "worker/checkpoint/writer.h"

namespace trainyard {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(50);        // for a part again
constexpr absl::Duration kGrantWait = absl::Milliseconds(250);  // at once; other work may come
constexpr absl::Duration kLeaveWait = absl::Seconds(2);
// Complete checkpoints that wait for the coordinator's word; a further one takes the oldest's place.
constexpr size_t kMostWaiting = 2;

// Written by all ranks and not looked at yet, with the one that is.
constexpr ptrdiff_t kMostBehind = 2;

// Complete under its partial name.
struct Ready {
  CommitTask task = {};
  std::string manifest_hash = {};
  uint64_t size_bytes = 0;
  absl::Time complete = {};
};

struct Told {
  uint64_t fact = 0;
  uint64_t step = 0;
};

}  // namespace

struct CommitThread::State {
  explicit State(Parts given) : parts(std::move(given)) {}

  // What is left to do goes through here; the thread does it.
  struct Removal {
    SaveKey save;
  };
  struct Pruning {
    uint64_t step = 0;
  };
  using Task = std::variant<CommitTask, Removal, Pruning>;

  const Parts parts;
  absl::Mutex mu;
  SteadyCondVar changed;
  std::deque<Task> tasks ABSL_GUARDED_BY(mu);
  bool busy ABSL_GUARDED_BY(mu) = false;
  size_t num_waiting ABSL_GUARDED_BY(mu) = 0;
  bool ungranted ABSL_GUARDED_BY(mu) = false;
  bool over ABSL_GUARDED_BY(mu) = false;  // the generation is: nothing gets a name any more
  bool closing ABSL_GUARDED_BY(mu) = false;
  bool gone ABSL_GUARDED_BY(mu) = false;
  uint64_t failed ABSL_GUARDED_BY(mu) = 0;
  uint64_t newest_complete ABSL_GUARDED_BY(mu) = 0;
  std::deque<Told> told ABSL_GUARDED_BY(mu);
  std::vector<std::string> lines ABSL_GUARDED_BY(mu);
  std::deque<Ready> waiting;  // the thread's own
  std::thread thread;

  std::string FolderOf(const SaveKey& save) const { return PartialPath(parts.run_folder, save.step, save.generation); }
  void Say(std::string line) {
    absl::MutexLock lock(&mu);
    lines.push_back(std::move(line));
  }
  bool Closing() {
    absl::MutexLock lock(&mu);
    return closing;
  }

  // `withdrawn`: nothing failed, it is not wanted any more.
  void Fail(const CommitTask& task, const absl::Status& why, bool withdrawn = false);
  void Remove(const SaveKey& save);
  absl::StatusOr<std::vector<CheckpointPart>> AwaitParts(const SaveKey& save);
  absl::StatusOr<Ready> Complete(CommitTask task);
  void CommitOne(CommitTask task);
  // Whether there was a word.
  bool AskForGrant();
  void Name(Ready ready);
  void Prune(uint64_t step);
};

void CommitThread::State::Fail(const CommitTask& task, const absl::Status& why, bool withdrawn) {
  if (absl::IsAborted(why)) return;  // the loop finds out by looking itself
  parts.link.Tell(SaveFailedFact{.step = task.save.step,
                                 .message = std::string(why.message()),
                                 .stop_request = task.stop_request,
                                 .withdrawn = withdrawn});
  absl::MutexLock lock(&mu);
  if (!withdrawn) ++failed;
  lines.push_back(absl::StrCat("save of step ", task.save.step, " failed, training goes on: ", why.message()));
}

void CommitThread::State::Remove(const SaveKey& save) {
  if (!parts.check_fence().ok()) return;
  absl::Status removed = parts.file_system.RemoveAll(FolderOf(save));
  if (!removed.ok()) Say(absl::StrCat("what a save has left could not be removed: ", removed.message()));
}

absl::StatusOr<std::vector<CheckpointPart>> CommitThread::State::AwaitParts(const SaveKey& save) {
  const absl::Time until = parts.clock.TimeNow() + parts.part_patience;
  std::vector<CheckpointPart> all;
  while (all.size() < save.world_size) {
    absl::StatusOr<CheckpointPart> part = ReadCheckpointPart(FolderOf(save), all.size(), save);
    if (part.ok()) {
      all.push_back(*std::move(part));
      continue;
    }
    if (!absl::IsUnavailable(part.status()) || parts.clock.TimeNow() >= until) return part.status();
    absl::MutexLock lock(&mu);
    if (changed.AwaitFor(&mu, kLook, [&] { return closing; })) return absl::AbortedError("the rank is leaving");
  }
  return all;
}

absl::StatusOr<Ready> CommitThread::State::Complete(CommitTask task) {
  const std::string folder = FolderOf(task.save);
  ASSIGN_OR_RETURN(std::vector<CheckpointPart> all, AwaitParts(task.save));
  RETURN_IF_ERROR(AssembleManifest(all, task.tensors, task.head))
      << "while putting step " << task.save.step << " together";
  if (std::string line = parts.describe_data(task.head.data); !line.empty()) Say(std::move(line));
  RETURN_IF_ERROR(parts.check_fence());
  RETURN_IF_ERROR(RemoveCheckpointParts(folder, task.save.world_size, parts.file_system));
  const std::string text = ManifestText(task.head);
  RETURN_IF_ERROR(WriteManifest(folder, text, parts.file_system));
  Ready ready{.manifest_hash = ManifestHash(text), .size_bytes = text.size(), .complete = parts.clock.TimeNow()};
  for (const ManifestFile& file : task.head.files) ready.size_bytes += file.bytes;
  ready.task = std::move(task);
  return ready;
}

void CommitThread::State::CommitOne(CommitTask task) {
  const CommitTask copy{.save = task.save, .stop_request = task.stop_request};
  absl::StatusOr<Ready> ready = Complete(std::move(task));
  if (absl::Status fault = FaultPoint("ready"); ready.ok() && !fault.ok()) ready = fault;
  if (!ready.ok()) {
    if (!absl::IsAborted(ready.status())) Remove(copy.save);
    return Fail(copy, ready.status());
  }
  if (waiting.size() == kMostWaiting) {
    Remove(waiting.front().task.save);
    Fail(
        waiting.front().task,
        absl::UnavailableError(absl::StrCat("it was complete, but the coordinator was not heard for so long that step ",
                                            copy.save.step, " has taken its place")),
        /*withdrawn=*/true);
    waiting.pop_front();
  }
  parts.link.Tell(SaveReadyFact{.step = copy.save.step,
                                .path = JoinPath(parts.run_folder, StepFolderName(copy.save.step)),
                                .manifest_hash = ready->manifest_hash,
                                .size_bytes = ready->size_bytes});
  waiting.push_back(*std::move(ready));
  absl::MutexLock lock(&mu);
  num_waiting = waiting.size();
  newest_complete = copy.save.step;
  changed.SignalAll();
}

bool CommitThread::State::AskForGrant() {
  const Ready& oldest = waiting.front();
  const uint64_t step = oldest.task.save.step;
  absl::Status word = parts.link.AwaitGrant(step, oldest.manifest_hash, kGrantWait);
  bool without = false, pause = false;
  {
    absl::MutexLock lock(&mu);
    without = ungranted && absl::IsDeadlineExceeded(word);
    // A link that answers at once is not asked without end.
    pause = absl::IsDeadlineExceeded(word) && !without && !closing && tasks.empty();
    if (pause) changed.AwaitFor(&mu, kLook, [&] { return closing || ungranted || !tasks.empty(); });
    if (absl::IsAborted(word)) over = true;
  }
  if (absl::IsDeadlineExceeded(word) && !without) return false;
  Ready ready = std::move(waiting.front());
  waiting.pop_front();
  if (word.ok() || without) {
    if (without) Say(absl::StrCat("step ", step, " gets its name without the coordinator's word: it is away"));
    Name(std::move(ready));
  } else if (!absl::IsAborted(word)) {
    Remove(ready.task.save);
    Fail(ready.task, word);
    absl::MutexLock lock(&mu);
    newest_complete = std::min(newest_complete, step - 1);
  }
  absl::MutexLock lock(&mu);
  num_waiting = waiting.size();
  changed.SignalAll();
  return true;
}

void CommitThread::State::Name(Ready ready) {
  const CommitTask& task = ready.task;
  const std::string folder = FolderOf(task.save);
  const std::string path = JoinPath(parts.run_folder, StepFolderName(task.save.step));
  auto name = [&]() -> absl::Status {
    RETURN_IF_ERROR(FaultPoint("grant"));
    RETURN_IF_ERROR(parts.check_fence());
    RETURN_IF_ERROR(parts.file_system.RenameOrExchange(folder, path));
    RETURN_IF_ERROR(parts.file_system.SyncFolder(parts.run_folder));
    FaultPoint("commit").IgnoreError();  // it has its name
    return absl::OkStatus();
  };
  if (absl::Status named = name(); !named.ok()) {
    if (!absl::IsAborted(named)) Remove(task.save);
    return Fail(task, named);
  }
  Remove(task.save);  // the checkpoint that was replaced, if there was one
  const absl::Time now = parts.clock.TimeNow();
  const double seconds = absl::ToDoubleSeconds(ready.complete - task.began);
  Say(absl::StrFormat("saved step %d in %.3f s (training waited %.3f s, the grant took %.3f s): %s (%.1f MB)",
                      task.save.step, seconds, task.waited ? seconds : absl::ToDoubleSeconds(task.stalled),
                      absl::ToDoubleSeconds(now - ready.complete), path, static_cast<double>(ready.size_bytes) / 1e6));
  std::optional<double> stall_s;
  if (!task.waited) stall_s = absl::ToDoubleSeconds(task.stalled);
  const uint64_t fact = parts.link.Tell(SavedFact{.step = task.save.step,
                                                  .path = path,
                                                  .manifest_hash = ready.manifest_hash,
                                                  .size_bytes = ready.size_bytes,
                                                  .seconds = seconds,
                                                  .stall_s = std::move(stall_s)});
  absl::MutexLock lock(&mu);
  told.push_back({.fact = fact, .step = task.save.step});
}

void CommitThread::State::Prune(uint64_t step) {
  if (!parts.check_fence().ok()) return;
  absl::StatusOr<std::vector<uint64_t>> removed =
      PruneCheckpoints(parts.run_folder, step, parts.retention, {step}, parts.file_system);
  if (!removed.ok()) Say(absl::StrCat("old checkpoints could not be removed: ", removed.status().message()));
  // What ranks of an earlier generation, which do not know yet that they are fenced off, have left meanwhile.
  for (std::string& line : SweepPartials(parts.run_folder, parts.generation, parts.file_system)) Say(std::move(line));
}

CommitThread::CommitThread(Parts parts) : state_(std::make_shared<State>(std::move(parts))) {
  state_->thread = std::thread([state = state_] { Serve(state); });
}

CommitThread::~CommitThread() {
  bool gone;
  {
    absl::MutexLock lock(&state_->mu);
    state_->closing = true;
    state_->changed.SignalAll();
    gone = state_->changed.AwaitFor(&state_->mu, kLeaveWait, [this] { return state_->gone; });
  }
  gone ? state_->thread.join() : state_->thread.detach();
}

void CommitThread::Serve(const std::shared_ptr<State>& state) {
  // Those that wait come first, so that none is withdrawn for want of having asked; then, without a word, other work.
  bool asked = false;
  while (true) {
    std::optional<State::Task> task;
    {
      absl::MutexLock lock(&state->mu);
      state->busy = false;
      state->changed.SignalAll();
      state->changed.AwaitFor(&state->mu, absl::InfiniteDuration(), [&] {
        return state->closing || !state->tasks.empty() || (state->num_waiting > 0 && !state->over);
      });
      if (state->closing) {
        state->gone = true;
        state->changed.SignalAll();
        return;
      }
      const bool asks = state->num_waiting > 0 && !state->over && !asked;
      if (!asks && !state->tasks.empty()) {
        task = std::move(state->tasks.front());
        state->tasks.pop_front();
      }
      state->busy = task.has_value();
    }
    asked = !task.has_value() && !state->AskForGrant();
    if (!task.has_value()) continue;
    if (auto* commit = std::get_if<CommitTask>(&*task)) {
      state->CommitOne(std::move(*commit));
    } else if (auto* removal = std::get_if<State::Removal>(&*task)) {
      state->Remove(removal->save);
    } else {
      state->Prune(std::get<State::Pruning>(*task).step);
    }
  }
}

void CommitThread::Commit(CommitTask task) {
  absl::MutexLock lock(&state_->mu);
  state_->tasks.push_back(std::move(task));
  state_->changed.SignalAll();
}

void CommitThread::Discard(const SaveKey& save) {
  absl::MutexLock lock(&state_->mu);
  state_->tasks.push_back(State::Removal{save});
  state_->changed.SignalAll();
}

bool CommitThread::AwaitRoom(absl::Duration limit) {
  absl::MutexLock lock(&state_->mu);
  return state_->changed.AwaitFor(&state_->mu, limit, [this] {
    const auto is_commit = [](const State::Task& task) { return std::holds_alternative<CommitTask>(task); };
    return std::count_if(state_->tasks.begin(), state_->tasks.end(), is_commit) + state_->busy < kMostBehind;
  });
}

void CommitThread::PruneConfirmed() {
  const uint64_t acknowledged = state_->parts.link.acknowledged();
  absl::MutexLock lock(&state_->mu);
  std::optional<uint64_t> confirmed;
  while (!state_->told.empty() && state_->told.front().fact <= acknowledged) {
    confirmed = state_->told.front().step;
    state_->told.pop_front();
  }
  if (!confirmed.has_value()) return;
  if (!state_->tasks.empty() && std::holds_alternative<State::Pruning>(state_->tasks.back())) state_->tasks.pop_back();
  state_->tasks.push_back(State::Pruning{*confirmed});
  state_->changed.SignalAll();
}

bool CommitThread::Drain(absl::Duration limit, bool ungranted) {
  absl::MutexLock lock(&state_->mu);
  if (ungranted) {
    state_->ungranted = true;
    state_->changed.SignalAll();
  }
  return state_->changed.AwaitFor(&state_->mu, limit, [this] {
    return !state_->busy && state_->tasks.empty() && (state_->num_waiting == 0 || state_->over);
  });
}

bool CommitThread::AwaitTasks(absl::Duration limit) {
  absl::MutexLock lock(&state_->mu);
  return state_->changed.AwaitFor(&state_->mu, limit, [this] { return !state_->busy && state_->tasks.empty(); });
}

uint64_t CommitThread::unconfirmed_fact() const {
  absl::MutexLock lock(&state_->mu);
  return state_->told.empty() ? 0 : state_->told.back().fact;
}

uint64_t CommitThread::num_failed() const {
  absl::MutexLock lock(&state_->mu);
  return state_->failed;
}

uint64_t CommitThread::newest_complete() const {
  absl::MutexLock lock(&state_->mu);
  return state_->newest_complete;
}

std::vector<std::string> CommitThread::TakeLines() {
  absl::MutexLock lock(&state_->mu);
  return std::exchange(state_->lines, {});
}

}  // namespace trainyard
