#include "bench/control/measurements.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/control/coordinator_process.h"
#include "bench/control/fleet.h"
#include "bench/control/job_client.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace trainyard::bench {
namespace {

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

// The smallest sample that this share of the samples does not exceed.
double Percentile(std::vector<double> samples, double share) {
  std::sort(samples.begin(), samples.end());
  double rank = std::ceil(share * static_cast<double>(samples.size()));
  return samples[static_cast<size_t>(std::max(1.0, rank)) - 1];
}

Figures Summarize(const std::vector<double>& samples) {
  return {{"p50", Percentile(samples, 0.5)},
          {"p99", Percentile(samples, 0.99)},
          {"max", Percentile(samples, 1.0)},
          {"samples", static_cast<double>(samples.size())}};
}

// Counts rounds, each of which gives a sample, up to the limit of their number or time. The first round is a warm-up
// and does not count.
class Rounds {
 public:
  explicit Rounds(const Setting& setting) : setting_(setting) {}
  bool Next() {
    if (begun_ < 2) return ++begun_, true;
    return begun_ <= setting_.samples && absl::Now() - since_ < setting_.limit && (++begun_, true);
  }
  size_t number() const { return begun_ - 1; }
  bool counts() const { return begun_ > 1; }

 private:
  const Setting& setting_;
  const absl::Time since_ = absl::Now();
  size_t begun_ = 0;
};

// A coordinator with a fleet of hosts and a client.
struct Stage {
  explicit Stage(const Setting& setting) : coordinator(setting.coordinator, setting.folder) {}

  absl::Status Open() {
    RETURN_IF_ERROR(coordinator.Start());
    fleet = std::make_unique<Fleet>(coordinator.address());
    jobs = std::make_unique<JobClient>(coordinator.address());
    return absl::OkStatus();
  }
  // Waits until all hosts are attached.
  absl::Status Attach(size_t hosts) {
    fleet->Add(hosts);
    return fleet->Await(Milestone::kAttached, hosts).status();
  }
  // Submits a job with a rank on each host and waits until every rank has received go. Returns its id.
  absl::StatusOr<std::string> Form() {
    fleet->Reset();
    ASSIGN_OR_RETURN(std::string job, jobs->Submit(static_cast<uint32_t>(fleet->size())));
    RETURN_IF_ERROR(fleet->Await(Milestone::kGoReceived, fleet->size()).status());
    return job;
  }
  // Lets the ranks of `job` make their step and exit, and waits until the coordinator has stored all exits.
  absl::Status Finish(const std::string& job) {
    fleet->SendToAll([](SimulatedHost& host) { host.FinishTrainers(); });
    ASSIGN_OR_RETURN(v1::JobState state, jobs->AwaitEnd(job));
    if (state != v1::JOB_STATE_SUCCEEDED) {
      return absl::InternalError(absl::StrCat("job ", job, " ended as ", v1::JobState_Name(state)));
    }
    return fleet->Await(Milestone::kExitDurable, fleet->size()).status();
  }

  CoordinatorProcess coordinator;
  std::unique_ptr<Fleet> fleet;
  std::unique_ptr<JobClient> jobs;
};

}  // namespace

absl::StatusOr<Figures> MeasureFormation(const Setting& setting) {
  Stage stage(setting);
  RETURN_IF_ERROR(stage.Open());
  RETURN_IF_ERROR(stage.Attach(setting.hosts));
  Fleet& fleet = *stage.fleet;
  size_t last = setting.hosts - 1;
  std::vector<double> times;
  double cpu = 0;
  for (Rounds rounds(setting); rounds.Next();) {
    fleet.Send(last, [](SimulatedHost& host) { host.LeaveCluster(); });
    RETURN_IF_ERROR(stage.jobs->AwaitHosts(static_cast<uint32_t>(last)));
    ASSIGN_OR_RETURN(std::string job, stage.jobs->Submit(static_cast<uint32_t>(setting.hosts)));
    fleet.Reset();
    absl::Duration cpu_before = stage.coordinator.cpu_time();
    absl::Time begin = absl::Now();
    fleet.Replace(last);
    ASSIGN_OR_RETURN(absl::Time end, fleet.Await(Milestone::kGoReceived, setting.hosts),
                     << "in formation " << rounds.number());
    if (rounds.counts()) {
      times.push_back(Milliseconds(end - begin));
      cpu += Milliseconds(stage.coordinator.cpu_time() - cpu_before);
    }
    RETURN_IF_ERROR(stage.Finish(job));
  }
  Figures figures = Summarize(times);
  figures["coordinator_cpu"] = cpu / static_cast<double>(times.size());
  figures["memory_mib"] = static_cast<double>(stage.coordinator.resident_bytes()) / (1 << 20);
  return figures;
}

absl::StatusOr<Figures> MeasureStorm(const Setting& setting) {
  Stage stage(setting);
  RETURN_IF_ERROR(stage.Open());
  std::vector<double> times;
  for (Rounds rounds(setting); rounds.Next();) {
    const size_t i = rounds.number();
    // All hosts have a new incarnation each time, as after a power cut.
    if (i > 0) {
      stage.fleet->SendToAll([](SimulatedHost& host) { host.LeaveCluster(); });
      RETURN_IF_ERROR(stage.jobs->AwaitHosts(0));
      RETURN_IF_ERROR(stage.fleet->Await(Milestone::kStreamEnded, setting.hosts).status());
    }
    stage.fleet->Reset();
    absl::Time begin = absl::Now();
    if (i == 0) stage.fleet->Add(setting.hosts);
    for (size_t host = 0; i > 0 && host < setting.hosts; ++host) stage.fleet->Replace(host);
    ASSIGN_OR_RETURN(absl::Time end, stage.fleet->Await(Milestone::kAttached, setting.hosts), << "in storm " << i);
    if (i > 0) times.push_back(Milliseconds(end - begin));
  }
  return Summarize(times);
}

