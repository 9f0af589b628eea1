// trainctl checkpoint reshard: rewrites a checkpoint in another layout.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "checkpoint/catalog.h"
#include "checkpoint/dtype_convert.h"
#include "checkpoint/inventory.h"
#include "checkpoint/reshard.h"
#include "checkpoint/verify.h"
#include "client/byte_progress.h"
#include "client/checkpoint_verbs.h"
#include "client/find_job.h"
#include "client/output.h"
#include "client/text.h"
#include "common/files.h"
#include "common/plural.h"
#include "common/status_macros.h"

namespace trainyard::client {
namespace {

struct ReshardFlags {
  std::string folder;
  uint64_t step = 0;
  uint64_t ranks = 0;  // 0: not given
  std::string format;
  std::string dtype;
  std::string out;
  bool json = false;
};

// Converts the flags. Possible errors: InvalidArgument.
absl::StatusOr<ReshardOptions> OptionsOf(const ReshardFlags& flags, const Manifest& manifest) {
  ReshardOptions options{.ranks = flags.ranks, .dtype = DtypeOfName(flags.dtype)};
  if (flags.format == "full" && flags.ranks > 0) {
    return absl::InvalidArgumentError("--ranks and --format full cannot be combined: a full checkpoint has no shards");
  }
  if (flags.format.empty() && flags.ranks == 0 && flags.dtype.empty()) {
    return absl::InvalidArgumentError("nothing to change: give --ranks N, --format full or sharded, or --dtype TYPE");
  }
  // Without --ranks, write as many shards as the old manifest has ranks (layout.world_size).
  if (flags.format != "full" && options.ranks == 0) options.ranks = manifest.world_size;
  return options;
}

absl::StatusOr<SavedCheckpoint> WriteAndVerify(const Checkpoint& from, ReshardOptions options,
                                               const std::string& run_folder) {
  const std::string name = StepFolderName(from.manifest().step);
  absl::StatusOr<SavedCheckpoint> saved;
  {
    ByteProgress progress(stderr, absl::StrCat("reshard ", name), ReshardedBytes(from.manifest(), options));
    options.on_bytes = [&](uint64_t bytes) { progress.Add(bytes); };
    saved = ReshardCheckpoint(from, options, run_folder, FileSystem::Real());
  }
  RETURN_IF_ERROR(saved.status());
  ByteProgress progress(stderr, absl::StrCat("verify ", name), saved->size_bytes);
  ASSIGN_OR_RETURN(VerifiedCheckpoint verified,
                   VerifyCheckpoint(saved->path, {.on_bytes = [&](uint64_t bytes) { progress.Add(bytes); }}));
  if (verified.problems.empty() && verified.manifest_hash == saved->manifest_hash) return saved;
  return absl::DataLossError(absl::StrCat("the checkpoint was written, but reading it again found a problem: ",
                                          verified.problems.empty()
                                              ? absl::StrCat(saved->path, " has another manifest than the written one")
                                              : verified.problems[0].Text(saved->path)));
}

absl::Status Reshard(const Globals& globals, const ReshardFlags& flags) {
  ASSIGN_OR_RETURN(const std::string source, RunFolderOf(globals, flags.folder));
  const std::string folder = AbsolutePath(source, WorkingDirectory());
  const std::string out = AbsolutePath(flags.out, WorkingDirectory());
  if (out == folder) return absl::InvalidArgumentError("--out: must be a different run folder than the input");
  if (const std::string holder = RunFolderHolder(out); !holder.empty()) {
    // The job would remove the partial folder of this program, and this program might remove that of the job.
    return absl::FailedPreconditionError(
        absl::StrCat("--out: a job trains into ", out, " now (", holder, "); name another folder"));
  }
  const std::string path = JoinPath(folder, StepFolderName(flags.step));
  if (!FileExists(path)) {
    return absl::NotFoundError(absl::StrCat("there is no checkpoint of step ", flags.step, " in ", folder));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> from, Checkpoint::Open(path));
  ASSIGN_OR_RETURN(ReshardOptions options, OptionsOf(flags, from->manifest()));
  ASSIGN_OR_RETURN(SavedCheckpoint saved, WriteAndVerify(*from, options, out));
  if (flags.json) {
    const nlohmann::ordered_json json = {{"event", "resharded"},
                                         {"checkpoint", saved.path},
                                         {"from", path},
                                         {"step", flags.step},
                                         {"ranks", options.ranks},
                                         {"format", options.ranks == 0 ? "full" : "sharded"},
                                         {"manifest_hash", saved.manifest_hash},
                                         {"bytes", saved.size_bytes}};
    PrintJson(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return absl::OkStatus();
  }
  const std::string layout = options.ranks == 0 ? "whole tensors" : Plural(options.ranks, "shard");
  Print(absl::StrCat("resharded ", path, " to ", saved.path, " (", layout,
                     flags.dtype.empty() ? "" : absl::StrCat(", weights in ", flags.dtype), ", ",
                     BytesText(saved.size_bytes), "), verified\n"));
  return absl::OkStatus();
}

}  // namespace

void AddCheckpointReshard(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto flags = std::make_shared<ReshardFlags>();
  CLI::App* verb = app.add_subcommand("reshard", "Rewrite a checkpoint for another number of ranks, or unsharded");
  verb->add_option("folder", flags->folder, "Run folder (checkpoint.dir), or a job")->required();
  verb->add_option("step", flags->step, "Step of the checkpoint")->required()->type_name("STEP");
  verb->add_option("--ranks", flags->ranks, "Number of shards; each holds a flat share of every tensor")
      ->type_name("N")
      ->check(CLI::Range(uint64_t{1}, uint64_t{100'000}));
  verb->add_option("--format", flags->format, "full: whole weights in one file, optimizer state in another")
      ->check(CLI::IsMember({"full", "sharded"}));
  verb->add_option("--dtype", flags->dtype,
                   "Data type of the weights, rounded to nearest; the optimizer state keeps its type")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16", "fp64"}));
  verb->add_option("--out", flags->out, "Output run folder, different from the input; created if missing")->required();
  AddJson(*verb, &flags->json, "One JSON object");
  verb->callback([&globals, flags, chosen] {
    *chosen = [&globals, flags] { return ReportStatus(Reshard(globals, *flags), flags->json); };
  });
  verb->footer(
      "Verifies every byte when reading and again after writing; one piece is in memory at a time. To resume\n"
      "with another number of ranks you do not need this: jobs of any layout load checkpoints of any layout.\n\n"
      "Examples:\n  trainctl checkpoint reshard RUN 100 --ranks 2 --out RUN-2\n"
      "  trainctl checkpoint reshard RUN 100 --format full --dtype bf16 --out WHOLE");
}

}  // namespace trainyard::client
