// One step or evaluation of a run, from a line of metrics.jsonl or from an event of the coordinator. Pure.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "trainyard/v1/service.pb.h"

namespace trainyard::client {

// The numbers of steps and evaluations, by their keys in metrics.jsonl. An evaluation has loss, tokens and seconds.
inline constexpr std::array<const char*, 16> kMetricNames = {"loss",
                                                             "tokens",
                                                             "tokens_per_s",
                                                             "step_s",
                                                             "lr",
                                                             "grad_norm",
                                                             "compute_s",
                                                             "optimizer_s",
                                                             "exposed_communication_s",
                                                             "gradient_reductions",
                                                             "model_wait_s",
                                                             "epoch",
                                                             "loss_scale",
                                                             "skipped",
                                                             "save_stall_s",
                                                             "seconds"};

struct MetricsRecord {
  bool is_eval = false;
  uint64_t step = 0;
  std::array<double, kMetricNames.size()> values = {};  // not a number if the line has null
  std::bitset<kMetricNames.size()> has = {};
  absl::optional<absl::Time> time = absl::nullopt;  // of an event; for a line of a file, MetricsSource computes it
  std::string line = {};                            // JSON, without a line feed

  // The value with this name; not a number if there is none.
  double ValueOf(absl::string_view name) const;
  bool Has(absl::string_view name) const;
  // The wall time of this step or evaluation in seconds.
  double Duration() const;
};

// None if the line is not a step or an evaluation.
absl::optional<MetricsRecord> ParseMetricsLine(absl::string_view line);

// None if the event is neither a step nor an evaluation.
absl::optional<MetricsRecord> RecordOfEvent(const v1::Event& event);

// What the first pass over a file needs of a line; ten times faster than ParseMetricsLine, because it does not check
// the rest of the line. Every line that ParseMetricsLine accepts has one.
struct MetricsLineStart {
  bool is_eval = false;
  uint64_t step = 0;
  double seconds = 0;
};
absl::optional<MetricsLineStart> ScanMetricsLine(absl::string_view line);

}  // namespace trainyard::client
