#include "worker/collectives/shared_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/allocate_now.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr char kSegmentName[] = "shared-memory";
constexpr uint32_t kMagic = 0x54594d31;                           // "TYM1"
constexpr absl::Duration kPollInterval = absl::Milliseconds(50);  // between two checks that the peers still run
constexpr absl::Duration kSpin = absl::Microseconds(30);          // how long a rank spins before it sleeps
constexpr size_t kPage = 4'096;
constexpr uint32_t kGaveUp = uint32_t{1} << 31;  // a flag in Header::broken_by

struct Counter {
  std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleepers;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free, "counters are shared among processes");

// Tickets (numbers of pieces) wrap around, and those of two ranks never differ by more than a few, so the sign of the
// difference decides.
bool HasReached(const Counter& counter, uint32_t ticket) {
  return static_cast<int32_t>(counter.value.load(std::memory_order_seq_cst) - ticket) >= 0;
}

void Sleep(Counter& counter, uint32_t seen, absl::Duration max_wait) {
  timespec limit = absl::ToTimespec(max_wait);
  counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &counter.value, FUTEX_WAIT, seen, &limit, nullptr, 0);
  counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void Wake(Counter& counter) { syscall(SYS_futex, &counter.value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Spinning helps only if every rank has a core of its own.
bool EachHasACore(int world_size) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) >= world_size;
}

size_t RoundUp(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

struct alignas(128) SharedSegment::Member {
  struct Buffer {
    int32_t fd;
    uint64_t bytes;
  };
  struct Location {  // of the rank's input for a piece
    int32_t buffer;  // -1: in its InputSpace
    uint64_t offset;
  };
  std::atomic<int32_t> pid;
  Counter stages[kNumStages];
  char operations[2][kOperationBytes];
  Location locations[2];
  Buffer buffers[kMaxBuffers];  // each written once, before the first location that refers to it
};

struct alignas(128) SharedSegment::Header {
  uint32_t magic;
  uint32_t world_size;
  uint64_t piece_bytes;
  std::atomic<uint32_t> broken_by;  // rank + 1, with kGaveUp if the rank has waited too long; 0: not broken
};

SharedSegment::Member& SharedSegment::member(int rank) const { return reinterpret_cast<Member*>(header_ + 1)[rank]; }

size_t SharedSegment::size_bytes() const {
  size_t world = static_cast<size_t>(options_.world_size);
  return RoundUp(sizeof(Header) + world * sizeof(Member)) + 2 * (world + 1) * RoundUp(options_.piece_bytes);
}

std::byte* SharedSegment::InputSpace(int rank, uint32_t ticket) const {
  size_t world = static_cast<size_t>(options_.world_size);
  std::byte* space = reinterpret_cast<std::byte*>(header_) + RoundUp(sizeof(Header) + world * sizeof(Member));
  return space + (2 * static_cast<size_t>(rank) + ticket % 2) * RoundUp(options_.piece_bytes);
}

std::byte* SharedSegment::ResultSpace(uint32_t ticket) const { return InputSpace(options_.world_size, ticket); }

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Join(const SharedSegmentOptions& options) {
  std::unique_ptr<SharedSegment> segment(new SharedSegment(options));
  absl::Status status = options.rank == 0 ? segment->Make() : segment->Open();
  if (status.ok()) status = segment->OpenPeers();
  if (!status.ok()) {
    segment->Break();
    return absl::Status(status.code(),
                        absl::StrCat("rank ", segment->NameOf(options.rank), " in a group of ", options.world_size,
                                     " could not share memory with its peers: ", status.message()));
  }
  return segment;
}

SharedSegment::~SharedSegment() {
  for (int fd : pidfds_) {
    if (fd >= 0) close(fd);
  }
  if (header_ != nullptr) munmap(header_, size_bytes());
  if (fd_ >= 0) close(fd_);
}

absl::Status SharedSegment::Make() {
  fd_ = memfd_create("trainyard-segment", MFD_CLOEXEC);
  if (fd_ < 0) return ErrnoStatus(errno, "cannot create shared memory");
  const int error = AllocateNow(fd_, size_bytes());
  if (error != 0) return ErrnoStatus(error, absl::StrCat("cannot allocate ", size_bytes(), " bytes of shared memory"));
  RETURN_IF_ERROR(Map(fd_));
  header_->world_size = static_cast<uint32_t>(options_.world_size);
  header_->piece_bytes = options_.piece_bytes;
  header_->magic = kMagic;
  return options_.store->Put(absl::StrCat(options_.prefix, kSegmentName), absl::StrCat(getpid(), " ", fd_));
}

absl::Status SharedSegment::Open() {
  ASSIGN_OR_RETURN(std::string location,
                   options_.store->Get(absl::StrCat(options_.prefix, kSegmentName), options_.timeout));
  std::vector<std::string> fields = absl::StrSplit(location, ' ');
  int pid = 0, fd = 0;
  if (fields.size() != 2 || !absl::SimpleAtoi(fields[0], &pid) || !absl::SimpleAtoi(fields[1], &fd)) {
    return absl::InternalError(absl::StrCat("rank 0 published '", location,
                                            "' as the location of its memory; expected "
                                            "a process ID and the number of a file descriptor"));
  }
  std::string path = absl::StrCat("/proc/", pid, "/fd/", fd);
  fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd_ < 0) return ErrnoStatus(errno, absl::StrCat("cannot open the memory of rank 0, ", path));
  struct stat status;
  if (fstat(fd_, &status) != 0 || static_cast<size_t>(status.st_size) != size_bytes()) {
    return absl::InternalError(absl::StrCat(path, " does not have the ", size_bytes(), " bytes of the group's memory"));
  }
  RETURN_IF_ERROR(Map(fd_));
  const bool is_of_this_group = header_->magic == kMagic &&
                                header_->world_size == static_cast<uint32_t>(options_.world_size) &&
                                header_->piece_bytes == options_.piece_bytes;
  if (is_of_this_group) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(path, " is not the memory of this group"));
}

