#include "spec/resolve.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "common/plural.h"
#include "common/strict_yaml.h"
#include "common/yaml_schema.h"
#include "spec/data_rules.h"
#include "spec/device_rules.h"
#include "spec/former_keys.h"
#include "spec/job_layout.h"
#include "spec/model_sizes.h"
#include "spec/parallel_rules.h"
#include "spec/precision_rules.h"
#include "spec/schedule_rules.h"
#include "spec/validate.h"

namespace trainyard {
namespace {

class Resolver {
 public:
  explicit Resolver(v1::JobSpec* spec) : spec_(*spec) {}

  void ResolveMicro() {
    v1::Batch& batch = *spec_.mutable_train()->mutable_batch();
    if (batch.has_micro()) return;
    const JobLayout layout = LayoutOf(spec_);
    const uint64_t data_ranks = layout.data_ranks();
    batch.set_micro(static_cast<uint32_t>(DecidedMicro(spec_, data_ranks)));
    if (layout.stages > 1) return AddPipelineDecision(layout);
    const DealShape deal = DealShapeOf(batch.global_size(), batch.micro(), data_ranks);
    const std::string rank_count = Plural(data_ranks, layout.divides_model() ? "data rank" : "rank");
    AddDecision(
        "train.batch.micro", absl::StrCat(batch.micro()),
        deal.idle == 0
            ? absl::StrCat("the largest that gives each of ", rank_count, " the same number of sequences: global ",
                           batch.global_size(), " = ", batch.micro(), " x ", data_ranks)
            : absl::StrCat("the largest that leaves the fewest of ", rank_count, " idle: ", deal.micro_batches,
                           " micro-batches in ", deal.rounds, " rounds, with ", deal.idle, " idle in the last round"));
  }

  // In a job with one stage, the other keys of the pipeline have no effect, so they get the values that they have if
  // none of them is given.
  void ResolvePipeline() {
    v1::Pipeline& pipeline = *spec_.mutable_parallel()->mutable_pipeline();
    if (pipeline.stages() == 1) {
      pipeline.set_schedule(v1::PIPELINE_SCHEDULE_1F1B);
      pipeline.clear_chunks_per_rank();
      pipeline.clear_split();
      return;
    }
    if (pipeline.has_chunks_per_rank()) return;
    pipeline.set_chunks_per_rank(static_cast<uint32_t>(ChunksPerRank(pipeline)));
    AddDecision("parallel.pipeline.chunks_per_rank", absl::StrCat(pipeline.chunks_per_rank()),
                absl::StrCat("the default of the schedule ", ScheduleName(KindOf(pipeline.schedule()))));
  }

  // Sets both `shard` and `replicate`, so that every rank builds the same mesh. Jobs with ddp have neither.
  void ResolveDataSizes() {
    v1::Parallel& parallel = *spec_.mutable_parallel();
    if (parallel.data() == v1::DATA_PARALLEL_DDP) {
      parallel.clear_shard();
      parallel.clear_replicate();
      return;
    }
    const JobLayout layout = LayoutOf(spec_);
    const DataSizes sizes = DataSizesOf(parallel, layout.data_ranks());
    const std::string product =
        absl::StrCat("shard ", sizes.shard, " x replicate ", sizes.replicate, " = ",
                     Plural(layout.data_ranks(), layout.divides_model() ? "data rank" : "rank"));
    if (!parallel.has_shard()) AddDecision("parallel.shard", absl::StrCat(sizes.shard), product);
    if (!parallel.has_replicate()) AddDecision("parallel.replicate", absl::StrCat(sizes.replicate), product);
    parallel.set_shard(static_cast<uint32_t>(sizes.shard));
    parallel.set_replicate(static_cast<uint32_t>(sizes.replicate));
  }

  // As in DeepSpeed's stage 3, small parameters stay gathered: ten rows of a matrix are too few to be worth an
  // all-gather of their own.
  void ResolvePersistElements() {
    v1::Parallel& parallel = *spec_.mutable_parallel();
    if (parallel.has_persist_elements() || parallel.data() != v1::DATA_PARALLEL_ZERO3) return;
    parallel.set_persist_elements(10 * uint64_t{spec_.train().model().width()});
    AddDecision("parallel.persist_elements", absl::StrCat(parallel.persist_elements()),
                "the default of zero3, 10 x width; smaller parameters stay gathered");
  }

  void ResolveTokenizer(const std::string& path) {
    v1::Data& data = *spec_.mutable_train()->mutable_data();
    if (path.empty() || data.has_tokenizer_path()) return;
    data.set_tokenizer_path(path);
    AddDecision("train.data.tokenizer_path", path, "the tokenizer of train.model.path");
  }

  void ResolveVocabulary() {
    v1::Model& model = *spec_.mutable_train()->mutable_model();
    if (model.has_vocabulary()) return;
    const v1::Tokenizer tokenizer = spec_.train().data().tokenizer();
    model.set_vocabulary(TokenizerVocabulary(tokenizer));
    AddDecision("train.model.vocabulary", absl::StrCat(model.vocabulary()),
                absl::StrCat("the size of the tokenizer '",
                             EnumName(*v1::Tokenizer_descriptor()->FindValueByNumber(tokenizer)), "'"));
  }

