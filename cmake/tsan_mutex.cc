// Makes Abseil's mutexes visible to ThreadSanitizer. Debian's Abseil is compiled without ThreadSanitizer, so
// ThreadSanitizer would report a race for every access that a mutex guards. This file is linked into each program of
// the tsan preset, with --wrap for each function (Targets.cmake), so that our calls come here first. ThreadSanitizer
// ignores what Abseil does between `pre` and `post`, including the evaluation of conditions. `./dev tidy` bans the
// functions that are not wrapped here.
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#define REAL(name) __asm__("__real__ZN4absl7debian35Mutex" name)
#define WRAP(name) __asm__("__wrap__ZN4absl7debian35Mutex" name)
#define AWAIT_WITH_TIMEOUT "16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE"

void RealLock(absl::Mutex* self) REAL("4LockEv");
void RealUnlock(absl::Mutex* self) REAL("6UnlockEv");
void RealAwait(absl::Mutex* self, const absl::Condition& condition) REAL("5AwaitERKNS0_9ConditionE");
bool RealAwaitWithTimeout(absl::Mutex* self, const absl::Condition& condition, absl::Duration timeout)
    REAL(AWAIT_WITH_TIMEOUT);
void RealDestroy(absl::Mutex* self) REAL("D1Ev");

void Lock(absl::Mutex* self) WRAP("4LockEv");
void Unlock(absl::Mutex* self) WRAP("6UnlockEv");
void Await(absl::Mutex* self, const absl::Condition& condition) WRAP("5AwaitERKNS0_9ConditionE");
bool AwaitWithTimeout(absl::Mutex* self, const absl::Condition& condition, absl::Duration timeout)
    WRAP(AWAIT_WITH_TIMEOUT);
void Destroy(absl::Mutex* self) WRAP("D1Ev");

namespace {

constexpr unsigned kFlags = __tsan_mutex_linker_init;

// Encloses a call that locks the mutex, or that releases the mutex, waits, and locks it again.
class AnnotatedLock {
 public:
  explicit AnnotatedLock(absl::Mutex* mutex) : mutex_(mutex) { __tsan_mutex_pre_lock(mutex_, kFlags); }
  ~AnnotatedLock() { __tsan_mutex_post_lock(mutex_, kFlags, 0); }

 private:
  absl::Mutex* mutex_;
};

void AnnotateUnlock(absl::Mutex* mutex) {
  __tsan_mutex_pre_unlock(mutex, kFlags);
  __tsan_mutex_post_unlock(mutex, kFlags);
}

}  // namespace

void Lock(absl::Mutex* self) {
  AnnotatedLock lock(self);
  RealLock(self);
}

void Unlock(absl::Mutex* self) {
  __tsan_mutex_pre_unlock(self, kFlags);
  RealUnlock(self);
  __tsan_mutex_post_unlock(self, kFlags);
}

void Await(absl::Mutex* self, const absl::Condition& condition) {
  AnnotateUnlock(self);
  AnnotatedLock lock(self);
  RealAwait(self, condition);
}

bool AwaitWithTimeout(absl::Mutex* self, const absl::Condition& condition, absl::Duration timeout) {
  AnnotateUnlock(self);
  AnnotatedLock lock(self);
  return RealAwaitWithTimeout(self, condition, timeout);
}

void Destroy(absl::Mutex* self) {
  __tsan_mutex_destroy(self, 0);
  RealDestroy(self);
}
