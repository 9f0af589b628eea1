// trainctl doctor: finds problems of a cluster's hosts. Checks what the daemons report, then submits probe jobs with
// two hosts each, in two rounds (doctor_plan.h).
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/doctor_checks.h"
#include "client/doctor_plan.h"
#include "client/doctor_report.h"
#include "client/exit_code.h"
#include "client/interrupts.h"
#include "client/job_calls.h"
#include "client/job_stream.h"
#include "client/output.h"
#include "common/files.h"
#include "common/ids.h"
#include "common/nearest_name.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(50);

struct DoctorOptions {
  std::vector<std::string> hosts;
  bool no_probes = false;
  uint32_t matmul_size = 1024;
  uint64_t all_reduce_bytes = 4 << 20;
  double time_limit_s = 60;
  bool json = false;
  ProbeLimits limits;
};

class Doctor {
 public:
  Doctor(Connection& connection, const DoctorOptions& options, const Interrupts& interrupts)
      : connection_(connection), options_(options), interrupts_(interrupts) {}

  absl::Status Examine() {
    ASSIGN_OR_RETURN(v1::ServerInfo server, GetServerInfo(connection_));
    ASSIGN_OR_RETURN(v1::ListHostsResponse all, ListHosts(connection_));
    ASSIGN_OR_RETURN(report_.hosts, Chosen(all));
    report_.findings = CheckThisMachine(BinaryFolder(), WorkingDirectory());
    for (Finding& finding : CheckHosts(server, report_.hosts)) report_.findings.push_back(std::move(finding));
    Report(FindingsText(report_));
    if (!options_.no_probes) {
      RETURN_IF_ERROR(Probe());
    }
    Report(options_.json ? DoctorJson(report_) : VerdictsText(report_), /*always=*/true);
    return absl::OkStatus();
  }

  bool AllWell() const { return report_.AllWell(); }

 private:
  // Prints results as they arrive; with --json only those with `always`.
  void Report(const std::string& text, bool always = false) const {
    if (options_.json && !always) return;
    if (options_.json) {
      PrintJson(text);
    } else {
      Print(text);
    }
    FlushOutput();
  }

  absl::Status Probe() {
    for (const v1::HostStatus& host : report_.hosts.hosts()) {
      std::string why = WhyNotProbed(host);
      if (why.empty()) {
        probed_.push_back({.name = host.name(), .cores = host.cores()});
      } else {
        report_.skipped[host.name()] = why;
      }
    }
    ASSIGN_OR_RETURN(report_.first, Round(1, FirstRound(probed_)));
    ASSIGN_OR_RETURN(report_.second, Round(2, SecondRound(probed_, report_.first, options_.limits)));
    report_.verdicts = Judge(probed_, report_.first, report_.second, options_.limits);
    return absl::OkStatus();
  }

  // The hosts named by --hosts, or all.
  absl::StatusOr<v1::ListHostsResponse> Chosen(const v1::ListHostsResponse& all) const {
    if (options_.hosts.empty()) return all;
    v1::ListHostsResponse chosen;
    std::vector<std::string> names;
    for (const v1::HostStatus& host : all.hosts()) names.push_back(host.name());
    std::set<std::string> seen;
    for (const std::string& name : options_.hosts) {
      if (!seen.insert(name).second) {
        return absl::InvalidArgumentError(absl::StrCat("--hosts names '", name, "' twice"));
      }
      auto it = std::find(names.begin(), names.end(), name);
      if (it == names.end()) {
        std::string nearest = NearestName(name, names);
        return absl::NotFoundError(absl::StrCat("--hosts: there is no host '", name, "'",
                                                nearest.empty() ? "." : absl::StrCat("; did you mean '", nearest, "'?"),
                                                " Hosts: ", absl::StrJoin(names, ", ")));
      }
      *chosen.add_hosts() = all.hosts(static_cast<int>(it - names.begin()));
    }
    return chosen;
  }

