// metrics.jsonl in the run folder: one JSON object per line, for every step and every evaluation, each once and in
// order, across restarts and resumes. A thread of rank 0 (metrics_thread.h) writes whole lines with one write call,
// so that a killed trainer leaves no part of a line.
//
//   {"event":"step","step":17,"loss":3.21,"tokens":1024,"tokens_per_s":98012.5,"step_s":0.0104,...}
//   {"event":"step",...,"epoch":0.25}              epochs of the data used up to and including this step
//   {"event":"step",...,"save_stall_s":0.002}      how long the loop waited for a save since the previous step
//   {"event":"eval","step":100,"loss":2.9,"tokens":8192,"seconds":0.05}
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/link/link.h"
#include "worker/trainer/epoch_log.h"

namespace trainyard {

inline constexpr char kMetricsName[] = "metrics.jsonl";
inline constexpr size_t kPendingBytesMax = 4 << 20;
inline constexpr uint64_t kEpochReadBytesMax = 64 << 20;

std::string MetricsLine(const StepRecord& record);
std::string MetricsLine(const EvalRecord& record);

// Not thread-safe.
class MetricsFile {
 public:
  // Truncates the file after the last whole line of a step up to `last_step`. Reads from the end, so that a long run
  // costs no more than what is removed. Possible errors: FailedPrecondition: the path is not a regular file; those of
  // opening, reading and truncating it.
  static absl::StatusOr<std::unique_ptr<MetricsFile>> Open(const std::string& path, uint64_t last_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  // Lines that cannot be written now are stored, up to kPendingBytesMax, and written first the next time. Possible
  // errors: ResourceExhausted if the disk is full.
  absl::Status Append(absl::string_view line);

  // The steps at the end of the file that belong to the epoch under way.
  struct StepsOfEpoch {
    std::vector<EpochStep> steps = {};
    bool is_whole = false;  // whether these are all steps of that epoch so far
  };
  // `epochs`: how many epochs of the data the steps of the file have used. Reads at most the last
  // kEpochReadBytesMax of the file. A file that cannot be read has no steps. Call it before lines are appended.
  StepsOfEpoch ReadStepsOfEpoch(double epochs) const;

 private:
  MetricsFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  const int fd_;
  const std::string path_;
  std::string pending_;
};

}  // namespace trainyard
