// What trainctl writes: results to standard output, sentences of its own to standard error. All verbs write through
// here, so that a write that failed (a full disk, a reader that has gone) is noticed, and foreign text is escaped
// before a terminal sees it. tools/tidy.py refuses other ways out. Not thread-safe, except for OutputFailed and Say.
#pragma once

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace trainyard::client {

// Text for people, of one line or more, as it is but for its control characters, which are escaped.
void Print(absl::string_view text);
// A JSON document and the end of its line. Characters that terminals act on are escaped as JSON escapes them.
void PrintJson(absl::string_view json);
// Bytes as they are: for output that only another program may escape.
void PrintRaw(absl::string_view bytes);
// Hands what was printed to the system; until then a failure may be unknown.
void FlushOutput();

// "trainctl: <text>" and the end of the line, on standard error, its control characters escaped.
void Say(absl::string_view text);
// The same without the name of the program: warnings that stand for themselves.
void SayPlainly(absl::string_view text);

// `json` less the characters that a terminal may act on and that JSON allows in strings: DEL, C1 and those that reverse
// the direction of writing. Pure.
std::string JsonForTerminals(absl::string_view json);

// Writes to `stream` and flushes it. Of standard output a failure is remembered, and after one nothing more is written.
void WriteNow(FILE* stream, absl::string_view bytes);

// Whether a write to standard output has failed.
bool OutputFailed();
// Ok, or Aborted: "standard output cannot be written: No space left on device".
absl::Status OutputStatus();

// At the end of the program: flushes, and turns success into a failure where the output is not complete, which it says
// unless `OutputStatus` was asked for by somebody who has said it. Returns the exit code.
int FinishOutput(int exit_code);

// Columns that a line on standard output may take; 0, any number: it is no terminal.
int OutputColumns();

}  // namespace trainyard::client