  absl::StatusOr<std::string> Submit(const ProbePair& pair) {
    v1::SubmitRequest request;
    request.set_job_id(RandomId(8));
    v1::JobSpec& spec = *request.mutable_spec();
    spec.set_name("doctor");
    spec.mutable_probe()->set_matmul_size(options_.matmul_size);
    spec.mutable_probe()->set_all_reduce_bytes(options_.all_reduce_bytes);
    spec.mutable_resources()->set_ranks(static_cast<uint32_t>(pair.size()));
    for (const std::string& host : pair) spec.mutable_resources()->add_hosts(host);
    spec.mutable_recovery()->set_max_restarts(0);
    ASSIGN_OR_RETURN(v1::SubmitResponse accepted, SubmitJob(connection_, request));
    return accepted.job_id();
  }

  // Probes all pairs concurrently, which is possible because each host is in at most one pair.
  absl::StatusOr<std::vector<ProbeResult>> Round(int number, const std::vector<ProbePair>& pairs) {
    std::vector<ProbeResult> results;
    std::vector<std::string> jobs;
    for (const ProbePair& pair : pairs) {
      auto job = Submit(pair);
      if (!job.ok()) {
        CancelAll(jobs, "trainctl doctor could not submit all probes");
        return job.status();
      }
      jobs.push_back(*job);
    }
    const absl::Time deadline = absl::Now() + absl::Seconds(options_.time_limit_s);
    for (size_t i = 0; i < pairs.size(); ++i) {
      absl::StatusOr<ProbeResult> result = Await(pairs[i], jobs[i], deadline);
      if (!result.ok()) {
        const std::vector<std::string> rest(jobs.begin() + static_cast<ptrdiff_t>(i), jobs.end());
        CancelAll(rest, "trainctl doctor cannot read its probes");
        return result.status();
      }
      Report(ProbeText(number, *result));
      results.push_back(*std::move(result));
    }
    if (interrupts_.interrupted()) return absl::CancelledError("interrupted; the probes are being cancelled");
    return results;
  }

  // Fails if the coordinator does not return the state of the job, because that says nothing about the hosts. Problems
  // of the hosts are in the result.
  absl::StatusOr<ProbeResult> Await(const ProbePair& pair, const std::string& job_id, absl::Time deadline) {
    ProbeResult result{.hosts = pair, .error = "", .gflops = {}};
    absl::StatusOr<v1::Job> job = absl::UnknownError("");
    while (true) {
      job = GetJob(connection_, job_id);
      if (job.ok() && IsFinal(job->state())) break;
      const bool interrupted = interrupts_.interrupted();
      const bool ends_waiting = interrupted || absl::Now() >= deadline;
      if (!job.ok() && !interrupted && (ends_waiting || !IsUnanswered(job.status()))) return job.status();
      if (ends_waiting) {
        Cancel(job_id, "trainctl doctor stopped waiting for this probe");
        result.error = UnfinishedProbeText(interrupted, options_.time_limit_s,
                                           job.ok() ? absl::StrCat(StateName(job->state()), ", ", job->reason())
                                                    : std::string(job.status().message()));
        return result;
      }
      absl::SleepFor(kPoll);
    }
    if (job->state() != v1::JOB_STATE_SUCCEEDED) {
      result.error =
          absl::StrCat("the probe ", job_id, " ", absl::AsciiStrToLower(StateName(job->state())), ": ", job->reason());
    } else {
      RETURN_IF_ERROR(Collect(job_id, &result));
    }
    return result;
  }

