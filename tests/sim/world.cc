#include "tests/sim/world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/limits.h"
#include "coordinator/policy/lifecycle.h"
#include "trainyard/v1/store.pb.h"

namespace trainyard::sim {
namespace {

// From the last fault until every job has ended: back-offs, leases, limits of forming and of hangs.
constexpr absl::Duration kSettleLimit = absl::Seconds(900);
// Facts of one host on their way in so small a world: what ranks say in a burst, with room.
constexpr size_t kFactsInFlight = 60;
constexpr uint64_t kActionsMax = 3'000'000;

}  // namespace

World::World(const Scenario& plan, const WorldOptions& options)
    : scenario(plan),
      mutation(options.mutation),
      random(plan.seed, "world"),
      judge(engine, options.trace),
      network(*this),
      coordinator(*this),
      operators(*this),
      options_(options) {
  for (size_t i = 0; i < plan.hosts.size(); ++i) {
    machines_.push_back(std::make_unique<Machine>(*this, absl::StrCat("w", i), plan.hosts[i]));
  }
}

World::~World() = default;

Result World::Run() {
  coordinator.Start();
  for (auto& machine : machines_) machine->daemon().Start();
  operators.Begin(scenario);
  for (const Fault& fault : scenario.faults) {
    engine.After(fault.at, [this, fault] { Begin(fault); });
  }
  engine.After(scenario.faults_end, [this] { Heal(); });

  const absl::Time begin = engine.now();
  const absl::Time limit = begin + scenario.faults_end + kSettleLimit;
  while (!judge.violation().has_value() && !Settled()) {
    bool more = engine.RunNext(limit);
    if (engine.count() > kActionsMax) {
      judge.Break(invariant::kProgress, "the world does not come to rest: it is busy without an end");
    }
    if (!more) break;
  }
  if (!judge.violation().has_value() && coordinator.alive()) judge.AtEnd(coordinator.core());
  Result result{.violation = judge.violation(),
                .trace = judge.trace(),
                .events = events_,
                .daemon_events = daemon_events,
                .virtual_time = engine.now() - begin,
                .print = 0};
  Random print(engine.count());
  for (const auto& [key, value] : coordinator.store.durable()) print = Random(print.Next(), key + value);
  result.print = print.Next();
  return result;
}

// Nothing more can happen: all is healed, every job was accepted and has ended, and its watchers know.
bool World::Settled() const { return healed_ && operators.AllDone(); }

absl::Time World::LocalTime(const Machine& machine) const {
  ClockModel model{machine.plan().clock_offset, machine.plan().clock_drift};
  return model.Local(engine.now());
}

absl::Time World::RealTime(const Machine& machine, absl::Time local) const {
  ClockModel model{machine.plan().clock_offset, machine.plan().clock_drift};
  return model.Real(local);
}

std::shared_ptr<Group> World::GroupFor(const GroupId& id, uint32_t ranks) {
  auto [at, is_new] = groups_.try_emplace(id);
  if (!is_new) return at->second;
  auto plan = std::find_if(scenario.jobs.begin(), scenario.jobs.end(),
                           [&](const JobPlan& job) { return IdOf(job) == id.first; });
  at->second = std::make_shared<Group>(*this, id, ranks, *plan);
  return at->second;
}

void World::CloseWatch(WatchId watch, const JobId& job) {
  coordinator.Unwatch(watch);
  coordinator.Post(coordinator.life(), WatchValuesClosed{watch, job});
}

void World::CheckDurable(const v1::Fact& fact) {
  const auto& records = coordinator.store.durable();
  const v1::TrainerKey& key = fact.key();
  auto at = records.find(absl::StrCat("job/", key.job_id()));
  v1::JobRecord job;
  if (at == records.end() || !job.ParseFromString(at->second)) {
    return judge.Break(invariant::kDurable,
                       absl::StrCat("a fact of ", key.job_id(), " is acknowledged, the job is not there"));
  }
  if (job.job().generation() != key.generation() || IsFinal(job.job().state())) return;
  if (fact.has_saved()) {
    const auto& saved = job.job().checkpoints();
    if (saved.empty() || saved.rbegin()->step() < fact.saved().step()) {
      judge.Break(invariant::kDurable, absl::StrCat("the save of step ", fact.saved().step(), " of ", key.job_id(),
                                                    " is acknowledged and not recorded"));
    }
    return;
  }
  if (!fact.has_ready() && !fact.has_finished()) return;
  v1::RankPart part;
  auto ranks = records.find(absl::StrCat("rank/", key.job_id(), "/", key.generation(), "/0"));
  bool readable =
      ranks != records.end() && part.ParseFromString(ranks->second) && static_cast<int>(key.rank()) < part.ranks_size();
  if (!readable) {
    return judge.Break(invariant::kDurable,
                       absl::StrCat("a fact of ", key.job_id(), " is acknowledged, its rank is not there"));
  }
  const v1::RankRecord& rank = part.ranks(static_cast<int>(key.rank()));
  bool known = rank.has_exit() || (fact.has_ready() ? rank.ready() : rank.finished());
  if (!known) {
    judge.Break(invariant::kDurable, absl::StrCat(fact.has_ready() ? "ready" : "finished", " of ", key.job_id(),
                                                  " rank ", key.rank(), " is acknowledged and not recorded"));
  }
}

void World::ForgeExit(v1::FactBatch& batch) {
  for (v1::Fact& fact : *batch.mutable_facts()) {
    if (!fact.has_ready() || !random.Chance(0.2)) continue;
    fact.mutable_exited()->set_cause(v1::TrainerExited::CAUSE_EXIT);
    fact.mutable_exited()->set_code(1);
  }
}

void World::ForgeReports(v1::RankReports& reports) {
  for (v1::RankReport& report : *reports.mutable_reports()) {
    // As if the report were of the generation before the one that made it.
    for (v1::StepReport& step : *report.mutable_steps()) step.set_lr(step.lr() + 1);
  }
}

void World::CheckBounds() {
  for (auto& machine : machines_) {
    if (!machine->daemon().alive()) continue;
    agent::CoreStats stats = machine->daemon().stats();
    bool heard = stats.attached && coordinator.alive() && !machine->control_cut();
    if (stats.facts_waiting > (heard ? kFactsInFlight : limits::kFactsUnacknowledged) ||
        machine->outbox.size() > (size_t{64} << 20)) {
      judge.Break(invariant::kBounded, absl::StrCat(machine->name(), " keeps ", stats.facts_waiting, " facts and ",
                                                    machine->outbox.size(), " bytes on disk"));
    }
  }
}

}  // namespace trainyard::sim