absl::Status SharedSegment::Map(int fd) {
  void* address = mmap(nullptr, size_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (address == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("cannot map ", size_bytes(), " bytes"));
  header_ = static_cast<Header*>(address);
  return absl::OkStatus();
}

// There are two rounds, and processes are opened between them: a rank that arrives in the second one was still running
// when its process was opened, so the opened process is not a later process with the same ID.
absl::Status SharedSegment::OpenPeers() {
  pidfds_.assign(static_cast<size_t>(options_.world_size), -1);
  member(options_.rank).pid.store(getpid());
  Signal(kArrived, 1);
  RETURN_IF_ERROR(AwaitAll(kArrived, 1));
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (rank == options_.rank) continue;
    pidfds_[rank] = static_cast<int>(syscall(SYS_pidfd_open, member(rank).pid.load(), 0));
    if (pidfds_[rank] < 0) return ErrnoStatus(errno, absl::StrCat("cannot watch the process of rank ", rank));
  }
  Signal(kArrived, 2);
  RETURN_IF_ERROR(AwaitAll(kArrived, 2));
  Signal(kReduced, 2);
  Signal(kDone, 2);
  return AwaitAll(kDone, 2);
}

std::shared_ptr<SharedBuffer> SharedSegment::NewBuffer(size_t bytes) {
  if (bytes == 0 || buffers_.size() >= kMaxBuffers) return nullptr;
  absl::StatusOr<std::shared_ptr<SharedBuffer>> buffer = SharedBuffer::Make(bytes);
  if (!buffer.ok()) return nullptr;
  member(options_.rank).buffers[buffers_.size()] = {.fd = (*buffer)->fd(), .bytes = bytes};
  buffers_.push_back(*buffer);
  return *buffer;
}

bool SharedSegment::SetLocation(uint32_t ticket, const void* data, size_t bytes) {
  Member::Location& location = member(options_.rank).locations[ticket % 2];
  location = {.buffer = -1, .offset = 0};
  const auto* from = static_cast<const std::byte*>(data);
  for (size_t i = 0; from != nullptr && i < buffers_.size(); ++i) {
    std::shared_ptr<SharedBuffer> buffer = buffers_[i].lock();
    if (buffer == nullptr || from < buffer->data() || from + bytes > buffer->data() + buffer->size()) continue;
    location = {.buffer = static_cast<int32_t>(i), .offset = static_cast<uint64_t>(from - buffer->data())};
    return true;
  }
  return false;
}

absl::StatusOr<const std::byte*> SharedSegment::LocationOf(int rank, uint32_t ticket) {
  Member& peer = member(rank);
  const Member::Location location = peer.locations[ticket % 2];
  if (location.buffer < 0) return nullptr;
  if (location.buffer >= kMaxBuffers)
    return absl::InternalError(absl::StrCat("rank ", NameOf(rank), " published an unknown buffer"));
  peer_buffers_.resize(static_cast<size_t>(options_.world_size));
  std::shared_ptr<SharedBuffer>& buffer = peer_buffers_[static_cast<size_t>(rank)][location.buffer];
  if (buffer == nullptr) {
    const Member::Buffer& published = peer.buffers[location.buffer];
    ASSIGN_OR_RETURN(buffer, SharedBuffer::Open(peer.pid.load(), published.fd, published.bytes),
                     << "of rank " << NameOf(rank));
  }
  return buffer->data() + location.offset;
}

