#include "worker/agent/process_probe.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/files.h"
#include "common/process_stat.h"

namespace trainyard::agent {
namespace {

constexpr size_t kProcBytes = 16 << 10;
constexpr size_t kKernelFrames = 32;
constexpr size_t kProbesWaitingMax = 64;

// System calls in which a process may be blocked for long: they wait, or use files.
struct NamedCall {
  long number;
  const char* name;
};
constexpr NamedCall kCalls[] = {
#define TRAINYARD_CALL(name) \
  { SYS_##name, #name }
    TRAINYARD_CALL(read),
    TRAINYARD_CALL(write),
    TRAINYARD_CALL(close),
    TRAINYARD_CALL(openat),
    TRAINYARD_CALL(pread64),
    TRAINYARD_CALL(pwrite64),
    TRAINYARD_CALL(readv),
    TRAINYARD_CALL(writev),
    TRAINYARD_CALL(fsync),
    TRAINYARD_CALL(fdatasync),
    TRAINYARD_CALL(sync),
    TRAINYARD_CALL(syncfs),
    TRAINYARD_CALL(ftruncate),
    TRAINYARD_CALL(fallocate),
    TRAINYARD_CALL(flock),
    TRAINYARD_CALL(fcntl),
    TRAINYARD_CALL(statx),
    TRAINYARD_CALL(newfstatat),
    TRAINYARD_CALL(getdents64),
    TRAINYARD_CALL(unlinkat),
    TRAINYARD_CALL(renameat2),
    TRAINYARD_CALL(mmap),
    TRAINYARD_CALL(munmap),
    TRAINYARD_CALL(mprotect),
    TRAINYARD_CALL(madvise),
    TRAINYARD_CALL(msync),
    TRAINYARD_CALL(futex),
    TRAINYARD_CALL(nanosleep),
    TRAINYARD_CALL(ioctl),
    TRAINYARD_CALL(clock_nanosleep),
    TRAINYARD_CALL(ppoll),
    TRAINYARD_CALL(pselect6),
    TRAINYARD_CALL(epoll_pwait),
    TRAINYARD_CALL(wait4),
    TRAINYARD_CALL(waitid),
    TRAINYARD_CALL(accept),
    TRAINYARD_CALL(accept4),
    TRAINYARD_CALL(connect),
    TRAINYARD_CALL(recvfrom),
    TRAINYARD_CALL(recvmsg),
    TRAINYARD_CALL(sendto),
    TRAINYARD_CALL(sendmsg),
    TRAINYARD_CALL(rt_sigsuspend),
    TRAINYARD_CALL(rt_sigtimedwait),
    TRAINYARD_CALL(io_getevents),
    TRAINYARD_CALL(process_vm_readv),
    TRAINYARD_CALL(restart_syscall),
#ifdef SYS_poll  // older architectures have these too
    TRAINYARD_CALL(poll),
    TRAINYARD_CALL(select),
    TRAINYARD_CALL(epoll_wait),
    TRAINYARD_CALL(pause),
    TRAINYARD_CALL(open),
    TRAINYARD_CALL(stat),
    TRAINYARD_CALL(rename),
    TRAINYARD_CALL(unlink),
#endif
#undef TRAINYARD_CALL
};

std::string ProcPath(pid_t pid, absl::string_view file) { return absl::StrCat("/proc/", pid, "/", file); }

std::string ReadOrEmpty(pid_t pid, absl::string_view file) {
  absl::StatusOr<std::string> text = ReadFile(ProcPath(pid, file), kProcBytes);
  return text.ok() ? *std::move(text) : "";
}

}  // namespace

absl::StatusOr<ProcessStat> ParseProcessStat(absl::string_view text) {
  const std::vector<absl::string_view> fields = StatFields(text, kStatSystemTicks);
  uint64_t user = 0;
  uint64_t system = 0;
  if (fields.empty() || fields[kStatState].size() != 1 || !absl::SimpleAtoi(fields[kStatUserTicks], &user) ||
      !absl::SimpleAtoi(fields[kStatSystemTicks], &system)) {
    return absl::DataLossError("not a /proc/<pid>/stat");
  }
  return ProcessStat{.state = std::string(fields[kStatState]),
                     .cpu_s = static_cast<double>(user + system) / static_cast<double>(sysconf(_SC_CLK_TCK))};
}

absl::StatusOr<ProcessStat> ReadProcessStat(pid_t pid) {
  absl::StatusOr<std::string> text = ReadFile(ProcPath(pid, "stat"), kProcBytes);
  if (!text.ok()) return absl::NotFoundError(absl::StrCat("no process ", pid));
  return ParseProcessStat(*text);
}

std::string ParseSystemCall(absl::string_view text) {
  long number = -1;
  if (!absl::SimpleAtoi(text.substr(0, text.find_first_of(" \n")), &number) || number < 0) return "";
  for (const NamedCall& call : kCalls) {
    if (call.number == number) return call.name;
  }
  return absl::StrCat("system call ", number);
}

std::vector<std::string> ParseKernelStack(absl::string_view text, size_t limit) {
  std::vector<std::string> frames;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    // "[<0>] futex_wait_queue+0x60/0x90"
    size_t begin = line.find("] ");
    if (begin == absl::string_view::npos) continue;
    absl::string_view name = line.substr(begin + 2);
    name = name.substr(0, name.find('+'));
    if (name.empty() || frames.size() == limit) continue;
    frames.emplace_back(name);
  }
  return frames;
}

v1::Examination InspectProcess(pid_t pid) {
  v1::Examination examination;
  absl::StatusOr<ProcessStat> stat = ReadProcessStat(pid);
  if (!stat.ok()) {
    examination.set_stack_note("the process has exited");
    return examination;
  }
  examination.set_state(stat->state);
  examination.set_system_call(ParseSystemCall(ReadOrEmpty(pid, "syscall")));
  for (std::string& frame : ParseKernelStack(ReadOrEmpty(pid, "stack"), kKernelFrames))
    examination.add_stack(std::move(frame));
  if (examination.stack_size() > 0) return examination;
  // Everyone may read wchan, the innermost function; only root can read the whole stack.
  std::string waits_in = ReadOrEmpty(pid, "wchan");
  if (!waits_in.empty() && waits_in != "0") examination.add_stack(waits_in);
  examination.set_stack_note(examination.stack_size() > 0 ? "only the innermost function of the kernel can be read"
                                                          : "the kernel's stack cannot be read, or is empty");
  return examination;
}

ProcessExaminer::ProcessExaminer(Post post, StackRequest request_stack, absl::Duration watch)
    : post_(std::move(post)), request_stack_(std::move(request_stack)), watch_(watch), thread_([this] { Run(); }) {}

ProcessExaminer::~ProcessExaminer() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void ProcessExaminer::Examine(const ExamineProcess& request) {
  absl::MutexLock lock(&mu_);
  if (requests_.size() < kProbesWaitingMax) requests_.push_back(request);
  changed_.SignalAll();
}

bool ProcessExaminer::Wait(absl::Duration duration) {
  absl::MutexLock lock(&mu_);
  return !changed_.AwaitFor(&mu_, duration, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; });
}

