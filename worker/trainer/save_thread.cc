#include "worker/trainer/save_thread.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/status_macros.h"
#include "common/steady_cond_var.h"
#include "worker/checkpoint/fault_points.h"
#include "worker/trainer/throttle.h"

namespace trainyard {
namespace {

// Copied by one thread at a time; also how soon a copy is cancelled.
constexpr uint64_t kCopyBytes = 1 << 20;

// Best effort, the lowest level; a scheduler that knows no priorities ignores it.
void BecomeModest() {
  constexpr int kOfProcess = 1, kBestEffort = 2, kLowest = 7, kClassShift = 13;
  (void)syscall(SYS_ioprio_set, kOfProcess, 0, (kBestEffort << kClassShift) | kLowest);
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 10);
}

// Private memory, kept until the last who writes from it is gone.
class Memory {
 public:
  static absl::StatusOr<std::shared_ptr<Memory>> Take(uint64_t bytes) {
    if (bytes == 0) return std::shared_ptr<Memory>(new Memory(nullptr, 0));
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for a snapshot of ", bytes, " bytes: ", std::strerror(errno)));
    }
    const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    for (uint64_t at = 0; at < bytes; at += page) static_cast<volatile char*>(data)[at] = 0;
    return std::shared_ptr<Memory>(new Memory(static_cast<char*>(data), bytes));
  }
  ~Memory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Memory(char* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  char* const data_;
  const uint64_t bytes_;
};

uint64_t BytesOf(const SaveRange& range) { return range.entry.count * DtypeBytes(range.entry.tensor.dtype); }

}  // namespace

// One save: what is copied from where, and how far it has got.
struct SaveThread::Work {
  SaveTask task;
  std::shared_ptr<Memory> memory;

  struct Chunk {
    const char* from;
    char* to;  // null: `from` is hashed into `hash`
    uint64_t bytes;
    std::string* hash;
  };
  std::vector<Chunk> chunks;
  std::vector<ManifestTensor> witnessed;
  std::atomic<size_t> next_chunk = 0;

  // Under State::mu.
  size_t chunks_done = 0;
  bool cancelled = false, hurries = false;
  bool copied = false;
  absl::Time began;
  std::optional<SaveEnd> end;
};

struct SaveThread::State {
  State(FileSystem& files, Clock& steady, uint64_t bytes_per_s)
      : file_system(files), clock(steady), throttle(bytes_per_s) {}

  FileSystem& file_system;
  Clock& clock;
  Throttle throttle;  // the writing thread's

  absl::Mutex mu;
  SteadyCondVar changed;
  std::shared_ptr<Memory> memory;  // the loop's
  std::shared_ptr<Work> to_copy ABSL_GUARDED_BY(mu), to_write ABSL_GUARDED_BY(mu);
  bool writes ABSL_GUARDED_BY(mu) = false;
  bool closing ABSL_GUARDED_BY(mu) = false;
};

SaveThread::SaveThread(FileSystem& file_system, Clock& clock, uint64_t bytes_per_s)
    : state_(std::make_shared<State>(file_system, clock, bytes_per_s)),
      copier_([state = state_] { CopyForever(state); }),
      writer_(std::make_unique<LeavableThread>([state = state_] { WriteForever(state); })) {}

SaveThread::~SaveThread() {
  GiveUp(absl::CancelledError("the rank is leaving"));
  {
    absl::MutexLock lock(&state_->mu);
    state_->closing = true;
    state_->changed.SignalAll();
  }
  copier_.join();  // it reads the state
}

absl::Status SaveThread::Reserve(uint64_t bytes) {
  if (state_->memory != nullptr && state_->memory->bytes() >= bytes) return absl::OkStatus();
  state_->memory.reset();
  ASSIGN_OR_RETURN(state_->memory, Memory::Take(bytes));
  return absl::OkStatus();
}

