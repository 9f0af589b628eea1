#include "client/output.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/exit_code.h"
#include "client/terminal.h"
#include "common/escape.h"

namespace trainyard::client {
namespace {

std::atomic<int> failure = 0;  // errno of the first write to standard output that failed
std::atomic<bool> failure_was_reported = false;

void NoteFailure(int error) {
  int none = 0;
  failure.compare_exchange_strong(none, error == 0 ? EIO : error);
}

// The code point of a character of two or three bytes, or DEL; 0 for all others, which are not escaped.
uint32_t ShortCodePoint(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  if (text.size() > 1 && (byte(0) & 0xE0) == 0xC0) return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
  if (text.size() > 2 && (byte(0) & 0xF0) == 0xE0) {
    return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  }
  return byte(0) == 0x7F ? 0x7F : 0;
}

bool IsTerminalControl(uint32_t code) {
  return (code >= 0x7F && code < 0xA0) || code == 0x2028 || code == 0x2029 || (code >= 0x202A && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

void Print(absl::string_view text) { PrintRaw(EscapeLines(text)); }

void PrintJson(absl::string_view json) { PrintRaw(absl::StrCat(JsonForTerminals(json), "\n")); }

void PrintRaw(absl::string_view bytes) {
  if (OutputFailed()) return;
  errno = 0;
  if (fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size()) NoteFailure(errno);
}

void FlushOutput() {
  if (OutputFailed()) return;
  errno = 0;
  if (fflush(stdout) != 0) NoteFailure(errno);
}

void Say(absl::string_view text) { SayUnprefixed(absl::StrCat("trainctl: ", text)); }

void SayUnprefixed(absl::string_view text) {
  // One call, so that messages of two threads do not mix. If it fails, there is nowhere to report it.
  fputs(absl::StrCat(EscapeLines(text), "\n").c_str(), stderr);
}

std::string JsonForTerminals(absl::string_view json) {
  std::string safe;
  safe.reserve(json.size());
  for (size_t i = 0; i < json.size(); ++i) {
    const uint32_t code = ShortCodePoint(json.substr(i));
    if (!IsTerminalControl(code)) {
      safe += json[i];
      continue;
    }
    absl::StrAppendFormat(&safe, "\\u%04x", code);
    i += code < 0x80 ? 0 : code < 0x800 ? 1 : 2;
  }
  return safe;
}

void WriteNow(FILE* stream, absl::string_view bytes) {
  if (stream == stdout) {
    PrintRaw(bytes);
    FlushOutput();
    return;
  }
  fwrite(bytes.data(), 1, bytes.size(), stream);
  fflush(stream);
}

bool OutputFailed() { return failure != 0; }

absl::Status OutputStatus() {
  if (!OutputFailed()) return absl::OkStatus();
  failure_was_reported = true;
  return absl::AbortedError(absl::StrCat("standard output cannot be written: ", strerror(failure)));
}

int FinishOutput(int exit_code) {
  FlushOutput();
  if (!OutputFailed()) return exit_code;
  if (!failure_was_reported) Say(absl::StrCat(OutputStatus().message(), "; the output is incomplete"));
  return exit_code == kClientDone ? kClientFailed : exit_code;
}

int OutputColumns() { return isatty(STDOUT_FILENO) != 0 ? ColumnsOf(stdout) : 0; }

}  // namespace trainyard::client
