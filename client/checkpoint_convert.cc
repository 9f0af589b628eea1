// trainctl checkpoint export and import: converts to and from folders of the Python library transformers.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/catalog.h"
#include "checkpoint/hugging_face_folder.h"
#include "client/checkpoint_verbs.h"
#include "client/find_job.h"
#include "client/output.h"
#include "client/text.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "spec/model_sizes.h"
#include "tokenizers/byte_tokenizer.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::client {
namespace {

struct ConvertOptions {
  std::string from;
  std::string to;
  std::optional<uint64_t> step;
  bool json = false;
};

// Opens a checkpoint by its path, or the requested or newest good one of a run folder.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(const ConvertOptions& options) {
  const std::string path = AbsolutePath(options.from, WorkingDirectory());
  if (options.step.has_value()) {
    if (!FileExists(JoinPath(path, kManifestName))) {
      return Checkpoint::Open(JoinPath(path, StepFolderName(*options.step)));
    }
    return absl::InvalidArgumentError(absl::StrCat("--step: ", path, " is a checkpoint, not a run folder"));
  }
  std::vector<std::string> skipped;
  absl::StatusOr<std::unique_ptr<Checkpoint>> opened = OpenCheckpointOrNewest(path, skipped);
  if (opened.ok()) {
    for (const std::string& reason : skipped) Say(reason);
  }
  return opened;
}

absl::StatusOr<ModelSizes> SizesOf(const Checkpoint& checkpoint) {
  v1::JobSpec spec;
  if (!spec.ParseFromString(checkpoint.manifest().spec) || !spec.train().model().has_layers()) {
    return absl::FailedPreconditionError(absl::StrCat(checkpoint.path(), " does not describe its model (train.model)"));
  }
  return SizesOfModel(spec.train().model());
}

void PrintResult(const ConvertOptions& options, const nlohmann::ordered_json& json, const std::string& text) {
  if (options.json) {
    PrintJson(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    Print(absl::StrCat(text, "\n"));
  }
}

absl::Status Export(const ConvertOptions& options) {
  const std::string out = AbsolutePath(options.to, WorkingDirectory());
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, OpenCheckpoint(options));
  ASSIGN_OR_RETURN(ModelSizes sizes, SizesOf(*checkpoint));
  RETURN_IF_ERROR(ExportModel(*checkpoint, sizes, out, FileSystem::ForOthers()));
  std::string text = absl::StrCat("exported ", checkpoint->path(), " to ", out);
  if (sizes.vocabulary == ByteTokenizer::kVocabulary) {
    absl::StrAppend(&text, "\nthe vocabulary is the 256 bytes, without special tokens; tokenizer.json describes it");
  }
  const uint64_t step = checkpoint->manifest().step;
  PrintResult(options, {{"event", "exported"}, {"checkpoint", checkpoint->path()}, {"step", step}, {"out", out}}, text);
  return absl::OkStatus();
}

Manifest ManifestOfImport(const ModelSizes& sizes) {
  v1::JobSpec spec;
  spec.set_name("imported");
  SetModelSizes(sizes, *spec.mutable_train()->mutable_model());
  Manifest manifest;
  manifest.job_id = manifest.job_name = spec.name();
  manifest.spec = spec.SerializeAsString();
  manifest.spec_digest = HashHex(manifest.spec);
  manifest.strategy = "ddp";
  manifest.world_size = 1;
  return manifest;
}

absl::Status Import(const ConvertOptions& options) {
  const std::string folder = AbsolutePath(options.from, WorkingDirectory());
  const std::string run_folder = AbsolutePath(options.to, WorkingDirectory());
  ASSIGN_OR_RETURN(ModelSizes sizes, ReadModelConfig(folder));
  ASSIGN_OR_RETURN(SavedCheckpoint saved,
                   ImportModel(folder, sizes, run_folder, ManifestOfImport(sizes), FileSystem::Real()));
  PrintResult(options,
              {{"event", "imported"},
               {"checkpoint", saved.path},
               {"manifest_hash", saved.manifest_hash},
               {"bytes", saved.size_bytes}},
              absl::StrCat("imported ", folder, " as ", saved.path, " (", BytesText(saved.size_bytes),
                           "): ", Plural(static_cast<uint64_t>(sizes.layers), "layer"), ", ",
                           Plural(static_cast<uint64_t>(sizes.heads), "head"), ", width ", sizes.width, ", context ",
                           sizes.context, ", vocabulary ", sizes.vocabulary,
                           "\nto train it further, use a job file with these sizes in train.model:\n",
                           "  trainctl run JOB.yaml --resume --set checkpoint.dir=", run_folder));
  return absl::OkStatus();
}

absl::Status ExportFolderOrJob(const Globals& globals, ConvertOptions options) {
  ASSIGN_OR_RETURN(options.from, RunFolderOf(globals, options.from));
  return Export(options);
}

CLI::App* AddVerb(CLI::App& app, Chosen* chosen, const char* name, const char* help,
                  const std::shared_ptr<ConvertOptions>& options,
                  const std::function<absl::Status(const ConvertOptions&)>& act) {
  CLI::App* verb = app.add_subcommand(name, help);
  AddJson(*verb, &options->json, "One JSON object");
  verb->callback(
      [options, chosen, act] { *chosen = [options, act] { return ReportStatus(act(*options), options->json); }; });
  return verb;
}

}  // namespace

void AddCheckpointExport(CLI::App& app, const Globals& globals, Chosen* chosen) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* verb =
      AddVerb(app, chosen, "export", "Export a checkpoint's model as a Hugging Face transformers folder", options,
              [&globals](const ConvertOptions& given) { return ExportFolderOrJob(globals, given); });
  verb->add_option("folder", options->from, "Checkpoint, or run folder or job (its newest good checkpoint)")
      ->required();
  verb->add_option("out", options->to, "Folder to create")->required();
  verb->add_option("--step", options->step, "In a run folder: the checkpoint of this step")->type_name("N");
  verb->footer(
      "Exports the weights only and verifies every byte. GPT2LMHeadModel.from_pretrained(OUT) loads the folder;\n"
      "if the tokens are bytes, so does AutoTokenizer.\n\n"
      "Examples:\n  trainctl checkpoint export RUN gpt2-folder");
}

void AddCheckpointImport(CLI::App& app, Chosen* chosen) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* verb =
      AddVerb(app, chosen, "import", "Import a transformers GPT-2 folder as a checkpoint of step 0", options, Import);
  verb->add_option("folder", options->from, "Folder with config.json and model.safetensors")->required();
  verb->add_option("out", options->to, "Run folder for the checkpoint; created if missing")->required();
  verb->footer(
      "Refuses a folder that is not a GPT-2 that Trainyard can train, and lists every missing or unexpected\n"
      "weight, wrong shape and unsupported setting. Text is read as bytes whatever the vocabulary: tokens above\n"
      "255 are not used.\n\n"
      "Examples:\n  trainctl checkpoint import gpt2-folder RUN");
}

}  // namespace trainyard::client
