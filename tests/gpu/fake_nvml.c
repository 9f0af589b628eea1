// An NVML library that lists one GPU, for a daemon on a machine that has none. The trainer then reports CUDA's own
// error about that machine.
#include <string.h>

typedef struct {
  unsigned long long total, free, used;
} Memory;

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char* nvmlErrorString(int error) { return error == 0 ? "success" : "error"; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static int handle;
  *device = &handle;
  return index == 0 ? 0 : 1;
}
int nvmlDeviceGetName(void* device, char* name, unsigned size) {
  (void)device;
  strncpy(name, "Fake GPU", size);
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  (void)device;
  strncpy(uuid, "GPU-0", size);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  (void)device;
  memory->total = 1ull << 30;
  memory->free = 1ull << 30;
  memory->used = 0;
  return 0;
}
