#include "tests/sim/world.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/limits.h"
#include "coordinator/policy/lifecycle.h"
#include "coordinator/policy/saves.h"
#include "trainyard/v1/store.pb.h"

namespace trainyard::sim {
namespace {

// The longest time from the last fault until every job has ended: it covers back-offs, leases, and the limits of
// forming and of hangs.
constexpr absl::Duration kSettleLimit = absl::Seconds(900);
// The limit of the unacknowledged facts of a connected host with a few slots: a burst of its ranks' facts, with a
// margin.
constexpr size_t kFactsInFlight = 60;
// The longest time, beyond command.grow_after_s, until a job has the ranks for which there are slots: it covers the
// attachment of hosts that come back, hosts that are avoided for a while, and the end of the smaller group.
constexpr absl::Duration kGrowthLimit = absl::Seconds(60);
constexpr uint64_t kActionsMax = 3'000'000;
constexpr uint64_t kActionsPerHost = 20'000;

}  // namespace

World::World(const Scenario& plan, const WorldOptions& options)
    : scenario(plan),
      mutation(options.mutation),
      random(plan.seed, "world"),
      judge(engine, scenario, options.trace),
      storage(options.folders == nullptr ? Storage() : *options.folders),
      network(*this),
      coordinator(*this),
      operators(*this),
      options_(options) {
  for (size_t i = 0; i < plan.hosts.size(); ++i) {
    machines_.push_back(std::make_unique<Machine>(*this, absl::StrCat("w", i), plan.hosts[i]));
    machines_.back()->SetPacketLoss(plan.loss);
  }
  for (const JobPlan& job : plan.jobs) {
    if (job.is_script()) {
      judge.SetScript(IdOf(job), job);
    } else {
      judge.SetLayout(IdOf(job), LayoutOf(job));
    }
  }
  storage.DropLocks();
  for (const JobPlan& job : plan.jobs) {
    if (job.folder_of == 0) continue;
    JobPlan first;
    first.number = job.folder_of;
    const JobId other = IdOf(first);
    storage.Share(IdOf(job), other);
    judge.ShareFolder(IdOf(job));
    judge.ShareFolder(other);
  }
  judge.folder_of = [this](const JobId& job) -> const RunFolder& { return storage.FolderOf(job); };
  if (options.check_every == 1) {
    judge.last_contact = [this](const std::string& host) { return network.LastContact(host); };
  }
}

World::~World() = default;

Result World::Run() {
  coordinator.Start();
  for (auto& machine : machines_) machine->daemon().Start();
  operators.Begin(scenario);
  for (const Fault& fault : scenario.faults) {
    if (fault.when.has_value()) continue;
    engine.After(fault.at, [this, fault] { Begin(fault); });
  }
  engine.After(scenario.faults_end, [this] { Heal(); });

  const absl::Time begin = engine.now();
  const absl::Time end = begin + options_.run_for;
  const absl::Time limit = std::min(end, begin + scenario.faults_end + scenario.extra_time + kSettleLimit);
  const uint64_t max_actions = kActionsMax + kActionsPerHost * machines_.size();
  while (!judge.violation().has_value() && !Settled()) {
    bool more = engine.RunNext(limit);
    if (engine.count() > max_actions) {
      judge.ReportViolation(invariant::kProgress, "the world does not settle: its actions cause new ones without end");
    }
    if (!more) break;
  }
  if (!judge.violation().has_value() && coordinator.alive() && limit < end) {
    judge.AfterRound(coordinator.core(), /*check_state=*/true);
    judge.AtEnd(coordinator.core());
    for (const auto& [job, folder] : storage.folders()) judge.CheckNothingLeft(job, folder);
  }
  Result result{.violation = judge.violation(),
                .trace = judge.trace(),
                .events = events_,
                .daemon_events = daemon_events,
                .virtual_time = engine.now() - begin,
                .jobs = {},
                .logged = std::move(logged_),
                .decisions = decisions_,
                .coordinator_bytes = coordinator.freed_bytes,
                .fingerprint = 0};
  for (const JobPlan& plan : scenario.jobs) result.jobs[plan.number] = judge.OutcomeOf(IdOf(plan));
  Random mixer(engine.count());
  for (const auto& [key, value] : coordinator.store.durable()) mixer = Random(mixer.Next(), key + value);
  result.fingerprint = mixer.Next();
  return result;
}

// Nothing more can happen: all faults are over, every job was accepted and has ended, and all watchers know that.
bool World::Settled() const { return healed_ && operators.AllDone(); }

absl::Time World::LocalTime(const Machine& machine) const {
  ClockModel model{machine.plan().clock_offset, machine.plan().clock_drift};
  return model.Local(engine.now());
}

absl::Time World::RealTime(const Machine& machine, absl::Time local) const {
  ClockModel model{machine.plan().clock_offset, machine.plan().clock_drift};
  return model.Real(local);
}

bool World::AllReachEachOther(const std::set<const Machine*>& hosts) const {
  for (const Machine* host : hosts) {
    if (host->data_cut()) return false;
  }
  for (const auto& [pair, count] : data_cuts_) {
    if (count > 0 && hosts.contains(pair.first) && hosts.contains(pair.second)) return false;
  }
  return true;
}

void World::RecordLogLine(const std::string& text) {
  if (options_.keep_log) logged_.push_back(text);
}

void World::HandlePublished(const JobId& job, const v1::Event& event) {
  judge.CheckDecision(job, event);
  const std::string& rule = event.notice().rule();
  if (rule == "host_lost" || rule == "abandon") ++decisions_.hosts_lost;
  if (rule == "hang") ++decisions_.hangs;
  if (rule == "restart") ++decisions_.restarts;
  absl::string_view text = event.notice().text();
  if (size_t at = text.find(" is unreachable: "); at != text.npos && absl::ConsumePrefix(&text, "host ")) {
    ++decisions_.unreachable;
    std::string host(text.substr(0, text.find(' ')));
    if (mutation == Mutation::kGiveUpSilent) engine.After({}, [this, host] { operators.GiveUp(host); });
  }
  if (!event.has_state()) return;
  for (const Fault& fault : scenario.faults) {
    bool matches = fault.when.has_value() && absl::StrCat("job", 10'000 + fault.when->job) == job.value() &&
                   fault.when->state == event.state().state() && fault.when->generation == event.generation();
    // The fault begins before any message that was sent with the event arrives.
    if (matches) engine.After(fault.at, [this, fault] { Begin(fault); });
  }
}

const JobPlan& World::PlanOf(const JobId& job) const { return *FindPlan(scenario, job); }

std::shared_ptr<Group> World::GroupFor(const GroupId& id, uint32_t ranks) {
  auto [at, is_new] = groups_.try_emplace(id);
  if (is_new) at->second = std::make_shared<Group>(*this, id, ranks, PlanOf(id.first));
  return at->second;
}

std::shared_ptr<ScriptGroup> World::ScriptGroupFor(const GroupId& id, uint32_t ranks) {
  auto [at, is_new] = script_groups_.try_emplace(id);
  if (is_new) at->second = std::make_shared<ScriptGroup>(*this, id, ranks, PlanOf(id.first));
  return at->second;
}

void World::CheckDurable(const v1::Fact& fact) {
  const auto& records = coordinator.store.durable();
  const v1::TrainerKey& key = fact.key();
  auto at = records.find(absl::StrCat("job/", key.job_id()));
  v1::JobRecord job;
  if (at == records.end() || !job.ParseFromString(at->second)) {
    return judge.ReportViolation(
        invariant::kDurable,
        absl::StrCat("a fact of ", key.job_id(), " is acknowledged, but the job is not in the store"));
  }
  if (job.job().generation() != key.generation() || IsFinal(job.job().state())) return;
  if (fact.has_saved()) {
    const auto& saved = job.job().checkpoints();
    if (saved.empty() || saved.rbegin()->step() < fact.saved().step()) {
      judge.ReportViolation(invariant::kDurable, absl::StrCat("the save of step ", fact.saved().step(), " of ",
                                                              key.job_id(), " is acknowledged and not recorded"));
    }
    return;
  }
  if (fact.has_save_ready()) {
    if (NewestResumeStep(job.job(), job.grants()).value_or(0) < fact.save_ready().step()) {
      judge.ReportViolation(invariant::kDurable,
                            absl::StrCat("the ready save of step ", fact.save_ready().step(), " of ", key.job_id(),
                                         " is acknowledged, but no grant of it is recorded"));
    }
    return;
  }
  if (!fact.has_ready() && !fact.has_finished()) return;
  v1::RankPart part;
  auto ranks = records.find(absl::StrCat("rank/", key.job_id(), "/", key.generation(), "/0"));
  bool readable =
      ranks != records.end() && part.ParseFromString(ranks->second) && static_cast<int>(key.rank()) < part.ranks_size();
  if (!readable) {
    return judge.ReportViolation(
        invariant::kDurable,
        absl::StrCat("a fact of ", key.job_id(), " is acknowledged, but its rank is not in the store"));
  }
  const v1::RankRecord& rank = part.ranks(static_cast<int>(key.rank()));
  bool known = rank.has_exit() || (fact.has_ready() ? rank.ready() : rank.finished());
  if (!known) {
    judge.ReportViolation(invariant::kDurable,
                          absl::StrCat(fact.has_ready() ? "ready" : "finished", " of ", key.job_id(), " rank ",
                                       key.rank(), " is acknowledged and not recorded"));
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
    // A simulated trainer reports its generation as the learning rate, so the report seems to come from a later one.
    for (v1::StepReport& step : *report.mutable_steps()) step.set_lr(step.lr() + 1);
  }
}

void World::ForgeReady(v1::FactBatch& batch) {
  // The fact then reports the save of the previous generation as ready.
  for (v1::Fact& fact : *batch.mutable_facts()) {
    if (!fact.has_save_ready()) continue;
    v1::CheckpointReady& ready = *fact.mutable_save_ready();
    ready.set_manifest_hash(HashOf(ready.step(), fact.key().generation() - 1));
  }
}

void World::RecordGrants(v1::DesiredState& desired) {
  for (v1::DesiredTrainer& trainer : *desired.mutable_trainers()) {
    for (v1::CheckpointGrant& grant : *trainer.mutable_grants()) {
      if (mutation == Mutation::kGrantTwice) grant.set_refused(false);
      if (!grant.refused()) judge.Granted(JobId(trainer.key().job_id()), grant);
    }
  }
}

uint32_t World::MostRanks(const JobPlan& plan) const {
  uint32_t ranks = 0;
  for (const auto& machine : machines_) {
    const uint32_t slots = machine->plan().slots;
    if (plan.ranks_per_host == 0) ranks += slots;
    if (plan.ranks_per_host > 0 && slots >= plan.ranks_per_host) ranks += plan.ranks_per_host;
  }
  return std::min(ranks, plan.ranks);
}

void World::CheckGrowth() {
  if (!healed_ || !coordinator.alive() || judge.violation().has_value()) return;
  const State& state = coordinator.core().state();
  const Job* alone = nullptr;
  size_t unfinished = scenario.jobs.size() - state.jobs.size();  // not submitted yet
  for (const auto& [id, job] : state.jobs) {
    if (IsFinal(job.state())) continue;
    ++unfinished;
    alone = &job;
  }
  // The only unfinished job may be one that is not submitted yet.
  const bool can_grow = unfinished == 1 && alone != nullptr && PlanOf(alone->id).is_script() &&
                        alone->state() == v1::JOB_STATE_RUNNING && alone->ranks.size() < MostRanks(PlanOf(alone->id));
  if (!can_grow) return too_few_since_.clear();
  const auto [since, is_new] = too_few_since_.try_emplace(alone->id, engine.now());
  const absl::Duration limit = PlanOf(alone->id).grow_after + kGrowthLimit;
  if (engine.now() - since->second <= limit) return;
  judge.ReportViolation(invariant::kGrowth,
                        absl::StrCat(alone->id.value(), " runs ", alone->ranks.size(), " ranks, and there have been ",
                                     "slots for ", MostRanks(PlanOf(alone->id)), " for ", absl::FormatDuration(limit)));
}

void World::CheckBounds() {
  for (auto& machine : machines_) {
    if (!machine->daemon().alive()) continue;
    agent::CoreStats stats = machine->daemon().stats();
    bool connected = stats.attached && coordinator.alive() && !machine->control_cut();
    if (stats.facts_waiting > (connected ? kFactsInFlight : limits::kFactsUnacknowledged) ||
        machine->outbox.size() > (size_t{64} << 20)) {
      judge.ReportViolation(invariant::kBounded, absl::StrCat(machine->name(), " keeps ", stats.facts_waiting,
                                                              " facts and ", machine->outbox.size(), " bytes on disk"));
    }
  }
}

}  // namespace trainyard::sim
