#include "client/metrics_record.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "client/event_json.h"
#include "client/run_stats.h"

namespace trainyard::client {
namespace {

constexpr uint64_t kRecordStepMax = uint64_t{1} << 53;

size_t IndexOfMetric(absl::string_view name) {
  for (size_t i = 0; i < kMetricNames.size(); ++i) {
    if (name == kMetricNames[i]) return i;
  }
  return kMetricNames.size();
}

void SetMetric(absl::string_view name, double value, MetricsRecord* record) {
  const size_t index = IndexOfMetric(name);
  record->values[index] = value;
  record->has[index] = true;
}

// The number after `key` in a line; NaN if there is none.
double NumberAfter(absl::string_view line, absl::string_view key) {
  const size_t at = line.find(key);
  double number = std::numeric_limits<double>::quiet_NaN();
  if (at != absl::string_view::npos) std::from_chars(line.data() + at + key.size(), line.data() + line.size(), number);
  return number;
}

}  // namespace

bool MetricsRecord::Has(absl::string_view name) const {
  const size_t index = IndexOfMetric(name);
  return index < values.size() && has[index];
}

double MetricsRecord::ValueOf(absl::string_view name) const {
  return Has(name) ? values[IndexOfMetric(name)] : std::numeric_limits<double>::quiet_NaN();
}

double MetricsRecord::Duration() const {
  const double seconds = ValueOf(is_eval ? "seconds" : "step_s");
  return std::isfinite(seconds) && seconds > 0 ? seconds : 0;
}

absl::optional<MetricsRecord> ParseMetricsLine(absl::string_view line) {
  const nlohmann::json json = nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("event") || !json.contains("step")) return absl::nullopt;
  const nlohmann::json &event = json["event"], &step = json["step"];
  if ((event != "step" && event != "eval") || !step.is_number_unsigned()) return absl::nullopt;
  MetricsRecord record{.is_eval = event == "eval", .step = step.get<uint64_t>()};
  if (record.step >= kRecordStepMax) return absl::nullopt;
  for (size_t i = 0; i < kMetricNames.size(); ++i) {
    const auto found = json.find(kMetricNames[i]);
    if (found == json.end() || (!found->is_number() && !found->is_null() && !found->is_boolean())) continue;
    record.has[i] = true;
    record.values[i] = found->is_number()    ? found->get<double>()
                       : found->is_boolean() ? (found->get<bool>() ? 1 : 0)
                                             : std::numeric_limits<double>::quiet_NaN();
  }
  record.line = std::string(absl::StripAsciiWhitespace(line));
  return record;
}

absl::optional<MetricsRecord> RecordOfEvent(const v1::Event& event) {
  if (!event.has_step() && !event.has_eval()) return absl::nullopt;
  MetricsRecord record{.is_eval = event.has_eval(), .time = absl::FromUnixMillis(event.time_unix_ms())};
  record.line = EventLine(event);
  if (event.has_eval()) {
    record.step = event.eval().step();
    SetMetric("loss", event.eval().loss(), &record);
    SetMetric("tokens", static_cast<double>(event.eval().tokens()), &record);
    SetMetric("seconds", event.eval().seconds(), &record);
    return record;
  }
  const v1::StepReport& step = event.step();
  record.step = step.step();
  if (step.has_loss()) SetMetric("loss", step.loss(), &record);
  SetMetric("tokens", static_cast<double>(step.tokens()), &record);
  SetMetric("tokens_per_s", TokensPerSecond(step), &record);
  SetMetric("step_s", step.step_s(), &record);
  SetMetric("lr", step.lr(), &record);
  SetMetric("grad_norm", step.grad_norm(), &record);
  SetMetric("compute_s", step.compute_s(), &record);
  SetMetric("exposed_communication_s", step.exposed_communication_s(), &record);
  SetMetric("optimizer_s", step.optimizer_s(), &record);
  if (step.skipped()) SetMetric("skipped", 1, &record);
  if (step.loss_scale() > 0) SetMetric("loss_scale", step.loss_scale(), &record);
  return record;
}

absl::optional<MetricsLineStart> ScanMetricsLine(absl::string_view line) {
  absl::string_view rest = line;
  const bool is_eval = absl::ConsumePrefix(&rest, "{\"event\":\"eval\",\"step\":");
  const bool is_step = !is_eval && absl::ConsumePrefix(&rest, "{\"event\":\"step\",\"step\":");
  uint64_t step = 0;
  if (is_eval || is_step) {
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), step);
    const bool is_whole = error == std::errc() && end != rest.data() + rest.size() && (*end == ',' || *end == '}');
    const double seconds = NumberAfter(rest, is_eval ? "\"seconds\":" : "\"step_s\":");
    if (is_whole && step < kRecordStepMax && absl::EndsWith(line, "}")) {
      return MetricsLineStart{
          .is_eval = is_eval, .step = step, .seconds = std::isfinite(seconds) && seconds > 0 ? seconds : 0};
    }
  }
  // The line is damaged, or another program wrote it: its keys are in another order, or it ends with CR LF.
  const absl::optional<MetricsRecord> record = ParseMetricsLine(line);
  if (!record.has_value()) return absl::nullopt;
  return MetricsLineStart{.is_eval = record->is_eval, .step = record->step, .seconds = record->Duration()};
}

}  // namespace trainyard::client
