#include "spec/schedule_rules.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/plural.h"

namespace trainyard {
namespace {

constexpr double kMinRatio = 0.1;           // the default of formula trainyard
constexpr uint64_t kTimescale = 10'000;     // without a warm-up, as in transformers
constexpr uint64_t kStepsPerDecayStep = 5;  // the decay of kind wsd takes the last fifth of the steps

constexpr char kRatioKey[] = "train.schedule.warmup_ratio";
constexpr char kWarmupKey[] = "train.schedule.warmup_steps";
constexpr char kDecayStepsKey[] = "train.schedule.decay_steps";

v1::ScheduleKind KindOf(const v1::Schedule& schedule) {
  return schedule.has_kind() ? schedule.kind() : v1::SCHEDULE_KIND_COSINE;
}

bool UsesMinRatio(v1::ScheduleKind kind) {
  return kind != v1::SCHEDULE_KIND_CONSTANT && kind != v1::SCHEDULE_KIND_INVERSE_SQRT;
}

// Computes the same product with the same rounding as transformers, so that both give the same number of steps.
uint64_t WarmupSteps(const v1::Train& train) {
  const v1::Schedule& schedule = train.schedule();
  if (!(schedule.warmup_ratio() > 0)) return schedule.warmup_steps();
  return static_cast<uint64_t>(std::ceil(static_cast<double>(train.steps()) * schedule.warmup_ratio()));
}

void CheckWsd(const v1::Train& train, const Positions& positions, Problems* problems) {
  const uint64_t steps = train.steps(), warmup = WarmupSteps(train), decay = train.schedule().decay_steps();
  if (steps == 0 || (decay <= steps && warmup <= steps - decay)) return;
  const std::string parts =
      decay == 0 ? absl::StrCat("a warm-up of ", warmup)
                 : absl::StrCat("a warm-up of ", warmup, " and a decay of ", decay, " = ", warmup + decay);
  problems->AddError(
      positions, decay == 0 ? kWarmupKey : kDecayStepsKey,
      absl::StrCat("with kind wsd the warm-up and the decay must fit into train.steps, ", steps, "; found ", parts));
}

}  // namespace

void CheckSchedule(const v1::Train& train, const Positions& positions, Problems* problems) {
  const v1::Schedule& schedule = train.schedule();
  const v1::ScheduleKind kind = KindOf(schedule);
  const auto no_effect = [&](bool given, absl::string_view key, absl::string_view why) {
    if (given)
      problems->AddWarning(positions, absl::StrCat("train.schedule.", key), absl::StrCat("has no effect: ", why));
  };
  no_effect(!UsesMinRatio(kind) && schedule.has_min_ratio() && schedule.min_ratio() != kMinRatio, "min_ratio",
            kind == v1::SCHEDULE_KIND_CONSTANT ? "the schedule is constant"
                                               : "the rate of kind inverse_sqrt falls without a lower limit");
  const bool is_wsd = kind == v1::SCHEDULE_KIND_WSD;
  no_effect(!is_wsd && schedule.has_decay_steps(), "decay_steps", "only kind wsd has it");
  no_effect(!is_wsd && schedule.has_decay() && schedule.decay() != v1::DECAY_SHAPE_COSINE, "decay",
            "only kind wsd has it");
  no_effect(kind != v1::SCHEDULE_KIND_INVERSE_SQRT && schedule.has_timescale(), "timescale",
            "only kind inverse_sqrt has it");
  if (schedule.warmup_ratio() > 0 && schedule.warmup_steps() > 0) {
    problems->AddError(
        positions, kRatioKey,
        absl::StrCat("is given together with warmup_steps, ", schedule.warmup_steps(), "; give one of them"));
  } else if (is_wsd) {
    CheckWsd(train, positions, problems);
  }
}

std::vector<v1::ResolvedKey> ResolveSchedule(v1::Train& train) {
  std::vector<v1::ResolvedKey> decisions;
  const auto decide = [&decisions](absl::string_view key, absl::string_view value, absl::string_view reason) {
    v1::ResolvedKey& decision = decisions.emplace_back();
    decision.set_key(absl::StrCat("train.schedule.", key));
    decision.set_value(value.data(), value.size());
    decision.set_reason(reason.data(), reason.size());
  };
  v1::Schedule& schedule = *train.mutable_schedule();
  const v1::ScheduleKind kind = KindOf(schedule);
  const uint64_t steps = train.steps(), warmup = WarmupSteps(train);
  if (schedule.warmup_ratio() > 0) {
    decide("warmup_steps", absl::StrCat(warmup),
           absl::StrCat("warmup_ratio ", schedule.warmup_ratio(), " of ", Plural(steps, "step"), ", rounded up"));
    schedule.set_warmup_ratio(0);
    schedule.set_warmup_steps(warmup);
  }
  if (UsesMinRatio(kind) && !schedule.has_min_ratio()) {
    const bool is_transformers = schedule.formula() == v1::SCHEDULE_FORMULA_TRANSFORMERS;
    schedule.set_min_ratio(is_transformers ? 0 : kMinRatio);
    if (is_transformers) decide("min_ratio", "0", "formula transformers: its schedules end at 0");
  }
  if (kind == v1::SCHEDULE_KIND_WSD && !schedule.has_decay_steps()) {
    const uint64_t share = std::max<uint64_t>(steps / kStepsPerDecayStep, 1);
    schedule.set_decay_steps(std::min(share, steps - std::min(warmup, steps)));
    decide("decay_steps", absl::StrCat(schedule.decay_steps()),
           schedule.decay_steps() == share ? absl::StrCat("a fifth of ", Plural(steps, "step"))
                                           : absl::StrCat("the steps that a warm-up of ", warmup, " leaves"));
  }
  if (kind == v1::SCHEDULE_KIND_INVERSE_SQRT && !schedule.has_timescale()) {
    schedule.set_timescale(warmup > 0 ? warmup : kTimescale);
    decide("timescale", absl::StrCat(schedule.timescale()),
           warmup > 0 ? "the steps of the warm-up" : "there is no warm-up");
  }
  return decisions;
}

}  // namespace trainyard
