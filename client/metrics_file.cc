// Metrics of a run folder. The first pass over metrics.jsonl finds where step numbers decrease, which they do if a
// generation repeats steps whose lines were not removed; the second pass leaves out lines whose steps were repeated
// later.
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/metrics_source.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

constexpr size_t kMetricsBlockBytes = 256 << 10;
constexpr size_t kMetricsLineBytes = 1 << 20;
// A run has at most one more segment than resumes. Each needs 24 bytes.
constexpr size_t kSegmentsMax = 1'000'000;

// Consecutive lines whose step numbers increase.
struct Segment {
  uint64_t first_line = 0;
  uint64_t first_step = 0;
  uint64_t limit = UINT64_MAX;  // the lowest first step of later segments: they repeat it and the steps after it
};

class MetricsFileSource final : public MetricsSource {
 public:
  MetricsFileSource(int fd, const std::string& path, const std::string& name)
      : MetricsSource(name, path), fd_(fd), path_(path) {
    computes_times_ = true;
  }
  ~MetricsFileSource() override { close(fd_); }

  // The first pass.
  absl::Status FindSegments() {
    struct stat st;
    if (fstat(fd_, &st) != 0) return ErrnoStatus(errno, absl::StrCat("cannot read the size of ", path_));
    size_ = static_cast<uint64_t>(st.st_size);
    double seconds = 0;
    uint64_t last_step = 0;
    RETURN_IF_ERROR(ForEachLine(&lines_hash_, [&](uint64_t number, absl::string_view line) -> absl::Status {
      const absl::optional<MetricsLineStart> start = ScanMetricsLine(line);
      if (!start.has_value()) return absl::OkStatus();
      seconds += start->seconds;
      // Only steps begin a segment, because an evaluation may be written after a later step.
      if (segments_.empty() || (!start->is_eval && start->step <= last_step)) {
        if (segments_.size() >= kSegmentsMax) {
          return absl::ResourceExhaustedError(absl::StrCat(path_, ": the steps go back more than ", kSegmentsMax,
                                                           " times; it is not a file of one run"));
        }
        segments_.push_back({.first_line = number, .first_step = start->step});
      }
      if (!start->is_eval) last_step = start->step;
      return absl::OkStatus();
    }));
    for (size_t i = segments_.size(); i-- > 1;) {
      segments_[i - 1].limit = std::min(segments_[i].limit, segments_[i].first_step);
    }
    start_ = BirthOf(absl::TimeFromTimespec(st.st_mtim) - absl::Seconds(seconds));
    return absl::OkStatus();
  }

 private:
  absl::Status ReadAll(const Use& use) override {
    size_t segment = 0;
    uint64_t hash = 0, last_step = 0, last_eval = 0;
    absl::Time time = start_;
    bool continues = true;
    RETURN_IF_ERROR(ForEachLine(&hash, [&](uint64_t number, absl::string_view line) -> absl::Status {
      if (!continues) return absl::OkStatus();
      absl::optional<MetricsRecord> record = ParseMetricsLine(line);
      if (!record.has_value()) {
        ++totals_.damaged;
        return absl::OkStatus();
      }
      if (segments_.empty()) return Changed();  // the first pass found no record
      while (segment + 1 < segments_.size() && segments_[segment + 1].first_line <= number) ++segment;
      time += absl::Seconds(record->Duration());
      record->time = time;
      // A line that looks right at its start may still be damaged, so the order is checked once more.
      uint64_t& last = record->is_eval ? last_eval : last_step;
      if (record->step >= segments_[segment].limit || (last > 0 && record->step <= last)) {
        ++totals_.replaced;
        return absl::OkStatus();
      }
      last = record->step;
      continues = use(*record);
      return absl::OkStatus();
    }));
    return hash == lines_hash_ ? absl::OkStatus() : Changed();
  }

  absl::Status Changed() const {
    return absl::AbortedError(
        absl::StrCat(path_, " was changed while it was read, perhaps by a run that resumed; run the command again"));
  }

  // When the file was created: the same time in every export. `otherwise` if the file system does not know it.
  absl::Time BirthOf(absl::Time otherwise) const {
    struct statx info = {};
    if (statx(fd_, "", AT_EMPTY_PATH, STATX_BTIME, &info) != 0 || (info.stx_mask & STATX_BTIME) == 0) return otherwise;
    return absl::FromUnixSeconds(info.stx_btime.tv_sec) + absl::Nanoseconds(info.stx_btime.tv_nsec);
  }

  std::string WhyMissing() const override { return "the file has no lines for them"; }

  // Calls `use` with the number of each whole line, from 0, without its line feed. A line that is too long is passed as
  // an empty text. An unfinished last line is ignored. Sets `hash` to the hash of all lines.
  template <typename UseLine>
  absl::Status ForEachLine(uint64_t* hash, const UseLine& use) {
    std::string buffer;
    uint64_t number = 0;
    bool skips = false;  // inside a line that is too long
    for (uint64_t at = 0; at < size_;) {
      const size_t kept = buffer.size(), wanted = std::min<uint64_t>(kMetricsBlockBytes, size_ - at);
      buffer.resize(kept + wanted);
      const ssize_t n = pread(fd_, buffer.data() + kept, wanted, static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) {
        buffer.resize(kept);
        continue;
      }
      if (n < 0) return ErrnoStatus(errno, absl::StrCat("cannot read ", path_));
      if (n == 0) return Changed();
      buffer.resize(kept + static_cast<size_t>(n));
      at += static_cast<uint64_t>(n);
      size_t begin = 0;
      for (size_t end; (end = buffer.find('\n', std::max(begin, kept))) != std::string::npos; begin = end + 1) {
        const absl::string_view line(buffer.data() + begin, end - begin);
        *hash = absl::HashOf(*hash, line);
        RETURN_IF_ERROR(use(number++, std::exchange(skips, false) ? "" : line));
      }
      buffer.erase(0, begin);
      if (buffer.size() > kMetricsLineBytes) {
        skips = true;
        buffer.clear();
      }
    }
    return absl::OkStatus();
  }

  const int fd_;
  const std::string path_;
  uint64_t size_ = 0;
  uint64_t lines_hash_ = 0;  // of the first pass
  std::vector<Segment> segments_;
  absl::Time start_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsSource>> OpenMetricsFile(const std::string& path, const std::string& name) {
  ASSIGN_OR_RETURN(const int fd, OpenRegularFile(path, O_RDONLY));
  auto source = std::make_unique<MetricsFileSource>(fd, path, name);
  RETURN_IF_ERROR(source->FindSegments());
  return source;
}

}  // namespace trainyard::client
