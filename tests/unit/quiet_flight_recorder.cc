// Linked into test programs that run ranks as threads. LibTorch's flight recorder is one for the process and not made
// for two groups at once; its size is read at its first use, whichever test that is in, so it is turned off before any.
#include <stdlib.h>

namespace {

[[maybe_unused]] const int kTurnedOff = setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);

}  // namespace