void SaveThread::Begin(SaveTask task) {
  auto work = std::make_shared<Work>();
  work->task = std::move(task);
  work->began = state_->clock.TimeNow();
  uint64_t bytes = 0;
  for (const SaveTask::File& file : work->task.files) {
    for (const SaveRange& range : file.ranges) bytes += range.stays ? 0 : BytesOf(range);
  }
  absl::Status reserved = work->task.copies ? Reserve(bytes) : absl::OkStatus();
  work->memory = work->task.copies ? state_->memory : nullptr;
  char* to = reserved.ok() && work->memory != nullptr ? work->memory->data() : nullptr;
  for (SaveTask::File& file : work->task.files) {
    for (SaveRange& range : file.ranges) {
      if (to == nullptr || range.stays) continue;
      for (uint64_t at = 0; at < BytesOf(range); at += kCopyBytes) {
        const uint64_t length = std::min(kCopyBytes, BytesOf(range) - at);
        work->chunks.push_back({range.bytes + at, to + at, length, nullptr});
      }
      range.bytes = to;
      to += BytesOf(range);
    }
  }
  for (const SaveRange& range : work->task.witnessed) {
    const TensorHeader& tensor = range.entry.tensor;
    work->witnessed.push_back({.name = tensor.name, .role = tensor.role, .dtype = tensor.dtype, .shape = tensor.shape});
    work->witnessed.back().pieces = CutIntoPieces(tensor, range.entry.first, range.entry.count);
  }
  for (size_t i = 0; i < work->witnessed.size(); ++i) {
    const SaveRange& range = work->task.witnessed[i];
    const uint64_t width = DtypeBytes(range.entry.tensor.dtype);
    for (ManifestPiece& piece : work->witnessed[i].pieces) {
      work->chunks.push_back({range.bytes + (piece.first_element - range.entry.first) * width, nullptr,
                              (piece.last_element - piece.first_element) * width, &piece.hash});
    }
  }
  last_ = work;
  absl::MutexLock lock(&state_->mu);
  if (reserved.ok() && state_->writes) {
    reserved = absl::UnavailableError("an earlier save has not come back from the disk yet");
  }
  if (!reserved.ok()) {
    work->chunks.clear();
    work->task.owner.reset();
    work->copied = true;
    work->end = SaveEnd{.save = work->task.save, .status = std::move(reserved)};
    return;
  }
  state_->to_copy = work;
  state_->to_write = work;
  state_->writes = true;
  state_->changed.SignalAll();
}

void SaveThread::CopyChunks(State& state, Work& work) {
  for (size_t i; (i = work.next_chunk.fetch_add(1)) < work.chunks.size();) {
    const Work::Chunk& chunk = work.chunks[i];
    {
      absl::MutexLock lock(&state.mu);
      if (work.cancelled) {
        ++work.chunks_done;
        continue;
      }
    }
    if (chunk.to != nullptr) {
      std::memcpy(chunk.to, chunk.from, chunk.bytes);
    } else {
      *chunk.hash = HashHex({chunk.from, chunk.bytes});
    }
    absl::MutexLock lock(&state.mu);
    ++work.chunks_done;
  }
  absl::MutexLock lock(&state.mu);
  if (work.chunks_done == work.chunks.size()) work.copied = true;
  state.changed.SignalAll();
}

void SaveThread::CopyForever(const std::shared_ptr<State>& state) {
  while (true) {
    std::shared_ptr<Work> work;
    {
      absl::MutexLock lock(&state->mu);
      state->changed.AwaitFor(&state->mu, absl::InfiniteDuration(),
                              [&] { return state->closing || state->to_copy != nullptr; });
      if (state->to_copy == nullptr) return;
      work = std::exchange(state->to_copy, nullptr);
    }
    CopyChunks(*state, *work);
  }
}

void SaveThread::Fence() {
  if (last_ == nullptr) return;
  CopyChunks(*state_, *last_);
  absl::MutexLock lock(&state_->mu);
  state_->changed.AwaitFor(&state_->mu, absl::InfiniteDuration(), [&] { return last_->copied || last_->cancelled; });
}

std::optional<SaveEnd> SaveThread::ended() const {
  absl::MutexLock lock(&state_->mu);
  return last_ == nullptr ? std::nullopt : last_->end;
}

bool SaveThread::AwaitEnd(absl::Duration limit) {
  absl::MutexLock lock(&state_->mu);
  return last_ == nullptr || state_->changed.AwaitFor(&state_->mu, limit, [&] { return last_->end.has_value(); });
}

void SaveThread::Hurry() {
  absl::MutexLock lock(&state_->mu);
  if (last_ != nullptr) last_->hurries = true;
  state_->changed.SignalAll();
}

void SaveThread::GiveUp(absl::Status why) {
  absl::MutexLock lock(&state_->mu);
  if (last_ == nullptr || last_->end.has_value()) return;
  last_->cancelled = true;
  last_->end = SaveEnd{.save = last_->task.save, .status = std::move(why)};
  state_->changed.SignalAll();
}

