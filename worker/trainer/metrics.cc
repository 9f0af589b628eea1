#include "worker/trainer/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr uint64_t kBlockBytes = 64 << 10;

// The shortest text that reads back as the same number; null for values that JSON cannot represent.
std::string Number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  auto end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

}  // namespace

std::string MetricsLine(const StepRecord& record) {
  double tokens_per_s = record.step_s > 0 ? static_cast<double>(record.tokens) / record.step_s : 0;
  return absl::StrCat(
      "{\"event\":\"step\",\"step\":", record.step, ",\"loss\":", Number(record.loss), ",\"tokens\":", record.tokens,
      ",\"tokens_per_s\":", Number(tokens_per_s), ",\"step_s\":", Number(record.step_s), ",\"lr\":", Number(record.lr),
      ",\"grad_norm\":", Number(record.grad_norm), ",\"compute_s\":", Number(record.compute_s),
      ",\"exposed_communication_s\":", Number(record.exposed_communication_s),
      ",\"gradient_reductions\":", record.gradient_reductions, ",\"optimizer_s\":", Number(record.optimizer_s),
      record.model_wait_s > 0 ? absl::StrCat(",\"model_wait_s\":", Number(record.model_wait_s)) : "",
      record.epoch > 0 ? absl::StrCat(",\"epoch\":", Number(record.epoch)) : "",
      record.skipped ? ",\"skipped\":true" : "",
      record.loss_scale > 0 ? absl::StrCat(",\"loss_scale\":", Number(record.loss_scale)) : "",
      record.save_stall_s > 0 ? absl::StrCat(",\"save_stall_s\":", Number(record.save_stall_s)) : "", "}\n");
}

std::string MetricsLine(const EvalRecord& record) {
  return absl::StrCat("{\"event\":\"eval\",\"step\":", record.step, ",\"loss\":", Number(record.loss),
                      ",\"tokens\":", record.tokens, ",\"seconds\":", Number(record.seconds), "}\n");
}

namespace {

// Reads the lines of a file backwards, from its end. The last line of the file may be incomplete, without a line feed.
class LinesFromEnd {
 public:
  LinesFromEnd(int fd, const std::string& path, uint64_t size) : fd_(fd), path_(path), begin_(size) {}

  // Returns false if there are no more lines. `first`: the position of the line in the file.
  absl::StatusOr<bool> Next(uint64_t& first, std::string& line) {
    while (true) {
      const size_t end = buffer_.size() < 2 ? std::string::npos : buffer_.rfind('\n', buffer_.size() - 2);
      if (end == std::string::npos && begin_ > 0) {
        RETURN_IF_ERROR(ReadBefore());
        continue;
      }
      if (buffer_.empty()) return false;
      const size_t from = end == std::string::npos ? 0 : end + 1;
      first = begin_ + from;
      line = buffer_.substr(from);
      buffer_.resize(from);
      return true;
    }
  }

