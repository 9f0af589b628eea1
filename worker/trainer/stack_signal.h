// Where the main thread is, for whoever asks by SIGQUIT: the handler writes the names of its functions, innermost
// first, a line each, to a file, which appears whole. The daemon asks when it is told that a rank hangs and is to be
// ended (worker/agent/stack_question.h).
#pragma once

#include <string>

namespace trainyard {

// Once, before other threads are started. An empty `path`: nobody will ask.
void WriteStackAtSignal(const std::string& path);

}  // namespace trainyard