void SaveThread::WriteForever(const std::shared_ptr<State>& state) {
  BecomeModest();
  while (true) {
    std::shared_ptr<Work> work;
    {
      absl::MutexLock lock(&state->mu);
      state->changed.AwaitFor(&state->mu, absl::InfiniteDuration(), [&] {
        return state->closing || (state->to_write != nullptr && state->to_write->copied);
      });
      if (state->closing) return;
      work = std::exchange(state->to_write, nullptr);
    }
    const absl::Time copied = state->clock.TimeNow();
    uint64_t bytes = 0;
    absl::Status status = WriteAll(*state, *work, bytes);
    absl::MutexLock lock(&state->mu);
    state->writes = false;
    if (!work->end.has_value()) {
      work->end = SaveEnd{.save = work->task.save,
                          .status = std::move(status),
                          .copying = copied - work->began,
                          .writing = state->clock.TimeNow() - copied,
                          .bytes = bytes};
    }
    work->task.owner.reset();
    state->changed.SignalAll();
  }
}

absl::Status SaveThread::WriteAll(State& state, Work& work, uint64_t& bytes) {
  const SaveTask& task = work.task;
  RETURN_IF_ERROR(FaultPoint("snapshot"));
  if (task.may_write != nullptr) {
    RETURN_IF_ERROR(task.may_write());
  }
  absl::Status made = state.file_system.MakeFolder(task.folder);
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  CheckpointPart part{.save = task.save, .rank = task.rank};
  part.witnessed = std::move(work.witnessed);
  // What is left of a save that failed is in nobody's way.
  absl::Cleanup take_away = [&] {
    for (const SaveTask::File& file : task.files) {
      state.file_system.RemoveAll(JoinPath(task.folder, file.name)).IgnoreError();
    }
  };
  for (const SaveTask::File& file : task.files) {
    RETURN_IF_ERROR(WriteFile(state, work, file, part));
  }
  for (const ManifestFile& file : part.files) bytes += file.bytes;
  if (task.may_write != nullptr) {
    RETURN_IF_ERROR(task.may_write());
  }
  RETURN_IF_ERROR(BeforeWrite(state, work, 0));
  RETURN_IF_ERROR(WriteCheckpointPart(task.folder, part, state.file_system));
  std::move(take_away).Cancel();
  return absl::OkStatus();
}

absl::Status SaveThread::WriteFile(State& state, Work& work, const SaveTask::File& file, CheckpointPart& part) {
  std::vector<const SaveRange*> ranges;
  for (const SaveRange& range : file.ranges) ranges.push_back(&range);
  std::stable_sort(ranges.begin(), ranges.end(), [](const SaveRange* a, const SaveRange* b) {
    return DtypeBytes(a->entry.tensor.dtype) > DtypeBytes(b->entry.tensor.dtype);
  });
  std::vector<ShardEntry> entries;
  for (const SaveRange* range : ranges) entries.push_back(range->entry);
  ShardOptions options{.before_write = [&](uint64_t bytes) { return BeforeWrite(state, work, bytes); }};
  ASSIGN_OR_RETURN(
      std::unique_ptr<ShardWriter> shard,
      ShardWriter::Create(work.task.folder, file.name, std::move(entries), state.file_system, std::move(options)));
  for (const SaveRange* range : ranges) {
    RETURN_IF_ERROR(shard->Append({range->bytes, BytesOf(*range)}));
  }
  ASSIGN_OR_RETURN(WrittenShard written, shard->Finish());
  part.files.push_back(std::move(written.file));
  std::move(written.tensors.begin(), written.tensors.end(), std::back_inserter(part.tensors));
  std::move(written.nonfinite.begin(), written.nonfinite.end(), std::back_inserter(part.nonfinite));
  return absl::OkStatus();
}

absl::Status SaveThread::BeforeWrite(State& state, Work& work, uint64_t bytes) {
  const absl::Duration wait = state.throttle.Take(state.clock.TimeNow(), bytes);
  absl::MutexLock lock(&state.mu);
  if (wait > absl::ZeroDuration()) {
    state.changed.AwaitFor(&state.mu, wait, [&] { return work.cancelled || work.hurries || state.closing; });
  }
  return work.cancelled ? absl::CancelledError("the save was given up") : absl::OkStatus();
}

}  // namespace trainyard
