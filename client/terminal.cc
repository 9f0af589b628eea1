#include "client/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace trainyard::client {
namespace {

bool LocaleIsUtf8() {
  // The first of these that is set and not empty decides, as for any program of POSIX.
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string locale = absl::AsciiStrToLower(value);
    return absl::StrContains(locale, "utf-8") || absl::StrContains(locale, "utf8");
  }
  return false;
}

}  // namespace

TerminalTraits TraitsOf(FILE* stream) {
  TerminalTraits traits;
  const char* term = getenv("TERM");
  traits.is_terminal = isatty(fileno(stream)) != 0 && (term == nullptr || absl::string_view(term) != "dumb");
  traits.unicode = LocaleIsUtf8();
  winsize size = {};
  if (traits.is_terminal && ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    traits.columns = size.ws_col;
  return traits;
}

void Terminal::Print(absl::string_view text) {
  std::string out;
  if (!status_.empty()) out = "\r\x1b[K";
  absl::StrAppend(&out, text);
  if (out.empty() || out.back() != '\n') out += '\n';
  absl::StrAppend(&out, status_);
  fwrite(out.data(), 1, out.size(), stream_);
  fflush(stream_);
}

void Terminal::Status(absl::string_view line) {
  if (!traits_.is_terminal) return;
  // A line of the terminal's full width would wrap on some of them.
  std::string shown(line.substr(0, static_cast<size_t>(traits_.columns > 1 ? traits_.columns - 1 : 1)));
  if (shown == status_) return;
  status_ = shown;
  std::string out = absl::StrCat("\r\x1b[K", status_);
  fwrite(out.data(), 1, out.size(), stream_);
  fflush(stream_);
}

void Terminal::Aside(FILE* other, absl::string_view line) {
  const std::string status = status_;
  ClearStatus();
  fputs(absl::StrCat(line, "\n").c_str(), other);
  fflush(other);
  Status(status);
}

void Terminal::ClearStatus() {
  if (status_.empty()) return;
  status_.clear();
  fputs("\r\x1b[K", stream_);
  fflush(stream_);
}

}  // namespace trainyard::client
