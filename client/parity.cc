// trainctl parity: compares the losses of a job in one process, under every data-parallel strategy, and with stages and
// tensor ranks.
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/commands.h"
#include "client/exit_code.h"
#include "client/interrupts.h"
#include "client/job_calls.h"
#include "client/job_input.h"
#include "client/job_stream.h"
#include "client/output.h"
#include "client/parity_plan.h"
#include "client/parity_report.h"
#include "client/private_cluster.h"
#include "common/files.h"
#include "common/ids.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct ParityCommandOptions {
  JobOptions job;
  uint64_t steps = 20;
  double max_difference = -1;  // --assert; below 0: not given
  bool keep = false;
  bool json = false;
};

class Parity {
 public:
  Parity(const ParityCommandOptions& options, Interrupts& interrupts) : options_(options), interrupts_(interrupts) {}

  absl::StatusOr<int> Run() {
    const JobInput input{.file = options_.job.file, .overrides = options_.job.overrides};
    interrupts_.OnFirst([] { _exit(kClientCancelled); });  // reading the job may take long
    absl::StatusOr<LoadedJob> read = LoadJob(input, /*on_this_machine=*/true);
    interrupts_.OnFirst(nullptr);
    RETURN_IF_ERROR(read.status());
    const LoadedJob& loaded = *read;
    RETURN_IF_ERROR(ProblemsStatus(input, loaded.problems));
    if (!loaded.spec.has_train())
      return absl::InvalidArgumentError("the job is a probe or a command, which has no losses to compare");
    const std::string folder =
        JoinPath(WorkingDirectory(), absl::StrCat("trainyard-runs/parity-", loaded.spec.name(), "-", RandomId(8)));
    RETURN_IF_ERROR(MakeFolders(folder));
    absl::Cleanup remove = [&] {
      std::error_code ignored;
      if (!options_.keep) std::filesystem::remove_all(folder, ignored);
    };
    const std::vector<ParityVariant> variants =
        ParityVariants(loaded.spec, {.steps = options_.steps, .folder = folder});
    ASSIGN_OR_RETURN(std::unique_ptr<PrivateCluster> cluster,
                     PrivateCluster::Start({.folder = JoinPath(folder, ".trainyard"),
                                            .slots = ParitySlots(variants),
                                            .binary_folder = BinaryFolder()}));
    ASSIGN_OR_RETURN(connection_, Connection::Open({.address = cluster->address()}, absl::Seconds(10)));
    std::vector<ParityResult> results;
    for (const ParityVariant& variant : variants) {
      ASSIGN_OR_RETURN(ParityResult result, Train(variant), << "variant " << variant.name);
      results.push_back(std::move(result));
    }
    connection_ = nullptr;
    RETURN_IF_ERROR(cluster->Stop());
    return Report(results);
  }

 private:
  absl::StatusOr<ParityResult> Train(const ParityVariant& variant) {
    v1::SubmitRequest request;
    request.set_job_id(RandomId(8));
    *request.mutable_spec() = variant.spec;
    ASSIGN_OR_RETURN(v1::SubmitResponse accepted, SubmitJob(*connection_, request));
    const absl::Time began = absl::Now();
    ParityResult result{.name = variant.name, .losses = {}};
    std::string reason;
    JobStream stream(*connection_, accepted.job_id(), {});
    interrupts_.OnFirst([&stream] { stream.Stop(); });
    auto state = stream.Follow(
        [&](const v1::Event& event) {
          if (event.has_step()) result.losses.push_back(event.step().loss());
          if (event.has_state()) reason = event.state().reason();
        },
        [](absl::string_view) {});
    interrupts_.OnFirst(nullptr);
    if (interrupts_.interrupted()) return absl::CancelledError("interrupted");
    RETURN_IF_ERROR(state.status());
    if (*state != v1::JOB_STATE_SUCCEEDED) {
      return absl::InternalError(absl::StrCat("ended ", absl::AsciiStrToLower(StateName(*state)), ": ", reason));
    }
    if (!options_.json) {
      const uint32_t ranks = variant.spec.resources().ranks();
      SayUnprefixed(absl::StrFormat("%-13s %u %s  %.1f s", variant.name, ranks, ranks == 1 ? "rank " : "ranks",
                                    absl::ToDoubleSeconds(absl::Now() - began)));
    }
    return result;
  }

  int Report(const std::vector<ParityResult>& results) const {
    if (options_.json) {
      PrintJson(ParityJson(results));
    } else {
      Print(ParityText(results, OutputColumns()));
    }
    const double worst = WorstDifference(results);
    if (options_.max_difference < 0 || worst <= options_.max_difference) return kClientDone;
    Say(absl::StrFormat("the losses differ by up to %.1e, more than --assert %.1e", worst, options_.max_difference));
    return kClientFailed;
  }

  const ParityCommandOptions& options_;
  Interrupts& interrupts_;
  std::unique_ptr<Connection> connection_;
};

absl::StatusOr<int> RunParity(const ParityCommandOptions& options) {
  BlockSignals();
  Interrupts interrupts([] { _exit(kClientCancelled); });
  return Parity(options, interrupts).Run();
}

}  // namespace

void AddParity(CLI::App& app, const Globals&, Chosen* chosen) {
  auto options = std::make_shared<ParityCommandOptions>();
  CLI::App* verb = app.add_subcommand("parity", "Compare a job's losses in one process and under every strategy");
  AddJobOptions(*verb, &options->job);
  verb->add_option("--steps", options->steps, "Number of steps of each run")
      ->capture_default_str()
      ->check(CLI::Range(uint64_t{1}, uint64_t{1000000}));
  verb->add_option("--assert", options->max_difference,
                   "Exit with code 1 if the relative difference of any loss exceeds this")
      ->check(CLI::Range(0.0, 1.0));
  verb->add_flag("--keep", options->keep, "Keep the run folders of all variants in ./trainyard-runs/parity-*");
  AddJson(*verb, &options->json, "One JSON object");
  verb->footer(
      "Runs on this machine, with private daemons: in one process, again in one process with each step's\n"
      "micro-batches in reverse order (the noise floor: how far apart two correct results are), then ddp,\n"
      "zero1, zero2, zero3, fsdp with and without resharding on 2 ranks, and hsdp on 2 x 2; then, if the model can\n"
      "be divided, tensor and pipeline on 2 ranks, both together with zero1 on 8 ranks, and the layout of a job that\n"
      "has stages or tensor ranks. Data, precision and seed are the job's. All variants except the layout of the job\n"
      "use only bucket_elements and overlap of its `parallel` section.\n\n"
      "Examples:\n"
      "  trainctl parity configs/jobs/lab-tiny.yaml --assert 1e-6\n"
      "  trainctl parity job.yaml --steps 100 --json | jq .worst");
  verb->callback([options, chosen] {
    *chosen = [options] {
      auto exit_code = RunParity(*options);
      return exit_code.ok() ? *exit_code : ReportStatus(exit_code.status(), options->json);
    };
  });
}

}  // namespace trainyard::client
