#include "plan/pipeline_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/nearest_name.h"
#include "common/plural.h"
#include "plan/generators.h"

namespace trainyard {
namespace {

constexpr std::array<ScheduleKind, 5> kKinds = {ScheduleKind::kGpipe, ScheduleKind::kOneForwardOneBackward,
                                                ScheduleKind::kInterleaved, ScheduleKind::kZeroBubble,
                                                ScheduleKind::kSimulated};
constexpr std::array<const char*, 5> kKindNames = {"gpipe", "1f1b", "interleaved", "zero_bubble", "simulated"};
constexpr char kActionLetters[] = {'F', 'B', 'I', 'W'};

absl::Status AllProblems(const std::vector<std::string>& problems) {
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
}

void CheckSize(absl::string_view name, int64_t value, int64_t max, std::vector<std::string>* problems) {
  if (value < 1 || value > max) problems->push_back(absl::StrCat(name, " is ", value, "; it must be 1 to ", max));
}

// Both searches end at a multiple of the stages at the latest.
std::string NoRoundsMessage(const PipelineShape& shape, const InterleavedRounds& rounds) {
  PipelineShape below = shape, above = shape;
  while (!RoundsOf(below).valid()) --below.micro_batches;
  while (!RoundsOf(above).valid()) ++above.micro_batches;
  const std::string reason =
      rounds.per_round == 0
          ? absl::StrCat(", which do not divide ", shape.micro_batches)
          : absl::StrCat(" of ", rounds.per_round, " micro-batches, and the links have slots for rounds of at most ",
                         shape.stages + kSlotsPerLink - 1);
  return absl::StrCat("schedule interleaved cannot take ", shape.micro_batches, " micro-batches on ", shape.stages,
                      " stages: ", shape.micro_batches, " / ", shape.stages, ", rounded down, gives ", rounds.rounds,
                      " rounds", reason, "; use ", below.micro_batches, " or ", above.micro_batches, " micro-batches");
}

void CheckChunks(ScheduleKind kind, const PipelineShape& shape, std::vector<std::string>* problems) {
  const bool several = shape.chunks_per_rank > 1;
  if (several && kind != ScheduleKind::kInterleaved) {
    problems->push_back(absl::StrCat("chunks_per_rank is ", shape.chunks_per_rank, "; schedule ", ScheduleName(kind),
                                     " has 1 chunk per rank; use schedule interleaved for several"));
  }
  if (!several && kind == ScheduleKind::kInterleaved && shape.stages > 1) {
    problems->push_back(
        "chunks_per_rank is 1; schedule interleaved needs 2 or more; with 1 chunk per rank it would be 1f1b");
  }
}

absl::Status CheckShape(ScheduleKind kind, const PipelineShape& shape, const SimulatedOptions& options) {
  std::vector<std::string> problems;
  CheckSize("stages", shape.stages, kMaxPipelineStages, &problems);
  CheckSize("chunks_per_rank", shape.chunks_per_rank, kMaxChunksPerRank, &problems);
  CheckSize("micro_batches", shape.micro_batches, kMaxScheduledForwards, &problems);
  const bool sizes_are_valid = problems.empty();
  if (sizes_are_valid) {
    const int64_t forwards = int64_t{shape.model_chunks()} * shape.micro_batches;
    if (forwards > kMaxScheduledForwards) {
      problems.push_back(absl::StrCat("the step has ", shape.stages, " stages x ", shape.chunks_per_rank, " chunks x ",
                                      shape.micro_batches, " micro-batches = ", forwards,
                                      " forwards; a schedule has at most ", kMaxScheduledForwards));
    }
  }
  if (shape.chunks_per_rank >= 1) CheckChunks(kind, shape, &problems);
  if (sizes_are_valid && kind == ScheduleKind::kInterleaved && shape.stages > 1) {
    const InterleavedRounds rounds = RoundsOf(shape);
    if (!rounds.valid()) problems.push_back(NoRoundsMessage(shape, rounds));
  }
  if (options.in_flight < 0) {
    problems.push_back(
        absl::StrCat("in_flight is ", options.in_flight, "; it must be 1 or more, or 0 for the number of stages"));
  }
  if (sizes_are_valid && (kind == ScheduleKind::kZeroBubble || kind == ScheduleKind::kSimulated)) {
    if (const absl::Status costs = CheckCosts(options.costs, shape); !costs.ok()) {
      problems.emplace_back(costs.message());
    }
  }
  return AllProblems(problems);
}

void CheckDurations(absl::string_view name, const std::vector<double>& durations, int model_chunks, bool may_be_zero,
                    std::vector<std::string>* problems) {
  if (durations.size() != 1 && durations.size() != static_cast<size_t>(model_chunks)) {
    problems->push_back(absl::StrCat("the costs of ", name, " have ", Plural(durations.size(), "entry", "entries"),
                                     "; expected 1, or one for each of the ", Plural(model_chunks, "model chunk")));
  }
  for (const double duration : durations) {
    if (std::isfinite(duration) && (duration > 0 || (may_be_zero && duration == 0))) continue;
    problems->push_back(absl::StrCat("the cost of ", name, " is ", duration, "; it must be finite and ",
                                     may_be_zero ? "not negative" : "positive"));
    return;
  }
}

}  // namespace

absl::string_view ScheduleName(ScheduleKind kind) { return kKindNames[static_cast<int>(kind)]; }

absl::Span<const ScheduleKind> AllScheduleKinds() { return kKinds; }

absl::StatusOr<ScheduleKind> ScheduleKindOf(absl::string_view name) {
  for (const ScheduleKind kind : kKinds) {
    if (name == ScheduleName(kind)) return kind;
  }
  const std::string nearest = NearestName(name, {kKindNames.begin(), kKindNames.end()});
  return absl::InvalidArgumentError(absl::StrCat("there is no pipeline schedule '", name, "'; expected ",
                                                 absl::StrJoin(kKindNames, ", "),
                                                 nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

std::string ActionText(const PipelineAction& action, int chunks_per_rank) {
  const std::string letter(1, kActionLetters[action.kind]);
  if (chunks_per_rank == 1) return absl::StrCat(letter, action.micro_batch);
  return absl::StrCat(letter, action.chunk, ".", action.micro_batch);
}

absl::Status CheckCosts(const PipelineCosts& costs, const PipelineShape& shape) {
  std::vector<std::string> problems;
  CheckDurations("forward", costs.forward, shape.model_chunks(), /*may_be_zero=*/false, &problems);
  CheckDurations("backward", costs.backward, shape.model_chunks(), true, &problems);
  CheckDurations("backward_input", costs.backward_input, shape.model_chunks(), true, &problems);
  CheckDurations("backward_weight", costs.backward_weight, shape.model_chunks(), true, &problems);
  CheckDurations("link", {costs.link}, shape.model_chunks(), true, &problems);
  if (costs.slots_per_link < 1) {
    problems.push_back(absl::StrCat("slots_per_link is ", costs.slots_per_link, "; it must be 1 or more"));
  }
  return AllProblems(problems);
}

double CostOf(const PipelineCosts& costs, PipelineAction::Kind kind, int model_chunk) {
  const std::vector<double>* const durations[] = {&costs.forward, &costs.backward, &costs.backward_input,
                                                  &costs.backward_weight};
  const std::vector<double>& of_kind = *durations[kind];
  return of_kind.size() == 1 ? of_kind[0] : of_kind[model_chunk];
}

absl::StatusOr<PipelineSchedule> MakeSchedule(ScheduleKind kind, const PipelineShape& shape,
                                              const SimulatedOptions& options) {
  if (const absl::Status checked = CheckShape(kind, shape, options); !checked.ok()) return checked;
  if (shape.stages == 1) return OneStageSchedule(shape);
  switch (kind) {
    case ScheduleKind::kGpipe:
      return GpipeSchedule(shape);
    case ScheduleKind::kOneForwardOneBackward:
      return OneForwardOneBackwardSchedule(shape);
    case ScheduleKind::kInterleaved:
      return InterleavedSchedule(shape);
    case ScheduleKind::kZeroBubble:
      return ZeroBubbleSchedule(shape, options);
    case ScheduleKind::kSimulated:
      return SimulatedSchedule(shape, options);
  }
  return absl::InvalidArgumentError(absl::StrCat("schedule kind ", static_cast<int>(kind), " does not exist"));
}

std::string ScheduleLists(const PipelineSchedule& schedule, int max_ranks, int max_actions) {
  const size_t ranks = schedule.ranks.size();
  const size_t shown_ranks = max_ranks == 0 ? ranks : std::min<size_t>(ranks, max_ranks);
  std::string text;
  for (size_t rank = 0; rank < shown_ranks; ++rank) {
    const std::vector<PipelineAction>& list = schedule.ranks[rank];
    const size_t shown = max_actions == 0 ? list.size() : std::min<size_t>(list.size(), max_actions);
    absl::StrAppend(&text, "rank ", rank, ":");
    for (size_t i = 0; i < shown; ++i) {
      absl::StrAppend(&text, " ", ActionText(list[i], schedule.shape.chunks_per_rank));
    }
    absl::StrAppend(&text, AndMore(shown, list.size()), "\n");
  }
  if (shown_ranks < ranks) absl::StrAppend(&text, AndMore(shown_ranks, ranks, "", "rank"), "\n");
  return text;
}

}  // namespace trainyard