 private:
  // Doubles the buffer, so that a file without line feeds is not copied for each block.
  absl::Status ReadBefore() {
    const uint64_t bytes = std::min(begin_, std::max<uint64_t>(kBlockBytes, buffer_.size()));
    std::string before(bytes, '\0');
    for (uint64_t done = 0; done < bytes;) {
      const ssize_t n = pread(fd_, before.data() + done, bytes - done, static_cast<off_t>(begin_ - bytes + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, absl::StrCat("cannot read ", path_));
      if (n == 0) return absl::UnknownError(absl::StrCat(path_, " was truncated while it was read"));
      done += static_cast<uint64_t>(n);
    }
    begin_ -= bytes;
    buffer_.insert(0, before);
    return absl::OkStatus();
  }

  const int fd_;
  const std::string& path_;
  uint64_t begin_;      // position of the buffer in the file
  std::string buffer_;  // up to the last line returned
};

// Whether `line` is a whole line of MetricsLine for a step up to `last_step`. Most lines of later steps are rejected
// without parsing.
bool MustKeep(absl::string_view line, uint64_t last_step) {
  if (!absl::ConsumeSuffix(&line, "\n")) return false;
  constexpr absl::string_view kStep = "\"step\":";
  const size_t at = line.find(kStep);
  if (at == absl::string_view::npos) return false;
  uint64_t step = 0;
  const char* digits = line.data() + at + kStep.size();
  const auto [end, error] = std::from_chars(digits, line.data() + line.size(), step);
  if (error == std::errc() && step > last_step) return false;
  const nlohmann::json json = nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("step") && json["step"].is_number_unsigned() &&
         json["step"].get<uint64_t>() <= last_step;
}

// Returns the number of bytes to keep.
absl::StatusOr<uint64_t> FindKeptBytes(int fd, const std::string& path, uint64_t size, uint64_t last_step) {
  LinesFromEnd lines(fd, path, size);
  uint64_t first = 0;
  std::string line;
  while (true) {
    ASSIGN_OR_RETURN(const bool found, lines.Next(first, line));
    if (!found) return 0;
    if (MustKeep(line, last_step)) return first + line.size();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsFile>> MetricsFile::Open(const std::string& path, uint64_t last_step) {
  ASSIGN_OR_RETURN(const int fd, OpenRegularFile(path, O_RDWR | O_CREAT | O_APPEND));
  std::unique_ptr<MetricsFile> file(new MetricsFile(fd, path));
  struct stat st;
  if (fstat(fd, &st) != 0) return ErrnoStatus(errno, absl::StrCat("cannot read the size of ", path));
  const uint64_t size = static_cast<uint64_t>(st.st_size);
  ASSIGN_OR_RETURN(const uint64_t kept_bytes, FindKeptBytes(fd, path, size, last_step));
  if (kept_bytes < size && ftruncate(fd, static_cast<off_t>(kept_bytes)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot truncate ", path));
  }
  return file;
}

namespace {

// A line of a step that has an epoch.
struct StepLine {
  EpochStep step;
  double epochs = 0;
};

std::optional<StepLine> ParseStepLine(absl::string_view line) {
  const nlohmann::json json = nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("event", nlohmann::json()) != "step") return std::nullopt;
  const auto has = [&json](const char* key) { return json.contains(key) && json[key].is_number(); };
  if (!has("step") || !has("tokens") || !has("epoch") || !json.contains("loss")) return std::nullopt;
  return StepLine{.step = {.step = json["step"].get<uint64_t>(),
                           .loss = has("loss") ? json["loss"].get<double>() : std::nan(""),
                           .tokens = json["tokens"].get<uint64_t>()},
                  .epochs = json["epoch"].get<double>()};
}

bool IsEvaluation(absl::string_view line) { return absl::StartsWith(line, "{\"event\":\"eval\""); }

}  // namespace

MetricsFile::StepsOfEpoch MetricsFile::ReadStepsOfEpoch(double epochs) const {
  StepsOfEpoch found;
  struct stat st;
  if (fstat(fd_, &st) != 0) return found;
  const uint64_t size = static_cast<uint64_t>(st.st_size);
  const double begin = std::floor(epochs);  // of the epoch under way
  // The step of a line counts only if the line before it shows that the step began in this epoch.
  std::optional<StepLine> later;
  const auto keep_later = [&] {
    if (later.has_value()) found.steps.push_back(later->step);
  };
  LinesFromEnd lines(fd_, path_, size);
  uint64_t first = size;
  std::string text;
  while (size - first < kEpochReadBytesMax) {
    const absl::StatusOr<bool> more = lines.Next(first, text);
    if (!more.ok()) break;
    if (!*more) {
      // The first step of a run has no line before it.
      found.is_whole = later.has_value() ? later->step.step == 1 : epochs == 0;
      if (found.is_whole) keep_later();
      break;
    }
    if (IsEvaluation(text)) continue;
    const std::optional<StepLine> line = ParseStepLine(text);
    const bool is_next = line.has_value() && (later.has_value() ? line->step.step + 1 == later->step.step
                                                                : std::abs(line->epochs - epochs) < 1e-9);
    if (!is_next) break;
    // If this line is before `begin`, the later step began in the epoch before, and counts for that epoch.
    found.is_whole = line->epochs <= begin;
    if (line->epochs >= begin) keep_later();
    if (found.is_whole) break;
    later = line;
  }
  std::reverse(found.steps.begin(), found.steps.end());
  return found;
}

MetricsFile::~MetricsFile() { close(fd_); }

absl::Status MetricsFile::Append(absl::string_view line) {
  if (pending_.size() + line.size() <= kPendingBytesMax) absl::StrAppend(&pending_, line);
  size_t written = 0;
  absl::Status status;
  while (written < pending_.size() && status.ok()) {
    ssize_t n = write(fd_, pending_.data() + written, pending_.size() - written);
    if (n >= 0) {
      written += static_cast<size_t>(n);
    } else if (errno != EINTR) {
      status = ErrnoStatus(errno, absl::StrCat("cannot write ", path_));
    }
  }
  pending_.erase(0, written);
  return status;
}

}  // namespace trainyard
