#include "client/schedule_costs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/plural.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

constexpr char kMeasuredForm[] = "M:FORWARD:BACKWARD or M:FORWARD:BACKWARD:LINK";

std::vector<double> Or(const std::vector<double>& durations, double otherwise) {
  return durations.empty() ? std::vector<double>{otherwise} : durations;
}

bool IsDuration(double value) { return std::isfinite(value) && value >= 0; }

// A stage's duration is divided among its chunks; a list already has one for each model chunk.
std::vector<double> PerModelChunk(std::vector<double> durations, int chunks_per_rank) {
  if (durations.size() == 1) durations[0] /= std::max(chunks_per_rank, 1);
  return durations;
}

std::vector<double> Scaled(std::vector<double> durations, double factor) {
  for (double& duration : durations) duration *= factor;
  return durations;
}

// Both lists apply to the same chunks; a list with one entry applies to all chunks.
absl::StatusOr<std::vector<double>> Sum(absl::string_view name, const std::vector<double>& a,
                                        const std::vector<double>& b) {
  if (a.size() != b.size() && a.size() != 1 && b.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("--", name, " has ", Plural(a.size(), "duration"), " and --fixed-",
                                                   name, " has ", b.size(),
                                                   "; expected 1, or one for each model chunk"));
  }
  std::vector<double> sum(std::max(a.size(), b.size()));
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = a[a.size() == 1 ? 0 : i] + b[b.size() == 1 ? 0 : i];
  return sum;
}

double SumOverChunks(const std::vector<double>& durations, int model_chunks) {
  if (durations.size() == 1) return durations[0] * model_chunks;
  return std::accumulate(durations.begin(), durations.end(), 0.0);
}

// "use 4 or 8 micro-batches": the nearest numbers that divide `samples`.
std::string NearestDivisors(int samples, int micro_batches) {
  int below = 1, above = samples;
  for (int i = 1; i <= samples / i; ++i) {
    if (samples % i != 0) continue;
    for (const int divisor : {i, samples / i}) {
      if (divisor < micro_batches) below = std::max(below, divisor);
      if (divisor > micro_batches) above = std::min(above, divisor);
    }
  }
  if (micro_batches > samples) return absl::StrCat("use ", samples, " or fewer micro-batches");
  return absl::StrCat("use ", below, " or ", above, " micro-batches");
}

// A backward is also divided into the gradients of the inputs and those of the weights.
PipelineCosts CostsOf(std::vector<double> forward, std::vector<double> backward, double weight_share, double link) {
  const double share = std::clamp(weight_share, 0.0, 1.0);  // DurationProblems refuses others
  return {.forward = std::move(forward),
          .backward = backward,
          .backward_input = Scaled(backward, 1 - share),
          .backward_weight = Scaled(backward, share),
          .link = link};
}

absl::StatusOr<StepCosts> CostsOfSamples(const ScheduleDurations& durations, const PipelineShape& shape) {
  if (*durations.samples % shape.micro_batches != 0) {
    return absl::InvalidArgumentError(absl::StrCat(shape.micro_batches, " micro-batches cannot divide ",
                                                   Plural(*durations.samples, "sample"), " equally; ",
                                                   NearestDivisors(*durations.samples, shape.micro_batches)));
  }
  const int samples = *durations.samples / shape.micro_batches;
  const std::vector<double> fixed_forward = Or(durations.fixed_forward, 0);
  const std::vector<double> fixed_backward = Or(durations.fixed_backward, 0);
  const auto of_samples = [&](const std::vector<double>& of_sample, double otherwise) {
    return PerModelChunk(Scaled(Or(of_sample, otherwise), samples), shape.chunks_per_rank);
  };
  ASSIGN_OR_RETURN(std::vector<double> forward, Sum("forward", of_samples(durations.forward, 1), fixed_forward));
  ASSIGN_OR_RETURN(std::vector<double> backward, Sum("backward", of_samples(durations.backward, 2), fixed_backward));
  const int chunks = shape.model_chunks();
  return StepCosts{
      .costs = CostsOf(std::move(forward), std::move(backward), durations.weight_share,
                       durations.link.value_or(0) * samples + durations.fixed_link.value_or(0)),
      .samples = samples,
      .overhead = shape.micro_batches * (SumOverChunks(fixed_forward, chunks) + SumOverChunks(fixed_backward, chunks))};
}

double ComputationOf(const MeasuredStage& measured) {
  return measured.micro_batches * (measured.forward + measured.backward);
}

