#include "worker/trainer/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard {
namespace {

constexpr uint64_t kFileBytes = uint64_t{16} << 30;

// The shortest text that reads back as the same number; JSON has no word for the others.
std::string Number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  auto end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

}  // namespace

std::string MetricsLine(const StepRecord& r) {
  double tokens_per_s = r.step_s > 0 ? static_cast<double>(r.tokens) / r.step_s : 0;
  return absl::StrCat("{\"event\":\"step\",\"step\":", r.step, ",\"loss\":", Number(r.loss), ",\"tokens\":", r.tokens,
                      ",\"tokens_per_s\":", Number(tokens_per_s), ",\"step_s\":", Number(r.step_s),
                      ",\"lr\":", Number(r.lr), ",\"grad_norm\":", Number(r.grad_norm),
                      ",\"compute_s\":", Number(r.compute_s),
                      ",\"exposed_communication_s\":", Number(r.exposed_communication_s),
                      ",\"gradient_reductions\":", r.gradient_reductions, ",\"optimizer_s\":", Number(r.optimizer_s),
                      r.skipped ? ",\"skipped\":true" : "",
                      r.loss_scale > 0 ? absl::StrCat(",\"loss_scale\":", Number(r.loss_scale)) : "",
                      r.save_stall_s > 0 ? absl::StrCat(",\"save_stall_s\":", Number(r.save_stall_s)) : "", "}\n");
}

std::string MetricsLine(const EvalRecord& r) {
  return absl::StrCat("{\"event\":\"eval\",\"step\":", r.step, ",\"loss\":", Number(r.loss), ",\"tokens\":", r.tokens,
                      ",\"seconds\":", Number(r.seconds), "}\n");
}

std::string CutMetrics(absl::string_view text, uint64_t last_step) {
  std::string kept;
  size_t end;
  for (; (end = text.find('\n')) != absl::string_view::npos; text.remove_prefix(end + 1)) {
    absl::string_view line = text.substr(0, end);
    nlohmann::json json = nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_unsigned()) continue;
    if (json["step"].get<uint64_t>() <= last_step) absl::StrAppend(&kept, line, "\n");
  }
  return kept;
}

absl::StatusOr<std::unique_ptr<MetricsFile>> MetricsFile::Open(const std::string& path, uint64_t last_step) {
  absl::StatusOr<std::string> text = ReadFile(path, kFileBytes);
  if (text.ok()) {
    std::string kept = CutMetrics(*text, last_step);
    if (kept != *text) {
      RETURN_IF_ERROR(WriteFileAtomically(path, kept));
    }
  } else if (!absl::IsNotFound(text.status())) {
    return text.status();
  }
  int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("cannot open ", path));
  return std::unique_ptr<MetricsFile>(new MetricsFile(fd, path));
}

MetricsFile::~MetricsFile() { close(fd_); }

absl::Status MetricsFile::Append(absl::string_view line) {
  if (pending_.size() + line.size() <= kMetricsPending) absl::StrAppend(&pending_, line);
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
