// GetQueue: returns the waiting jobs in the order in which they would start, why each waits, and when it may start.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "coordinator/core/turn.h"
#include "coordinator/handlers/check_request.h"
#include "coordinator/handlers/handlers.h"
#include "coordinator/handlers/job_time.h"
#include "coordinator/handlers/page.h"
#include "coordinator/handlers/queue_facts.h"
#include "coordinator/handlers/queue_totals.h"
#include "coordinator/handlers/slots.h"
#include "coordinator/policy/forecast.h"
#include "coordinator/policy/queue.h"
#include "coordinator/policy/queue_quota.h"

namespace trainyard {
namespace {

constexpr uint32_t kQueuePageDefault = 100;
constexpr char kQueueToken[] = "after-";
// A forecast is used for this long before it is made again, however many clients request it.
constexpr absl::Duration kForecastAge = absl::Seconds(2);

EndingJob MakeEndingJob(const Turn& turn, const Job& job) {
  EndingJob ending{.id = job.id,
                   .pool = PoolOf(turn.state.options.queue, job.namespace_name()),
                   .ranks = RanksWithSlots(turn.state, job),
                   .cpus = job.head().spec().command().cpus(),
                   .use = UseOf(turn.state, job),
                   .ends_in = std::nullopt,
                   .why_unknown = ""};
  ending.ends_in = job.state() == v1::JOB_STATE_STOPPING ? std::optional(absl::Seconds(job.longest_s))
                                                         : TimeToEnd(turn, job, &ending.why_unknown);
  return ending;
}

void UpdateForecasts(Turn& turn, const QueueView& view, const std::vector<QueueOutcome>& outcomes) {
  State& state = turn.state;
  const size_t count = std::min(outcomes.size(), kForecastJobs);
  const bool all_known = std::all_of(
      outcomes.begin(), outcomes.begin() + static_cast<ptrdiff_t>(count),
      [&](const QueueOutcome& outcome) { return state.forecasts.contains(view.facts.waiting[outcome.waiting].id); });
  if (all_known && turn.now - state.forecast_at < kForecastAge) return;
  ForecastFacts facts{
      .rules = view.facts.rules, .hosts = view.hosts, .use = view.facts.use, .running = {}, .waiting = {}};
  for (const JobId& id : state.active) {
    const Job& job = state.jobs.at(id);
    if (job.state() != v1::JOB_STATE_RECOVERING) facts.running.push_back(MakeEndingJob(turn, job));
  }
  for (size_t i = 0; i < count; ++i) {
    const WaitingJob& waiting = view.facts.waiting[outcomes[i].waiting];
    std::string ignored;
    PoolUse use;
    const auto used = view.facts.use.find(waiting.pool);
    if (used != view.facts.use.end()) use = used->second;
    facts.waiting.push_back({.job = &waiting,
                             .lasts = TimeToEnd(turn, state.jobs.at(waiting.id), &ignored),
                             .never = DecideQuota(*view.facts.rules, use, waiting).never});
  }
  std::vector<Forecast> forecasts = MakeForecasts(facts);
  state.forecasts.clear();
  for (size_t i = 0; i < forecasts.size(); ++i) state.forecasts[facts.waiting[i].job->id] = std::move(forecasts[i]);
  state.forecast_at = turn.now;
}

v1::QueuedJob MakeEntry(const Turn& turn, const Job& job) {
  v1::QueuedJob entry;
  entry.set_job_id(job.id.value());
  entry.set_name(job.head().spec().name());
  entry.set_namespace_(job.namespace_name());
  entry.set_priority(job.priority());
  entry.set_state(job.state());
  entry.set_ranks(job.world_size());
  entry.set_min_ranks(job.min_world_size());
  entry.set_wait_s(absl::ToDoubleSeconds(std::max(absl::ZeroDuration(), turn.now - job.waiting_since)));
  entry.set_preempted_by(job.head().preempted_by());
  return entry;
}

void AddForecast(const Turn& turn, const JobId& id, v1::QueuedJob& entry) {
  const auto found = turn.state.forecasts.find(id);
  if (found == turn.state.forecasts.end()) {
    entry.set_forecast(absl::StrCat("unknown: forecasts are made for the first ", kForecastJobs, " jobs"));
    return;
  }
  if (found->second.start_in.has_value()) entry.set_start_in_s(absl::ToDoubleSeconds(*found->second.start_in));
  entry.set_forecast(found->second.text);
}

// All waiting jobs of the namespace in order; those that are held come last. Only the `page` ones after the first
// `skipped` have reasons: those of thousands of jobs would take seconds, in which no other event is handled.
std::vector<v1::QueuedJob> MakeEntries(Turn& turn, const std::string& only_namespace, uint64_t skipped, uint64_t page) {
  const auto is_listed = [&](const Job& job) {
    return only_namespace.empty() || job.namespace_name() == only_namespace;
  };
  QueueView view = MakeQueueView(turn, turn.state.queue);
  view.facts.reasons = page;
  view.facts.reasons_skipped = skipped;
  for (WaitingJob& job : view.facts.waiting) job.wants_reason = is_listed(turn.state.jobs.at(job.id));
  view.facts.may_preempt = false;
  const std::vector<QueueOutcome> outcomes = DecideQueue(view.facts);
  UpdateForecasts(turn, view, outcomes);
  std::vector<v1::QueuedJob> entries;
  uint32_t position = 0;
  for (const QueueOutcome& outcome : outcomes) {
    ++position;
    const Job& job = turn.state.jobs.at(view.facts.waiting[outcome.waiting].id);
    if (!is_listed(job)) continue;
    v1::QueuedJob& entry = entries.emplace_back(MakeEntry(turn, job));
    entry.set_position(position);
    entry.set_cause(outcome.start.has_value() ? "slots" : WaitCauseName(outcome.cause));
    entry.set_reason(outcome.start.has_value() ? "starts at the next decision" : outcome.reason);
    for (const JobId& id : outcome.waits_for) entry.add_waits_for(id.value());
    AddForecast(turn, job.id, entry);
  }
  for (uint64_t index : turn.state.queue) {
    const Job& job = turn.state.jobs.at(turn.state.by_submission.at(index));
    if (job.held_at == 0 || !is_listed(job)) continue;
    v1::QueuedJob& entry = entries.emplace_back(MakeEntry(turn, job));
    entry.set_position(++position);
    entry.set_cause("held");
    entry.set_reason(job.head().reason());
    entry.set_forecast("unknown: the job is held");
  }
  return entries;
}

// The slots and GPUs of all attached hosts.
PoolUse CapacityOf(const State& state) {
  PoolUse all;
  for (const HostSlots& host : FreeSlots(state)) {
    all.slots += host.slots;
    all.gpus += std::min(host.slots, host.gpus);
  }
  return all;
}

double Fraction(uint64_t part, uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

v1::NamespaceUse MakeUse(const State& state, const PoolTotals& totals, const PoolUse& capacity) {
  v1::NamespaceUse use;
  const NamespaceRules& rules = RulesOf(state.options.queue, totals.pool);
  use.set_name(totals.pool);
  use.set_weight(static_cast<double>(rules.weight_milli) / 1'000);
  use.set_slots(static_cast<uint32_t>(totals.use.slots));
  use.set_gpus(static_cast<uint32_t>(totals.use.gpus));
  use.set_running(static_cast<uint32_t>(totals.use.running));
  use.set_queued(static_cast<uint32_t>(totals.queued));
  use.set_oldest_wait_s(absl::ToDoubleSeconds(totals.oldest_wait));
  use.set_preemptions(totals.preemptions);
  use.set_max_priority(rules.max_priority);
  if (rules.max_slots.has_value()) use.set_max_slots(*rules.max_slots);
  if (rules.max_gpus.has_value()) use.set_max_gpus(*rules.max_gpus);
  if (rules.max_running.has_value()) use.set_max_running(*rules.max_running);
  if (rules.max_queued.has_value()) use.set_max_queued(*rules.max_queued);
  use.set_share(std::max(Fraction(totals.use.slots, capacity.slots), Fraction(totals.use.gpus, capacity.gpus)));
  return use;
}

}  // namespace

void Run(Turn& turn, GetQueue& event) {
  const v1::GetQueueRequest& request = event.request;
  uint64_t after = 0;
  absl::string_view token = request.page_token();
  if (!token.empty() && (!absl::ConsumePrefix(&token, kQueueToken) || !ReadPosition(token, &after))) {
    return turn.Emit(Reply{event.call, PageTokenError(request.page_token()), {}});
  }
  const uint64_t page = request.page_size() == 0 ? kQueuePageDefault : request.page_size();
  std::vector<v1::QueuedJob> entries = MakeEntries(turn, request.namespace_(), after, page);
  v1::GetQueueResponse response;
  response.set_total(static_cast<uint32_t>(entries.size()));
  PageSpace space(request.page_size(), kQueuePageDefault);
  for (size_t i = after; i < entries.size(); ++i) {
    if (!space.Take(entries[i].ByteSizeLong())) {
      response.set_next_page_token(absl::StrCat(kQueueToken, i));
      break;
    }
    *response.add_jobs() = std::move(entries[i]);
  }
  const std::string pool = request.namespace_().empty() ? "" : PoolOf(turn.state.options.queue, request.namespace_());
  const PoolUse capacity = CapacityOf(turn.state);
  for (const PoolTotals& totals : CountPools(turn.state, turn.now)) {
    if (pool.empty() || totals.pool == pool) *response.add_namespaces() = MakeUse(turn.state, totals, capacity);
  }
  turn.Emit(Reply{event.call, absl::OkStatus(), std::move(response)});
}

}  // namespace trainyard