absl::StatusOr<Figures> MeasureDeath(const Setting& setting) {
  Stage stage(setting);
  RETURN_IF_ERROR(stage.Open());
  RETURN_IF_ERROR(stage.Attach(setting.hosts));
  std::vector<double> times;
  for (Rounds rounds(setting); rounds.Next();) {
    const size_t i = rounds.number();
    ASSIGN_OR_RETURN(std::string job, stage.Form(), << "in round " << i);
    // Any rank may be killed, including the first one.
    size_t victim = (i * 37) % setting.hosts;
    absl::Time begin = absl::Now();
    stage.fleet->Send(victim, [](SimulatedHost& host) { host.KillTrainer(); });
    ASSIGN_OR_RETURN(absl::Time end, stage.fleet->Await(Milestone::kTrainerAborted, setting.hosts - 1),
                     << "in round " << i);
    if (i > 0) times.push_back(Milliseconds(end - begin));
    RETURN_IF_ERROR(stage.jobs->AwaitEnd(job).status());
    RETURN_IF_ERROR(stage.fleet->Await(Milestone::kExitDurable, setting.hosts).status());
  }
  return Summarize(times);
}

absl::StatusOr<Figures> MeasureRestart(const Setting& setting) {
  Stage stage(setting);
  RETURN_IF_ERROR(stage.Open());
  RETURN_IF_ERROR(stage.Attach(setting.hosts));
  ASSIGN_OR_RETURN(std::string job, stage.Form());
  std::vector<double> times, serving;
  for (size_t i = 0; i < setting.samples; ++i) {
    stage.fleet->Reset();
    absl::Time begin = absl::Now();
    stage.coordinator.Kill();
    RETURN_IF_ERROR(stage.coordinator.Start());
    serving.push_back(Milliseconds(absl::Now() - begin));
    ASSIGN_OR_RETURN(absl::Time attached, stage.fleet->Await(Milestone::kAttached, setting.hosts),
                     << "in restart " << i);
    // The job is adopted when the coordinator knows again where each of its ranks runs.
    absl::Time requested;
    while (true) {
      requested = absl::Now();
      ASSIGN_OR_RETURN(v1::Job view, stage.jobs->Get(job));
      if (view.state() != v1::JOB_STATE_RUNNING || view.generation() != 1) {
        return absl::InternalError(absl::StrCat("after restart ", i, " the job is ", v1::JobState_Name(view.state()),
                                                " in generation ", view.generation(), ": ", view.reason()));
      }
      if (!view.unconfirmed()) break;
      if (requested - attached > absl::Seconds(10)) return absl::DeadlineExceededError("the job stays unconfirmed");
    }
    times.push_back(Milliseconds(std::max(attached, requested) - begin));
  }
  RETURN_IF_ERROR(stage.Finish(job));
  Figures figures = Summarize(times);
  figures["serving_p50"] = Percentile(serving, 0.5);
  return figures;
}

absl::StatusOr<Figures> MeasureSteady(const Setting& setting) {
  Stage stage(setting);
  RETURN_IF_ERROR(stage.Open());
  double memory_empty = static_cast<double>(stage.coordinator.resident_bytes()) / (1 << 20);
  RETURN_IF_ERROR(stage.Attach(setting.hosts));
  stage.fleet->Idle(absl::Seconds(2));
  absl::Duration cpu = stage.coordinator.cpu_time();
  absl::Time begin = absl::Now();
  stage.fleet->Idle(setting.duration);
  cpu = stage.coordinator.cpu_time() - cpu;
  if (stage.fleet->Count(Milestone::kStreamEnded) > 0) return absl::InternalError("hosts lost their connection");
  return Figures{{"cpu_percent", 100 * absl::FDivDuration(cpu, absl::Now() - begin)},
                 {"memory_mib", static_cast<double>(stage.coordinator.resident_bytes()) / (1 << 20)},
                 {"memory_empty_mib", memory_empty}};
}

absl::StatusOr<Figures> MeasureEvents(const Setting& setting) {
  constexpr uint64_t kWindow = 128;
  Stage stage(setting);
  RETURN_IF_ERROR(stage.Open());
  RETURN_IF_ERROR(stage.Attach(setting.hosts));
  ASSIGN_OR_RETURN(std::string job, stage.Form());
  stage.fleet->SendToAll([](SimulatedHost& host) { host.Flood(kWindow); });
  RETURN_IF_ERROR(stage.fleet->Await(Milestone::kFactDurable, setting.hosts * kWindow).status());
  uint64_t before = stage.fleet->Count(Milestone::kFactDurable);
  absl::Duration cpu = stage.coordinator.cpu_time();
  absl::Time begin = absl::Now();
  stage.fleet->Idle(setting.duration);
  uint64_t stored = stage.fleet->Count(Milestone::kFactDurable) - before;
  absl::Duration took = absl::Now() - begin;
  cpu = stage.coordinator.cpu_time() - cpu;
  stage.fleet->SendToAll([](SimulatedHost& host) { host.Flood(0); });
  RETURN_IF_ERROR(stage.Finish(job));
  return Figures{{"per_s", static_cast<double>(stored) / absl::ToDoubleSeconds(took)},
                 {"coordinator_cores", absl::FDivDuration(cpu, took)},
                 {"sync_ms", Milliseconds(MeasureDataSync(setting.folder))}};
}

}  // namespace trainyard::bench
