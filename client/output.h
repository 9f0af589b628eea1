// The output of trainctl: results go to standard output, its own messages to standard error. All verbs write through
// these functions, so that failed writes (a full disk, a closed pipe) are noticed and text from elsewhere is escaped
// before a terminal interprets it. tools/tidy.py rejects other ways to write. Not thread-safe, except for
// OutputFailed, Say and SayUnprefixed.
#pragma once

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace trainyard::client {

// Prints text of one or more lines with its control characters escaped.
void Print(absl::string_view text);
// Prints a JSON document and a newline. Characters that terminals interpret become JSON escapes.
void PrintJson(absl::string_view json);
// Prints bytes unchanged: for output that must not be escaped here.
void PrintRaw(absl::string_view bytes);
// Flushes standard output; a failed write may be detected only then.
void FlushOutput();

// Writes "trainctl: <text>" and a newline to standard error, control characters escaped.
void Say(absl::string_view text);
// The same without the "trainctl: " prefix.
void SayUnprefixed(absl::string_view text);

// Returns `json` with those characters escaped that JSON allows in strings but terminals interpret: DEL, C1 and changes
// of writing direction. Pure.
std::string JsonForTerminals(absl::string_view json);

// Writes to `stream` and flushes it. After a failed write to standard output nothing more is written to it.
void WriteNow(FILE* stream, absl::string_view bytes);

// Returns whether a write to standard output has failed.
bool OutputFailed();
// OK, or Aborted: "standard output cannot be written: No space left on device".
absl::Status OutputStatus();

// Call at the end of the program: flushes, and turns success into a failure if the output is incomplete. Reports that
// failure unless a caller of OutputStatus has already done so. Returns the exit code.
int FinishOutput(int exit_code);

// The width of the terminal on standard output; 0 (no limit) if it is not a terminal.
int OutputColumns();

}  // namespace trainyard::client
