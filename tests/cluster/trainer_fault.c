// Preloaded into trainers by the cluster tests (faulty_trainers.py) to inject faults in the middle of a step. It
// replaces `double at::Tensor::item<double>() const`, which the training loop calls once per micro-batch on its main
// thread without holding a lock. The file named by TRAINER_FAULT contains the fault; without that file nothing happens:
//
//   spin      computes forever
//   block     waits in a system call forever
//   slow MS   returns MS milliseconds later
//   eat       allocates memory until the kernel kills the process
//   skip      skips a collective of this step: the function at the offset TRAINER_FAULT_SKIPS of the program, which
//             returns nothing, does nothing until the next call of item()
//
// Each fault other than `slow` happens once: it removes the file first, so that the next generation does not have it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// x86-64: ret. This suits only a function whose result is void: an absl::Status would have to be stored.
static const unsigned char kReturn[] = {0xC3};

static unsigned char* skipped = NULL;  // start of the function that currently does nothing
static unsigned char original_code[sizeof kReturn];

static void put_code(unsigned char* at, const unsigned char* code) {
  unsigned long page = (unsigned long)sysconf(_SC_PAGESIZE);
  unsigned char* start = (unsigned char*)((unsigned long)at & ~(page - 1));
  unsigned long size = (unsigned long)(at - start) + sizeof kReturn;
  if (mprotect(start, size, PROT_READ | PROT_WRITE | PROT_EXEC) != 0) abort();
  memcpy(at, code, sizeof kReturn);
  if (mprotect(start, size, PROT_READ | PROT_EXEC) != 0) abort();
}

// The first entry is the program.
static int store_base(struct dl_phdr_info* info, size_t size, void* base) {
  (void)size;
  *(unsigned long*)base = info->dlpi_addr;
  return 1;
}

static void skip(void) {
  unsigned long base = 0;
  dl_iterate_phdr(store_base, &base);
  skipped = (unsigned char*)(base + strtoul(getenv("TRAINER_FAULT_SKIPS"), NULL, 16));
  memcpy(original_code, skipped, sizeof original_code);
  put_code(skipped, kReturn);
}

static void eat(void) {
  enum { kPiece = 1 << 24 };
  while (1) memset(malloc(kPiece), 1, kPiece);
}

static void misbehave(void) {
  if (skipped != NULL) put_code(skipped, original_code);
  skipped = NULL;
  const char* path = getenv("TRAINER_FAULT");
  char what[16] = "";
  int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  (void)!read(fd, what, sizeof what - 1);
  close(fd);
  if (what[0] == '\0') return;
  if (strncmp(what, "slow ", 5) == 0) {
    usleep(1000 * (unsigned)atoi(what + 5));
    return;
  }
  unlink(path);
  volatile unsigned long work = 0;
  while (strcmp(what, "spin") == 0) ++work;
  while (strcmp(what, "block") == 0) pause();
  if (strcmp(what, "eat") == 0) eat();
  if (strcmp(what, "skip") == 0) skip();
}

double _ZNK2at6Tensor4itemIdEET_v(const void* tensor) {
  static double (*real)(const void*) = NULL;
  if (real == NULL) real = (double (*)(const void*))dlsym(RTLD_NEXT, "_ZNK2at6Tensor4itemIdEET_v");
  misbehave();
  return real(tensor);
}
