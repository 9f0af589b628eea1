#include "client/schedule_view.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/text.h"
#include "common/plural.h"
#include "plan/schedule_drawing.h"

namespace trainyard::client {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxRanksInReport = 64;
constexpr double kSameTime = 1e-9;  // relative: the order of a sum may change the result

std::string Percent(double share) { return absl::StrFormat("%.1f %%", 100 * share); }

// Durations without the noise of rounding: 33, 5.25.
std::string TimeText(double time) { return absl::StrFormat("%.6g", time); }

int PeakOf(const PipelineSimulation& simulation) {
  return *std::max_element(simulation.peak_in_flight.begin(), simulation.peak_in_flight.end());
}

OrderedJson ActionsJson(const ScheduleResult& result) {
  OrderedJson ranks = OrderedJson::array();
  for (size_t rank = 0; rank < result.schedule.ranks.size(); ++rank) {
    OrderedJson list = OrderedJson::array();
    for (size_t i = 0; i < result.schedule.ranks[rank].size(); ++i) {
      const PipelineAction& action = result.schedule.ranks[rank][i];
      const ActionTimes& times = result.simulation.times[rank][i];
      list.push_back({{"action", ActionText(action, result.shape.chunks_per_rank)},
                      {"kind", ActionText(action, 1).substr(0, 1)},
                      {"chunk", action.chunk},
                      {"micro_batch", action.micro_batch},
                      {"start", times.start},
                      {"end", times.end}});
    }
    ranks.push_back(list);
  }
  return ranks;
}

std::string MicroBatches(int count) { return Plural(count, "micro-batch", "micro-batches"); }

std::string OfSamples(const ScheduleResult& result) {
  return result.samples == 0 ? "" : absl::StrCat(" of ", Plural(result.samples, "sample"));
}

// The activations that a rank holds, as a share of those of its stage in a whole step.
double HeldShare(const ScheduleResult& result) {
  return static_cast<double>(PeakOf(result.simulation)) / result.shape.chunks_per_rank / result.shape.micro_batches;
}

// The fastest result, and of equally fast results the one that needs the least memory; null unless several results
// divide the same step into micro-batches.
const ScheduleResult* Fastest(const std::vector<ScheduleResult>& results) {
  const ScheduleResult* fastest = nullptr;
  int compared = 0;
  for (const ScheduleResult& result : results) {
    if (!result.status.ok() || !result.overhead.has_value()) continue;
    ++compared;
    const double time = result.simulation.total, least = fastest == nullptr ? 0 : fastest->simulation.total;
    const bool faster = time < least * (1 - kSameTime), as_fast = time <= least * (1 + kSameTime);
    if (fastest == nullptr || faster || (as_fast && HeldShare(result) < HeldShare(*fastest))) fastest = &result;
  }
  return compared < 2 ? nullptr : fastest;
}

// "32 micro-batches of 1 sample take 1.41 times as long: bubble 8.6 %, overhead 41.0 %".
std::string ComparedWith(const ScheduleResult& result, const ScheduleResult& fastest) {
  return absl::StrCat(MicroBatches(result.shape.micro_batches), OfSamples(result),
                      result.shape.micro_batches == 1 ? " takes " : " take ",
                      absl::StrFormat("%.2f", result.simulation.total / fastest.simulation.total),
                      " times as long: bubble ", Percent(result.simulation.bubble), ", overhead ",
                      Percent(*result.overhead), "\n");
}

}  // namespace

std::string ScheduleTitle(const ScheduleResult& result) {
  const PipelineShape& shape = result.shape;
  const int peak = PeakOf(result.simulation);
  return absl::StrCat(ScheduleName(result.kind), ", ", Plural(shape.stages, "stage"),
                      shape.chunks_per_rank == 1 ? "" : absl::StrCat(" of ", shape.chunks_per_rank, " chunks"), ", ",
                      MicroBatches(shape.micro_batches), OfSamples(result), ": time ",
                      TimeText(result.simulation.total), ", bubble ", Percent(result.simulation.bubble),
                      result.overhead.has_value() ? absl::StrCat(", overhead ", Percent(*result.overhead)) : "",
                      ", at most ",
                      shape.chunks_per_rank == 1 ? MicroBatches(peak)
                                                 : Plural(peak, "chunk of a micro-batch", "chunks of micro-batches"),
                      " in flight");
}

std::string ScheduleReport(const ScheduleResult& result, int columns) {
  const PipelineSimulation& simulation = result.simulation;
  std::vector<std::vector<std::string>> rows = {{"RANK", "BUSY", "BUBBLE", "IN FLIGHT"}};
  const size_t ranks = result.schedule.ranks.size(), shown = std::min(ranks, kMaxRanksInReport);
  for (size_t rank = 0; rank < shown; ++rank) {
    rows.push_back({absl::StrCat(rank), TimeText(simulation.busy[rank]),
                    Percent(std::max(0.0, 1 - simulation.busy[rank] / simulation.total)),
                    absl::StrCat(simulation.peak_in_flight[rank])});
  }
  const std::string more = shown < ranks ? absl::StrCat(AndMore(shown, ranks, "", "rank"), "\n") : "";
  return absl::StrCat(ScheduleTitle(result), "\n\n", ScheduleText(result.schedule, simulation, columns), "\n",
                      Table(rows, columns), more);
}