absl::StatusOr<StepCosts> MeasuredCosts(const ScheduleDurations& durations, const PipelineShape& shape) {
  const std::vector<MeasuredStage>& all = durations.measured;
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const MeasuredStage& each) { return each.micro_batches == shape.micro_batches; });
  if (found == all.end()) {
    const auto number = [](std::string* out, const MeasuredStage& each) { absl::StrAppend(out, each.micro_batches); };
    return absl::InvalidArgumentError(absl::StrCat("--measured has no durations for ",
                                                   Plural(shape.micro_batches, "micro-batch", "micro-batches"),
                                                   "; it has ", absl::StrJoin(all, ", ", number)));
  }
  double least = ComputationOf(*found);
  for (const MeasuredStage& each : all) least = std::min(least, ComputationOf(each));
  return StepCosts{
      .costs = CostsOf(PerModelChunk({found->forward}, shape.chunks_per_rank),
                       PerModelChunk({found->backward}, shape.chunks_per_rank), durations.weight_share, found->link),
      .overhead = shape.stages * (ComputationOf(*found) - least)};
}

void CheckOption(absl::string_view option, const std::vector<double>& values, std::vector<std::string>* problems) {
  for (const double value : values) {
    if (IsDuration(value)) continue;
    problems->push_back(absl::StrCat(option, " is ", value, "; it must be finite and not negative"));
  }
}

void CheckMeasured(const ScheduleDurations& durations, std::vector<std::string>* problems) {
  std::vector<std::string> others;
  if (durations.samples.has_value()) others.push_back("--samples");
  if (!durations.forward.empty()) others.push_back("--forward");
  if (!durations.backward.empty()) others.push_back("--backward");
  if (durations.link.has_value()) others.push_back("--link");
  if (!others.empty()) {
    problems->push_back(absl::StrCat("--measured has the durations already; remove ", absl::StrJoin(others, ", ")));
  }
  std::set<int> numbers;
  for (const MeasuredStage& each : durations.measured) {
    if (!numbers.insert(each.micro_batches).second) {
      problems->push_back(absl::StrCat("--measured has two entries for ",
                                       Plural(each.micro_batches, "micro-batch", "micro-batches"), "; remove one"));
    }
  }
}

}  // namespace

absl::StatusOr<MeasuredStage> ParseMeasured(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  MeasuredStage measured;
  const bool parsed = (parts.size() == 3 || parts.size() == 4) && absl::SimpleAtoi(parts[0], &measured.micro_batches) &&
                      absl::SimpleAtod(parts[1], &measured.forward) && absl::SimpleAtod(parts[2], &measured.backward) &&
                      (parts.size() == 3 || absl::SimpleAtod(parts[3], &measured.link));
  if (!parsed) return absl::InvalidArgumentError(absl::StrCat("--measured: '", text, "' is not ", kMeasuredForm));
  if (measured.micro_batches < 1 || !IsDuration(measured.forward) || measured.forward == 0 ||
      !IsDuration(measured.backward) || !IsDuration(measured.link)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--measured: '", text,
        "': the number of micro-batches must be 1 or more, the forward positive, and all durations finite and not "
        "negative"));
  }
  return measured;
}

std::vector<std::string> DurationProblems(const ScheduleDurations& durations) {
  std::vector<std::string> problems;
  if (!(durations.weight_share >= 0 && durations.weight_share <= 1)) {
    problems.push_back(absl::StrCat("--weight-share is ", durations.weight_share, "; it must be 0 to 1"));
  }
  if (durations.samples.has_value()) {
    if (*durations.samples < 1) {
      problems.push_back(absl::StrCat("--samples is ", *durations.samples, "; it must be 1 or more"));
    }
    // Without samples, CheckCosts checks these values; with samples, it sees only sums, in which a bad value could be
    // hidden.
    CheckOption("--forward", durations.forward, &problems);
    CheckOption("--backward", durations.backward, &problems);
    CheckOption("--link", {durations.link.value_or(0)}, &problems);
  } else if (!durations.fixed_forward.empty() || !durations.fixed_backward.empty() ||
             durations.fixed_link.has_value()) {
    problems.push_back(
        "--fixed-forward, --fixed-backward and --fixed-link add to the durations of samples; give --samples, or "
        "include them in --forward, --backward and --link");
  }
  CheckOption("--fixed-forward", durations.fixed_forward, &problems);
  CheckOption("--fixed-backward", durations.fixed_backward, &problems);
  CheckOption("--fixed-link", {durations.fixed_link.value_or(0)}, &problems);
  if (!durations.measured.empty()) CheckMeasured(durations, &problems);
  return problems;
}

absl::StatusOr<StepCosts> CostsOfStep(const ScheduleDurations& durations, const PipelineShape& shape) {
  if (shape.micro_batches >= 1 && !durations.measured.empty()) return MeasuredCosts(durations, shape);
  if (shape.micro_batches >= 1 && durations.samples.has_value()) return CostsOfSamples(durations, shape);
  return StepCosts{.costs = CostsOf(PerModelChunk(Or(durations.forward, 1), shape.chunks_per_rank),
                                    PerModelChunk(Or(durations.backward, 2), shape.chunks_per_rank),
                                    durations.weight_share, durations.link.value_or(0))};
}

}  // namespace trainyard::client
