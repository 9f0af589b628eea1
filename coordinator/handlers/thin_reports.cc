#include "coordinator/handlers/thin_reports.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace trainyard {
namespace {

double Height(double value) { return std::isfinite(value) ? value : std::numeric_limits<double>::infinity(); }

// Appends what an answer shows of a report.
void AddReport(const v1::Event& report, v1::ListEventsResponse& response) {
  v1::Event& event = *response.add_events();
  event.set_sequence(report.sequence());
  event.set_time_unix_ms(report.time_unix_ms());
  event.set_generation(report.generation());
  if (report.has_eval()) {
    *event.mutable_eval() = report.eval();
    return;
  }
  v1::StepReport& step = *event.mutable_step();
  step.set_step(report.step().step());
  if (report.step().has_loss()) step.set_loss(report.step().loss());
  step.set_tokens(report.step().tokens());
  step.set_step_s(report.step().step_s());
  step.set_skipped(report.step().skipped());
}

}  // namespace

std::vector<size_t> ThinCurve(const std::vector<double>& values, size_t max) {
  std::vector<size_t> kept;
  if (values.size() <= max) {
    kept.resize(values.size());
    std::iota(kept.begin(), kept.end(), size_t{0});
    return kept;
  }
  const size_t parts = (max - 2) / 2;
  const size_t inner = values.size() - 2;
  kept.push_back(0);
  for (size_t part = 0; part < parts; ++part) {
    const auto begin = values.begin() + static_cast<ptrdiff_t>(1 + part * inner / parts);
    const auto end = values.begin() + static_cast<ptrdiff_t>(1 + (part + 1) * inner / parts);
    if (begin == end) continue;
    const auto [lowest, highest] =
        std::minmax_element(begin, end, [](double a, double b) { return Height(a) < Height(b); });
    kept.push_back(static_cast<size_t>(std::min(lowest, highest) - values.begin()));
    if (lowest != highest) kept.push_back(static_cast<size_t>(std::max(lowest, highest) - values.begin()));
  }
  kept.push_back(values.size() - 1);
  return kept;
}

v1::ListEventsResponse ThinReports(const std::deque<EventPtr>& reports, size_t max) {
  std::vector<size_t> steps, evaluations;
  std::vector<double> step_losses, evaluation_losses;
  for (size_t i = 0; i < reports.size(); ++i) {
    const bool is_step = reports[i]->has_step();
    if (!is_step && !reports[i]->has_eval()) continue;
    // A script reported the step without a loss, so it is no point of the curve.
    if (is_step && !reports[i]->step().has_loss()) continue;
    (is_step ? steps : evaluations).push_back(i);
    (is_step ? step_losses : evaluation_losses)
        .push_back(is_step ? reports[i]->step().loss() : reports[i]->eval().loss());
  }
  std::vector<size_t> kept;
  for (size_t i : ThinCurve(evaluation_losses, max / 4)) kept.push_back(evaluations[i]);
  for (size_t i : ThinCurve(step_losses, max - kept.size())) kept.push_back(steps[i]);
  std::sort(kept.begin(), kept.end());
  v1::ListEventsResponse response;
  for (size_t i : kept) AddReport(*reports[i], response);
  return response;
}

}  // namespace trainyard