void ProcessExaminer::Run() {
  while (true) {
    ExamineProcess request;
    {
      absl::MutexLock lock(&mu_);
      changed_.AwaitFor(&mu_, absl::InfiniteDuration(),
                        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !requests_.empty(); });
      if (stopping_) return;
      request = std::move(requests_.front());
      requests_.pop_front();
    }
    std::optional<v1::Examination> examination = request.with_stack ? ExamineWithStack(request) : ExamineOnce(request);
    if (!examination.has_value()) return;
    examination->set_request_id(request.request_id);
    post_(ProcessExamined{request.id, *std::move(examination)});
  }
}

std::optional<v1::Examination> ProcessExaminer::ExamineOnce(const ExamineProcess& request) {
  pid_t pid = static_cast<pid_t>(request.pid);
  absl::StatusOr<ProcessStat> before = ReadProcessStat(pid);
  absl::Time began = Clock::GetSteadyClock().TimeNow();
  if (before.ok() && !Wait(watch_)) return std::nullopt;
  v1::Examination examination = InspectProcess(pid);
  absl::StatusOr<ProcessStat> after = ReadProcessStat(pid);
  double seconds = absl::ToDoubleSeconds(Clock::GetSteadyClock().TimeNow() - began);
  if (before.ok() && after.ok() && seconds > 0) {
    examination.set_cpu_share(std::max(0.0, (after->cpu_s - before->cpu_s) / seconds));
  }
  return examination;
}

// Returns the stack that the process itself reports; else the kernel's stack and a note why the process reported none.
v1::Examination ProcessExaminer::ExamineWithStack(const ExamineProcess& request) {
  v1::Examination examination = InspectProcess(static_cast<pid_t>(request.pid));
  if (examination.state().empty()) return examination;
  StackAnswer answer = {.frames = {}, .note = "this daemon cannot request a stack from the process"};
  if (request_stack_) answer = request_stack_(request, [this](absl::Duration duration) { return Wait(duration); });
  if (!answer.frames.empty()) {
    examination.clear_stack();
    examination.clear_stack_note();
    for (std::string& frame : answer.frames) examination.add_stack(std::move(frame));
    return examination;
  }
  if (examination.stack_size() > 0) {
    examination.set_stack_note(absl::StrCat(answer.note, "; the stack is that of the kernel"));
  } else {
    examination.set_stack_note(absl::StrCat(answer.note, "; ", examination.stack_note()));
  }
  return examination;
}

}  // namespace trainyard::agent
