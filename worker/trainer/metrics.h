// metrics.jsonl in the run folder: one JSON object a line, for every step and every evaluation, each once and in order,
// over restarts and resumes. Written by rank 0 with one write call a line, so that a killed trainer leaves whole lines.
//
//   {"event":"step","step":17,"loss":3.21,"tokens":1024,"tokens_per_s":98012.5,"step_s":0.0104,...}
//   {"event":"step",...,"save_stall_s":0.002}      the loop waited so long for a save since the step before
//   {"event":"eval","step":100,"loss":2.9,"tokens":8192,"seconds":0.05}
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/link/link.h"

namespace trainyard {

inline constexpr char kMetricsName[] = "metrics.jsonl";
inline constexpr size_t kMetricsPending = 4 << 20;

std::string MetricsLine(const StepRecord& record);
std::string MetricsLine(const EvalRecord& record);

// Not thread-safe.
class MetricsFile {
 public:
  // Cuts the file back to the steps up to `last_step`: whatever follows their last whole line goes. Read from its end,
  // so a long run costs no more than what is cut. Possible errors: FailedPrecondition: what lies there is no file;
  // those of opening, reading and cutting it.
  static absl::StatusOr<std::unique_ptr<MetricsFile>> Open(const std::string& path, uint64_t last_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // What cannot be written now is kept, up to kMetricsPending bytes, and goes first the next time.
  // Possible errors: ResourceExhausted when the disk is full.
  absl::Status Append(absl::string_view line);

 private:
  MetricsFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  const int fd_;
  const std::string path_;
  std::string pending_;
};

}  // namespace trainyard
