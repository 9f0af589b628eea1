// Preloaded by the cluster tests: sets a program's wall clock back by an hour while the file named by CLOCK_BACK
// exists. The steady clock is not changed.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
  const char* file = getenv("CLOCK_BACK");
  return file != NULL && access(file, F_OK) == 0 ? 3600 : 0;
}

int clock_gettime(clockid_t clock, struct timespec* out) {
  const long result = syscall(SYS_clock_gettime, clock, out);
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec -= offset();
  return (int)result;
}

int gettimeofday(struct timeval* restrict out, void* restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != NULL) *out = now.tv_sec;
  return now.tv_sec;
}