std::string ScheduleTable(const std::vector<ScheduleResult>& results, int columns) {
  const bool of_one_step = std::any_of(results.begin(), results.end(),
                                       [](const ScheduleResult& result) { return result.overhead.has_value(); });
  std::vector<std::string> header = {"MICRO-BATCHES",   "SCHEDULE", "CHUNKS",      "TIME",
                                     "PER MICRO-BATCH", "BUBBLE",   "UTILIZATION", "IN FLIGHT"};
  if (of_one_step) header.insert(header.end() - 2, "OVERHEAD");
  std::vector<std::vector<std::string>> rows = {header};
  std::vector<std::string> refusals;
  for (const ScheduleResult& result : results) {
    const PipelineSimulation& simulation = result.simulation;
    std::vector<std::string> row = {absl::StrCat(result.shape.micro_batches), std::string(ScheduleName(result.kind)),
                                    absl::StrCat(result.shape.chunks_per_rank)};
    if (result.status.ok()) {
      row.insert(row.end(), {TimeText(simulation.total), TimeText(simulation.total / result.shape.micro_batches),
                             Percent(simulation.bubble)});
      if (of_one_step) row.push_back(Percent(*result.overhead));
      row.insert(row.end(), {Percent(1 - simulation.bubble - result.overhead.value_or(0)),
                             TimeText(static_cast<double>(PeakOf(simulation)) / result.shape.chunks_per_rank)});
    } else {
      row.resize(header.size(), "-");
      const std::string message(result.status.message());
      if (std::find(refusals.begin(), refusals.end(), message) == refusals.end()) refusals.push_back(message);
    }
    rows.push_back(row);
  }
  for (std::string& refusal : refusals) refusal += "\n";
  return absl::StrCat(Table(rows, columns), absl::StrJoin(refusals, ""), FastestText(results));
}

std::string FastestText(const std::vector<ScheduleResult>& results) {
  const ScheduleResult* const fastest = Fastest(results);
  if (fastest == nullptr) return "";
  std::string text =
      absl::StrCat("Fastest: ", ScheduleName(fastest->kind), " with ", MicroBatches(fastest->shape.micro_batches),
                   OfSamples(*fastest), ", time ", TimeText(fastest->simulation.total), "\n");
  const ScheduleResult *fewest = fastest, *most = fastest;
  for (const ScheduleResult& result : results) {
    if (!result.status.ok() || result.kind != fastest->kind) continue;
    if (result.shape.micro_batches < fewest->shape.micro_batches) fewest = &result;
    if (result.shape.micro_batches > most->shape.micro_batches) most = &result;
  }
  if (fewest == most) return text;
  if (fewest != fastest) {
    absl::StrAppend(&text, ComparedWith(*fewest, *fastest));
  } else if (fewest->shape.micro_batches > 1) {
    absl::StrAppend(&text, "No smaller number was compared; a smaller one may be faster\n");
  }
  if (most != fastest) {
    absl::StrAppend(&text, ComparedWith(*most, *fastest));
  } else if (most->samples != 1) {
    absl::StrAppend(&text, "No larger number was compared; a larger one may be faster\n");
  }
  return text;
}

std::string ScheduleJson(const std::vector<ScheduleResult>& results, bool actions) {
  OrderedJson schedules = OrderedJson::array();
  for (const ScheduleResult& result : results) {
    OrderedJson json = {{"schedule", std::string(ScheduleName(result.kind))},
                        {"stages", result.shape.stages},
                        {"chunks_per_rank", result.shape.chunks_per_rank},
                        {"micro_batches", result.shape.micro_batches}};
    if (result.status.ok()) {
      if (result.samples > 0) json["samples"] = result.samples;
      json["time"] = result.simulation.total;
      json["bubble"] = result.simulation.bubble;
      if (result.overhead.has_value()) json["overhead"] = *result.overhead;
      json["utilization"] = 1 - result.simulation.bubble - result.overhead.value_or(0);
      json["busy"] = result.simulation.busy;
      json["peak_in_flight"] = result.simulation.peak_in_flight;
      if (actions) json["ranks"] = ActionsJson(result);
    } else {
      json["error"] = std::string(result.status.message());
    }
    schedules.push_back(json);
  }
  OrderedJson document = {{"schedules", schedules}};
  if (const ScheduleResult* const fastest = Fastest(results); fastest != nullptr) {
    document["fastest"] = {{"schedule", std::string(ScheduleName(fastest->kind))},
                           {"micro_batches", fastest->shape.micro_batches},
                           {"time", fastest->simulation.total}};
  }
  return document.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace trainyard::client
