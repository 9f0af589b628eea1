// Writes the stack of the main thread at SIGQUIT: the handler writes the names of the functions, innermost first, one
// per line, to a file, which appears when it is complete. The daemon requests this when a rank hangs and will be killed
// (worker/agent/stack_request.h).
#pragma once

#include <string>

namespace trainyard {

// Call once, before other threads are started. An empty `path` disables it.
void WriteStackAtSignal(const std::string& path);

}  // namespace trainyard
