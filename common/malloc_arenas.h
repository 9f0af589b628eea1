// The memory that glibc's allocator keeps for threads.
#pragma once

#include <malloc.h>

namespace trainyard {

// glibc gives threads up to 8 arenas per core, and each keeps what is freed in it. A daemon with many short-lived
// threads would grow until all of them are full. Call it before the first thread starts.
inline void LimitMallocArenas() {
#ifdef M_ARENA_MAX
  constexpr int kArenas = 4;
  mallopt(M_ARENA_MAX, kArenas);
#endif
}

}  // namespace trainyard