  // The job has ended, so its stream delivers all events and ends.
  absl::Status Collect(const std::string& job_id, ProbeResult* result) {
    result->gflops.assign(result->hosts.size(), 0);
    size_t num_reports = 0;
    JobStream stream(connection_, job_id, {.give_up_after = absl::Seconds(10)});
    auto end = stream.Follow(
        [&](const v1::Event& event) {
          if (!event.has_probe()) return;
          auto host = std::find(result->hosts.begin(), result->hosts.end(), event.probe().host());
          if (host == result->hosts.end()) return;
          result->gflops[static_cast<size_t>(host - result->hosts.begin())] = event.probe().matmul_gflops();
          result->latency_s = std::max(result->latency_s, event.probe().all_reduce_latency_s());
          const double bandwidth = event.probe().all_reduce_bytes_per_s();
          result->bytes_per_s = num_reports == 0 ? bandwidth : std::min(result->bytes_per_s, bandwidth);
          ++num_reports;
        },
        [](absl::string_view) {});
    RETURN_IF_ERROR(end.status());
    if (num_reports < result->hosts.size()) {
      result->error = absl::StrCat("only ", num_reports, " of ", result->hosts.size(), " ranks of the probe ", job_id,
                                   " reported their measurements");
    }
    return absl::OkStatus();
  }

  void CancelAll(const std::vector<std::string>& jobs, const std::string& why) {
    for (const std::string& job : jobs) Cancel(job, why);
  }

  void Cancel(const std::string& job_id, const std::string& why) {
    auto cancelled = CancelJob(connection_, job_id, why);
    if (!cancelled.ok()) {
      Say(absl::StrCat("could not cancel the probe ", job_id, ": ", cancelled.status().message()));
    }
  }

  Connection& connection_;
  const DoctorOptions& options_;
  const Interrupts& interrupts_;
  std::vector<ProbeHost> probed_;
  DoctorReport report_;
};

absl::StatusOr<int> RunDoctor(const Globals& globals, const DoctorOptions& options) {
  BlockSignals();
  Interrupts interrupts([] { _exit(kClientCancelled); });
  ASSIGN_OR_RETURN(auto connection, Connect(globals));
  Doctor doctor(*connection, options, interrupts);
  RETURN_IF_ERROR(doctor.Examine());
  return doctor.AllWell() ? kClientDone : kClientFailed;
}

}  // namespace

void AddDoctor(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* verb = app.add_subcommand("doctor", "Find problems of the hosts of a cluster");
  verb->add_option("--hosts", options->hosts, "Only these hosts: --hosts w1,w2")->delimiter(',')->type_name("NAMES");
  verb->add_flag("--no-probes", options->no_probes, "Run no probes; only check what the daemons report");
  verb->add_option("--matmul-size", options->matmul_size, "Rows and columns of the matrices of a probe")
      ->capture_default_str()
      ->check(CLI::Range(16, 65536));
  verb->add_option("--all-reduce-bytes", options->all_reduce_bytes, "Size of the larger all-reduce of a probe")
      ->capture_default_str()
      ->check(CLI::Range(4096, 1 << 30));
  verb->add_option("--share", options->limits.share, "Hosts and pairs below this share of the median speed are slow")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--time-limit", options->time_limit_s, "Time limit of a round of probes, in seconds")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 3600.0));
  AddJson(*verb, &options->json, "One JSON object");
  verb->footer(
      "Checks attachment, clocks, versions, disks, labels and addresses, then probes the hosts in pairs with a\n"
      "matrix product and all-reduces, as jobs named `doctor`. Hosts of a slow pair are probed again, each with\n"
      "a fast host, to find out which of the two is slow. Hosts without a free slot are skipped. Exit code 1:\n"
      "problems were found.\n"
      "To probe one host by hand: trainyard-trainer --probe.\n\n"
      "Examples:\n  trainctl doctor\n  trainctl doctor --hosts w1,w2,w3 --json | jq '.verdicts[]'");
  verb->callback([&globals, options, chosen] {
    *chosen = [&globals, options] {
      auto exit_code = RunDoctor(globals, *options);
      return exit_code.ok() ? *exit_code : ReportStatus(exit_code.status(), options->json);
    };
  });
}

}  // namespace trainyard::client
