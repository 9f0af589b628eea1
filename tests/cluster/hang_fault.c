// Preloaded into a trainer by tests/cluster/hang_test.py: stands in for a rank that is ill in the middle of a step. It
// takes the place of `double at::Tensor::item<double>() const`, which the training loop calls once a micro-batch from
// its main thread, holding no lock. What it does is in the file that HANG_FAULT names, and nothing while there is none:
//
//   spin    never returns, and computes
//   block   never returns, and waits in a system call
//   slow    returns, 20 ms late
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void misbehave(void) {
  const char* path = getenv("HANG_FAULT");
  char what[8] = "";
  int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  (void)!read(fd, what, sizeof what - 1);
  close(fd);
  volatile unsigned long work = 0;
  while (strcmp(what, "spin") == 0) ++work;
  while (strcmp(what, "block") == 0) pause();
  if (strcmp(what, "slow") == 0) usleep(20000);
}

double _ZNK2at6Tensor4itemIdEET_v(const void* tensor) {
  static double (*real)(const void*) = NULL;
  if (real == NULL) real = (double (*)(const void*))dlsym(RTLD_NEXT, "_ZNK2at6Tensor4itemIdEET_v");
  misbehave();
  return real(tensor);
}
