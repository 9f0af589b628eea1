#include "client/byte_progress.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/column_width.h"
#include "client/text.h"
#include "common/escape.h"

namespace trainyard::client {
namespace {

constexpr absl::Duration kRedraw = absl::Milliseconds(100);
constexpr size_t kBarColumns = 20;

}  // namespace

std::string ByteBar(absl::string_view label, uint64_t done, uint64_t total, absl::Duration elapsed, int columns) {
  const double share = total == 0 ? 1 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const size_t filled = static_cast<size_t>(share * kBarColumns);
  const double seconds = absl::ToDoubleSeconds(elapsed);
  const std::string rate =
      seconds > 0 ? absl::StrCat("  ", BytesText(static_cast<uint64_t>(static_cast<double>(done) / seconds)), "/s")
                  : "";
  const std::string bar = absl::StrCat("[", std::string(filled, '#'), std::string(kBarColumns - filled, '.'), "] ");
  const std::string percent = absl::StrCat(static_cast<int>(share * 100), "%");
  const std::string amounts = absl::StrCat("  ", BytesText(done), " of ", BytesText(total));
  // The forms of the line, from the longest to the shortest.
  for (const std::string& line :
       {absl::StrCat(label, " ", bar, percent, amounts, rate), absl::StrCat(label, " ", bar, percent, amounts),
        absl::StrCat(label, " ", percent, amounts)}) {
    if (columns <= 0 || TextColumns(line) < static_cast<size_t>(columns)) return line;
  }
  // The share is more important than the end of a long label.
  const size_t space = static_cast<size_t>(std::max(columns, 1));
  const size_t kept = space - std::min(space, percent.size() + 2);
  return absl::StrCat(CutToColumns(label, kept), " ", percent);
}

ByteProgress::ByteProgress(FILE* stream, absl::string_view label, uint64_t total)
    : label_(EscapeText(label)), total_(total), began_(absl::Now()), terminal_(stream, TraitsOf(stream)) {}

void ByteProgress::Add(uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  done_ += bytes;
  const absl::Time now = absl::Now();
  if (now - last_drawn_ < kRedraw && done_ < total_) return;
  last_drawn_ = now;
  terminal_.Status(ByteBar(label_, done_, total_, now - began_, terminal_.columns()));
}

}  // namespace trainyard::client
