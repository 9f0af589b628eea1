// Turns LibTorch's flight recorder off in test programs that run ranks as threads: there is one per process, and it
// does not support two groups at the same time. LibTorch reads its size at the first use, so this runs before any test.
#include <stdlib.h>

namespace {

[[maybe_unused]] const int kTurnedOff = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);

}  // namespace