  // Resolves the sizes that only some families have; a config.json gives all of them.
  void ResolveSizes() {
    v1::Model& model = *spec_.mutable_train()->mutable_model();
    const ModelSizes sizes = SizesOfModel(model);
    if (model.has_config()) {
      AddDecision("train.model", SizesText(sizes),
                  absl::StrCat("config.json of ", model.has_path() ? model.path() : "train.model.config"));
    }
    if (model.has_path() && !model.has_init_from()) {
      model.set_init_from(model.path());
      AddDecision("train.model.init_from", model.init_from(), "the weights of train.model.path");
    }
    if (!IsLlamaGraph(sizes.family)) {
      ClearLlamaKeys(model);
      return;
    }
    v1::Model complete = model;
    SetModelSizes(sizes, complete);
    AddDecisions("train.model", model, complete, absl::StrCat("the default of ", FamilyName(sizes.family)));
    model = std::move(complete);
  }

  // The keys of a job without adapters are cleared, so that they cannot differ between jobs.
  void ResolveLora() {
    v1::Lora& lora = *spec_.mutable_train()->mutable_lora();
    if (lora.rank() == 0) {
      lora.Clear();
      lora.set_rank(0);
      lora.set_dropout(0);
      return;
    }
    const LoraSettings settings = SizesOf(spec_.train()).lora;
    if (lora.has_config()) {
      AddDecision("train.lora",
                  absl::StrCat("rank ", settings.rank, ", alpha ", settings.alpha, ", dropout ", settings.dropout,
                               ", targets ", absl::StrJoin(settings.targets, ", ")),
                  absl::StrCat("adapter_config.json of ", lora.has_path() ? lora.path() : "train.lora.config"));
    }
    if (!lora.has_alpha()) {
      lora.set_alpha(settings.alpha);
      AddDecision("train.lora.alpha", absl::StrCat(settings.alpha),
                  "equal to the rank, so that the product of the adapter's matrices has the factor 1");
    }
    if (lora.targets_size() > 0) return;
    for (const std::string& target : settings.targets) lora.add_targets(target);
    AddDecision("train.lora.targets", absl::StrJoin(settings.targets, ", "),
                absl::StrCat("the default of PEFT for ", FamilyName(SizesOfModel(spec_.train().model()).family)));
  }

  void ResolveLength() {
    v1::Train& train = *spec_.mutable_train();
    if (train.batch().has_length()) return;
    const int64_t length = DecidedLength(train), context = train.model().context();
    if (length == context) return;  // an unset key means the context, as in jobs of earlier versions
    train.mutable_batch()->set_length(static_cast<uint32_t>(length));
    AddDecision("train.batch.length", absl::StrCat(length),
                absl::StrCat("shorter than the context of ", context,
                             ", because few hosts have memory for samples of that length"));
  }

  void ResolveSchedule() {
    for (v1::ResolvedKey& decision : trainyard::ResolveSchedule(*spec_.mutable_train())) {
      decisions_.push_back(std::move(decision));
    }
  }

  void ResolveDevice() {
    if (spec_.resources().has_device()) return;
    const std::string why_cpu = WhyNotOnGpu(spec_);
    if (why_cpu.empty()) {
      AddDecision("resources.device", "auto",
                  "decided when the ranks are placed: cuda if each of their hosts has a GPU for every rank");
      return;
    }
    spec_.mutable_resources()->set_device(v1::DEVICE_CPU);
    AddDecision("resources.device", "cpu", why_cpu);
  }

  void ResolveFolder(const std::string& job_id, const std::string& default_run_root) {
    if (spec_.checkpoint().has_dir() || default_run_root.empty()) return;
    std::string dir = JoinPath(default_run_root, absl::StrCat(spec_.name(), "-", job_id));
    spec_.mutable_checkpoint()->set_dir(dir);
    AddDecision("checkpoint.dir", dir, "not given: a new folder below the submitter's working directory");
  }

  void ListKeysLeftToHosts() {
    if (spec_.has_command()) return;
    if (!spec_.resources().has_threads_per_rank()) {
      AddDecision("resources.threads_per_rank", "auto",
                  "decided by each host when a rank starts: its cores divided by the job's ranks on it");
    }
    if (!spec_.resources().has_product_kernels()) {
      AddDecision("resources.product_kernels", "auto",
                  "decided by each host when a rank starts: the faster ones for the products of this model");
    }
    if (!spec_.network().has_interface() && spec_.resources().ranks() > 1) {
      AddDecision("network.interface", "auto", "decided by each host: the interface that reaches the coordinator");
    }
    if (!spec_.network().has_shared_memory() && spec_.resources().ranks() > 1) {
      AddDecision("network.shared_memory", "auto", "decided when the ranks are placed: used between ranks on one host");
    }
  }

