// trainctl checkpoint export and import: converts to and from folders of the Python library transformers.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/catalog.h"
#include "checkpoint/dtype_convert.h"
#include "checkpoint/hugging_face_folder.h"
#include "checkpoint/model_export.h"
#include "client/checkpoint_verbs.h"
#include "client/export_sources.h"
#include "client/find_job.h"
#include "client/output.h"
#include "client/text.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/plural.h"
#include "common/status_macros.h"
#include "models/adapter_config.h"
#include "spec/model_sizes.h"
#include "tokenizers/byte_tokenizer.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::client {
namespace {

struct ConvertOptions {
  std::string from;
  std::string to;
  std::optional<uint64_t> step;
  ExportOptions export_options;
  std::string dtype;  // as in train.precision
  bool adapter = false;
  bool json = false;
};

// Opens a checkpoint by its path. In a run folder, opens the checkpoint of the requested step or, if no step is
// requested, the newest good one.
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

absl::StatusOr<v1::Train> TrainOf(const Checkpoint& checkpoint) {
  v1::JobSpec spec;
  if (!spec.ParseFromString(checkpoint.manifest().spec) || !spec.train().model().has_layers()) {
    return absl::FailedPreconditionError(absl::StrCat(checkpoint.path(), " does not describe its model (train.model)"));
  }
  return spec.train();
}

void PrintResult(const ConvertOptions& options, const nlohmann::ordered_json& json, const std::string& text) {
  if (options.json) {
    PrintJson(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else {
    Print(absl::StrCat(text, "\n"));
  }
}

absl::Status ExportAdapterOf(const Checkpoint& checkpoint, const v1::Train& train, const std::string& out,
                             const ConvertOptions& options) {
  const std::string base = BaseOfAdapters(train.model());
  if (!base.empty() && FileExists(JoinPath(base, kManifestName))) {
    Say(absl::StrCat(
        "warning: the adapters belong to the weights of ", base,
        ", which PEFT cannot open; export that checkpoint, too, and write the path of the exported folder into "
        "base_model_name_or_path of ",
        kAdapterConfigName));
  }
  RETURN_IF_ERROR(
      ExportAdapter(checkpoint, SizesOf(train), base, out, FileSystem::ForOthers(), DtypeOfName(options.dtype)));
  PrintResult(options,
              {{"event", "exported"},
               {"checkpoint", checkpoint.path()},
               {"step", checkpoint.manifest().step},
               {"out", out},
               {"adapter", true}},
              absl::StrCat("exported the adapters of ", checkpoint.path(), " to ", out));
  return absl::OkStatus();
}

// Clears a path that is not on this machine, with a warning that names what is not exported for this reason.
void ClearIfMissing(absl::string_view what, std::string& path) {
  if (path.empty() || FileExists(path)) return;
  Say(absl::StrCat("warning: ", path, " is not on this machine, so ", what, " is not exported"));
  path.clear();
}

absl::Status Export(const ConvertOptions& options) {
  const std::string out = AbsolutePath(options.to, WorkingDirectory());
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, OpenCheckpoint(options));
  ASSIGN_OR_RETURN(const v1::Train train, TrainOf(*checkpoint));
  const v1::Model& model = train.model();
  const ModelSizes sizes = SizesOf(train);
  if (options.adapter) return ExportAdapterOf(*checkpoint, train, out, options);
  ExportOptions how = options.export_options;
  how.dtype = DtypeOfName(options.dtype);
  how.source_config = model.config();
  how.source_folder = model.path();
  how.tokenizer = TokenizerToExport(train);
  how.chat_template = train.data().chat_template();
  if (how.tokenizer.empty() && !model.path().empty() && sizes.vocabulary != ByteTokenizer::kVocabulary) {
    Say(absl::StrCat("warning: the model was trained on bytes and not with the tokenizer of ", model.path(),
                     ", so no tokenizer is exported"));
  }
  ClearIfMissing("the generation_config.json of the model", how.source_folder);
  ClearIfMissing("the tokenizer", how.tokenizer);
  RETURN_IF_ERROR(ExportModel(*checkpoint, sizes, out, FileSystem::ForOthers(), how));
  std::string text = absl::StrCat("exported ", checkpoint->path(), " to ", out);
  if (sizes.vocabulary == ByteTokenizer::kVocabulary && how.tokenizer.empty()) {
    absl::StrAppend(&text, "\nthe vocabulary is the 256 bytes, without special tokens; tokenizer.json describes it");
  }
  if (sizes.lora.rank > 0) absl::StrAppend(&text, "\nthe adapters are merged; --adapter exports them alone");
  const uint64_t step = checkpoint->manifest().step;
  PrintResult(options, {{"event", "exported"}, {"checkpoint", checkpoint->path()}, {"step", step}, {"out", out}}, text);
  return absl::OkStatus();
}

Manifest ManifestOfImport(const ModelSizes& sizes, const std::string& folder, const std::string& config) {
  v1::JobSpec spec;
  spec.set_name("imported");
  v1::Model& model = *spec.mutable_train()->mutable_model();
  SetModelSizes(sizes, model);
  model.set_path(folder);
  model.set_config(config);
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
  ASSIGN_OR_RETURN(const std::string config, ReadConfigText(folder));
  ASSIGN_OR_RETURN(SavedCheckpoint saved,
                   ImportModel(folder, sizes, run_folder, ManifestOfImport(sizes, folder, config), FileSystem::Real()));
  PrintResult(
      options,
      {{"event", "imported"},
       {"checkpoint", saved.path},
       {"manifest_hash", saved.manifest_hash},
       {"bytes", saved.size_bytes}},
      absl::StrCat("imported ", folder, " as ", saved.path, " (", BytesText(saved.size_bytes), "): ", SizesText(sizes),
                   "\nto train it further:\n  trainctl run JOB.yaml --resume --set checkpoint.dir=", run_folder,
                   " --set train.model.path=", folder));
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
  verb->add_option(
          "folder", options->from,
          "A checkpoint; a run folder or a job, for its newest good checkpoint; or RUN/best, for its checkpoint\n"
          "with the lowest evaluation loss")
      ->required();
  verb->add_option("out", options->to, "Folder to create")->required();
  verb->add_option("--step", options->step, "In a run folder: the checkpoint of this step")->type_name("N");
  CLI::Option* shard_bytes = verb->add_option("--max-shard-bytes", options->export_options.max_shard_bytes,
                                              "Split the weights into files of at most this size; default 5e9")
                                 ->type_name("N")
                                 ->check(CLI::PositiveNumber);
  verb->add_flag("--adapter", options->adapter,
                 "Export only the adapters of a job with train.lora, for PEFT; default: merged into the model")
      ->excludes(shard_bytes);
  verb->add_option("--dtype", options->dtype, "Type of the weights: fp32, fp64, bf16 or fp16; default: as trained")
      ->check(CLI::IsMember({"fp32", "fp64", "bf16", "fp16"}));
  verb->footer(
      "Exports the weights only and verifies every byte. AutoModelForCausalLM.from_pretrained(OUT) loads the folder;\n"
      "so does AutoTokenizer, if the tokens are bytes or the job has a tokenizer_path or train.model.path.\n\n"
      "Examples:\n  trainctl checkpoint export RUN gpt2-folder\n"
      "  trainctl checkpoint export RUN adapter-folder --adapter");
}

void AddCheckpointImport(CLI::App& app, Chosen* chosen) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* verb =
      AddVerb(app, chosen, "import", "Import a transformers folder as a checkpoint of step 0", options, Import);
  verb->add_option("folder", options->from, "Folder with config.json and model.safetensors")->required();
  verb->add_option("out", options->to, "Run folder for the checkpoint; created if missing")->required();
  verb->footer(
      "Refuses a folder with a model that Trainyard cannot train, and lists every missing or unexpected\n"
      "weight, wrong shape and unsupported setting. The printed command trains the model further; its job reads\n"
      "text with the tokenizer of the folder, unless train.data.tokenizer names another.\n\n"
      "Examples:\n  trainctl checkpoint import gpt2-folder RUN");
}

}  // namespace trainyard::client