void SharedSegment::SetOperation(uint32_t ticket, absl::string_view operation) {
  char* slot = member(options_.rank).operations[ticket % 2];
  size_t size = std::min(operation.size(), kOperationBytes - 1);
  std::memcpy(slot, operation.data(), size);
  slot[size] = '\0';
}

std::string SharedSegment::OperationOf(int rank, uint32_t ticket) const {
  const char* slot = member(rank).operations[ticket % 2];
  return std::string(slot, strnlen(slot, kOperationBytes));
}

void SharedSegment::Signal(Stage stage, uint32_t ticket) {
  Counter& counter = member(options_.rank).stages[stage];
  counter.value.store(ticket, std::memory_order_seq_cst);
  if (counter.sleepers.load(std::memory_order_seq_cst) > 0) Wake(counter);
}

absl::Status SharedSegment::AwaitAll(Stage stage, uint32_t ticket) {
  for (int i = 1; i < options_.world_size; ++i) {
    RETURN_IF_ERROR(Await((options_.rank + i) % options_.world_size, stage, ticket));
  }
  return absl::OkStatus();
}

bool SharedSegment::HaveAll(Stage stage, uint32_t ticket) const {
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (rank != options_.rank && !HasReached(member(rank).stages[stage], ticket)) return false;
  }
  return true;
}

absl::Status SharedSegment::Await(int rank, Stage stage, uint32_t ticket) {
  Counter& counter = member(rank).stages[stage];
  if (HasReached(counter, ticket)) return absl::OkStatus();
  // A process decides this once, with its first and largest group (JoinMesh): the ranks of a smaller group share the
  // cores of the host with those of the other groups.
  static const bool may_spin = EachHasACore(options_.world_size);
  // Uses the steady clock: a change of the wall clock must not break a collective.
  const auto start = std::chrono::steady_clock::now();
  const auto waited = [&] { return absl::FromChrono(std::chrono::steady_clock::now() - start); };
  while (may_spin && waited() < kSpin) {
    for (int i = 0; i < 64; ++i) {
      if (HasReached(counter, ticket)) return absl::OkStatus();
      Pause();
    }
  }
  while (true) {
    uint32_t seen = counter.value.load(std::memory_order_seq_cst);
    if (HasReached(counter, ticket)) return absl::OkStatus();
    if (absl::Status peers = CheckPeers(rank); !peers.ok()) {
      // What the rank signalled before it left is still valid.
      return HasReached(counter, ticket) && !is_broken_by_us_ ? absl::OkStatus() : peers;
    }
    const absl::Duration left = timeout_ - waited();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat(MissingRanks(stage, ticket), " did not arrive within ", absl::FormatDuration(timeout_)));
    }
    Sleep(counter, seen, std::min(left, kPollInterval));
    if (HasReached(counter, ticket)) return absl::OkStatus();
  }
}

std::string SharedSegment::MissingRanks(Stage stage, uint32_t ticket) const {
  std::vector<int> missing;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    if (rank != options_.rank && !HasReached(member(rank).stages[stage], ticket)) missing.push_back(NameOf(rank));
  }
  return absl::StrCat(missing.size() == 1 ? "rank " : "ranks ", absl::StrJoin(missing, ", "));
}

absl::Status SharedSegment::CheckPeers(int rank) const {
  if (is_broken_by_us_) return absl::AbortedError("the group was aborted");
  uint32_t broken_by = header_->broken_by.load(std::memory_order_seq_cst);
  if (broken_by != 0) {
    const int breaker = static_cast<int>(broken_by & ~kGaveUp) - 1;
    const std::string left = absl::StrCat("rank ", NameOf(breaker), " has left the group");
    if ((broken_by & kGaveUp) == 0) return absl::UnavailableError(left);
    return absl::DeadlineExceededError(absl::StrCat(left, ", because not all ranks arrived in time"));
  }
  if (static_cast<size_t>(rank) >= pidfds_.size() || pidfds_[rank] < 0) return absl::OkStatus();
  pollfd polled{.fd = pidfds_[rank], .events = POLLIN, .revents = 0};
  if (poll(&polled, 1, 0) <= 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("rank ", NameOf(rank), " has exited"));
}

void SharedSegment::Break(bool gave_up) {
  is_broken_by_us_ = true;
  if (header_ == nullptr) return;
  uint32_t not_broken = 0;
  const uint32_t breaker = static_cast<uint32_t>(options_.rank) + 1;
  header_->broken_by.compare_exchange_strong(not_broken, gave_up ? breaker | kGaveUp : breaker);
  for (int rank = 0; rank < options_.world_size; ++rank) {
    for (Counter& counter : member(rank).stages) Wake(counter);
  }
}

}  // namespace trainyard