  std::vector<v1::ResolvedKey> TakeDecisions() { return std::move(decisions_); }

 private:
  static void ClearLlamaKeys(v1::Model& model) {
    model.clear_kv_heads();
    model.clear_head_width();
    model.clear_inner();
    model.clear_norm_eps();
    model.clear_tied();
    model.clear_attention_bias();
    model.clear_mlp_bias();
    model.clear_rope();
    model.clear_window();
  }

  // Lists the keys that `after` has and `before` does not have.
  void AddDecisions(const std::string& parent, const google::protobuf::Message& before,
                    const google::protobuf::Message& after, const std::string& reason) {
    const auto& reflection = *after.GetReflection();
    std::vector<const google::protobuf::FieldDescriptor*> fields;
    reflection.ListFields(after, &fields);
    for (const google::protobuf::FieldDescriptor* field : fields) {
      const std::string key = yaml::JoinKeys(parent, yaml::KeyOf(*field));
      if (field->message_type() != nullptr) {
        AddDecisions(key, reflection.GetMessage(before, field), reflection.GetMessage(after, field), reason);
      } else if (!reflection.HasField(before, field)) {
        AddDecision(key, FieldYaml(after, *field), reason);
      }
    }
  }

  void AddPipelineDecision(const JobLayout& layout) {
    const v1::Batch& batch = spec_.train().batch();
    const PipelinePlan plan = PlanPipeline(spec_);
    const uint64_t rounds = static_cast<uint64_t>(plan.shape.micro_batches), goal = kAutoRoundsPerStage * layout.stages;
    AddDecision(
        "train.batch.micro", absl::StrCat(batch.micro()),
        absl::StrFormat("%s the goal of %d micro-batches (%d for each stage) in a pipeline: %s; bubble %.1f %%",
                        rounds >= goal ? "the largest that reaches" : "the nearest to", goal, kAutoRoundsPerStage,
                        BatchProduct(batch.micro(), rounds, layout.data_ranks()), 100 * plan.bubble));
  }

  void AddDecision(const std::string& key, const std::string& value, const std::string& reason) {
    v1::ResolvedKey decision;
    decision.set_key(key);
    decision.set_value(value);
    decision.set_reason(reason);
    decisions_.push_back(std::move(decision));
  }

  v1::JobSpec& spec_;
  std::vector<v1::ResolvedKey> decisions_;
};

}  // namespace

std::vector<v1::ResolvedKey> ResolveJob(const std::string& job_id, const std::string& default_run_root,
                                        v1::JobSpec* spec) {
  const bool trains = spec->has_train();
  const bool runs_command = spec->has_command();
  if (trains) {
    v1::PrecisionPolicy& precision = *spec->mutable_train()->mutable_precision();
    precision = ResolvedPrecision(precision);
    // Clipping by value replaces clipping by norm.
    v1::Optimizer& optimizer = *spec->mutable_train()->mutable_optimizer();
    if (optimizer.clip_value() > 0 && !optimizer.has_clip_norm()) optimizer.set_clip_norm(0);
  }
  // Held-out files replace the part of the training data that `validation` would reserve.
  if (trains && spec->train().data().held_out_size() > 0) spec->mutable_train()->mutable_data()->set_validation(0);
  // Only the user can know whether a script that reports no step for a long time is working or hangs.
  if (runs_command && !spec->recovery().has_on_hang()) spec->mutable_recovery()->set_on_hang(v1::ON_HANG_NOTIFY);
  const std::string tokenizer_path = trains ? TokenizerPathOf(spec->train()) : "";
  ApplyDefaults(spec);
  // ApplyDefaults creates every map. The maps that belong to other kinds of jobs are removed here.
  if (!runs_command) spec->clear_command();
  if (trains || runs_command) spec->clear_probe();
  if (!spec->on_end().has_webhook()) spec->clear_on_end();
  if (!trains) {
    spec->clear_train();
    spec->clear_parallel();
    spec->clear_checkpoint();
    spec->clear_diagnostics();
  }
  ReplaceFormerKeys(*spec);
  Resolver resolver(spec);
  if (trains) {
    resolver.ResolvePipeline();
    resolver.ResolveMicro();
    resolver.ResolveTokenizer(tokenizer_path);
    resolver.ResolveVocabulary();
    resolver.ResolveSizes();
    resolver.ResolveLora();
    resolver.ResolveLength();
    resolver.ResolveSchedule();
    resolver.ResolveDataSizes();
    resolver.ResolvePersistElements();
  }
  resolver.ResolveDevice();
  if (trains) resolver.ResolveFolder(job_id, default_run_root);
  if (runs_command && !spec->command().has_checkpoint_dir() && !default_run_root.empty()) {
    spec->mutable_command()->set_checkpoint_dir(JoinPath(default_run_root, absl::StrCat(spec->name(), "-", job_id)));
  }
  resolver.ListKeysLeftToHosts();
  return resolver.TakeDecisions();
}

}  // namespace trainyard
