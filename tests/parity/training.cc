#include "tests/parity/training.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/catalog.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/part.h"
#include "checkpoint/reader.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/status_macros.h"
#include "tests/parity/reference.h"
#include "tests/parity/training_data.h"
#include "tests/parity/training_rank.h"
#include "worker/parallel/deal.h"
#include "worker/parallel/parallelize.h"
#include "worker/saving/save_thread.h"
#include "worker/saving/state.h"

namespace trainyard {
namespace {

// Calls `visit(name, field)` for every field of a case.
template <class Case, class Visit>
void EachField(Case& c, Visit visit) {
  visit("type", c.type);
  visit("precision", c.precision);
  visit("steps", c.steps);
  visit("global", c.global);
  visit("micro", c.micro);
  visit("clip_norm", c.clip_norm);
  visit("family", c.family);
  visit("dropout", c.dropout);
  visit("lora", c.lora);
  visit("documents", c.documents);
  visit("masked", c.masked);
  visit("strategy", c.strategy);
  visit("bucket_elements", c.bucket_elements);
  visit("overlap", c.overlap);
  visit("reduce_scatter", c.reduce_scatter);
  visit("reduce_every_micro_batch", c.reduce_every_micro_batch);
  visit("reshard_after_forward", c.reshard_after_forward);
  visit("prefetch_elements", c.prefetch_elements);
  visit("recompute", c.recompute);
  visit("recompute_every", c.recompute_every);
  visit("offload_optimizer", c.offload_optimizer);
  visit("offload_parameters", c.offload_parameters);
  visit("tile_elements", c.tile_elements);
  visit("rejected_step", c.rejected_step);
  visit("delay_ms", c.delay_ms);
  visit("link_delay_us", c.link_delay_us);
  visit("lab_tiny", c.lab_tiny);
  visit("blocks", c.blocks);
  visit("schedule", c.schedule);
  visit("chunks", c.chunks);
  visit("sequence", c.sequence);
  visit("reverse_micro_batches", c.reverse_micro_batches);
  visit("epoch", c.epoch);
  visit("scale_window", c.scale_window);
  visit("save_step", c.save_step);
  visit("load_step", c.load_step);
  visit("folder", c.folder);
  visit("copy_folder", c.copy_folder);
}

std::string Text(const std::string& value) { return value; }
std::string Text(double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.17g", value);
  return digits;
}
template <class T>
std::string Text(T value) {
  return absl::StrCat(static_cast<int64_t>(value));
}

void Assign(const std::string& text, std::string& field) { field = text; }
void Assign(const std::string& text, double& field) { field = std::strtod(text.c_str(), nullptr); }
template <class T>
void Assign(const std::string& text, T& field) {
  field = static_cast<T>(std::strtoll(text.c_str(), nullptr, 10));
}

// Counts the operations of the groups between Begin and End.
class TrafficCounter {
 public:
  explicit TrafficCounter(const MeshGroups& groups) : groups_(groups) {}
  void Begin() {
    before_.clear();
    for (const auto& group : groups_.owned) before_.push_back(group->counts());
  }
  std::string End() const {
    std::string text;
    for (size_t i = 0; i < groups_.owned.size(); ++i) {
      for (const auto& [key, count] : groups_.owned[i]->counts()) {
        const auto before = before_[i].find(key);
        const uint64_t operations = count.operations - (before == before_.at(i).end() ? 0 : before->second.operations);
        if (operations == 0) continue;
        absl::StrAppend(&text, text.empty() ? "" : ", ", groups_.owned[i]->name(), " ", CollectiveKindName(key.first),
                        " ", operations);
      }
    }
    return text;
  }

 private:
  const MeshGroups& groups_;
  std::vector<CollectiveCounts> before_;
};

absl::Status Commit(const std::string& folder, const SaveKey& save, const ParallelState& state,
                    const std::vector<TensorHeader>& tensors, uint64_t consumed_samples) {
  const std::string partial = PartialPath(folder, save.step, save.generation);
  std::vector<CheckpointPart> parts;
  for (uint64_t rank = 0; rank < save.world_size; ++rank) {
    ASSIGN_OR_RETURN(CheckpointPart part, ReadCheckpointPart(partial, rank, save));
    parts.push_back(std::move(part));
  }
  Manifest manifest;
  manifest.job_id = "abcdefgh";
  manifest.job_name = "parity";
  manifest.step = save.step;
  manifest.generation = save.generation;
  manifest.spec = "none";
  manifest.spec_digest = HashHex(manifest.spec);
  manifest.optimizer_updates = state.num_updates();
  const LossScale scale = state.loss_scale();
  manifest.loss_scale = {
      .scale = scale.scale, .good_steps = scale.good_steps, .hysteresis_left = scale.hysteresis_left};
  manifest.data.consumed_samples = consumed_samples;
  manifest.strategy = "parity";
  manifest.world_size = save.world_size;
  manifest.bucket_order = state.BucketOrder();
  RETURN_IF_ERROR(AssembleManifest(parts, tensors, manifest));
  RETURN_IF_ERROR(RemoveCheckpointParts(partial, save.world_size, FileSystem::Real()));
  RETURN_IF_ERROR(WriteManifest(partial, ManifestText(manifest), FileSystem::Real()));
  return FileSystem::Real().RenameOrExchange(partial, JoinPath(folder, StepFolderName(save.step)));
}

// Loads the state from the checkpoint of `step`. Returns the number of samples that had been consumed at that step.
absl::StatusOr<int64_t> LoadFrom(const std::string& folder, int64_t step, ParallelState& state) {
  const std::string path = JoinPath(folder, StepFolderName(static_cast<uint64_t>(step)));
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  RETURN_IF_ERROR(LoadState(*checkpoint, state));
  return static_cast<int64_t>(checkpoint->manifest().data.consumed_samples);
}

// Runs the micro-batches of one step on this rank; `consumed` is the number of samples before the step. Returns the sum
// of their losses, added in the order of the micro-batches, in whatever order they ran; 0 if another rank reports them.
absl::StatusOr<double> RunMicroBatches(const TrainingCase& training, int64_t step, int64_t consumed, const Deal& deal,
                                       TrainingRank& own) {
  std::map<int64_t, double> losses;
  const auto batch_of = [&](int64_t index) {
    const int64_t first = index * training.micro;
    MicroBatch batch = BatchOf(training, consumed + first, training.micro);
    batch.dropout = DropoutKey{
        .seed = kTrainingSeed, .step = static_cast<uint64_t>(step), .first_sample = static_cast<uint64_t>(first)};
    return batch;
  };
  const auto on_loss = [&](int64_t index, const at::Tensor& loss) {
    if (own.reports_losses) losses[index] = loss.item<double>();
  };
  RETURN_IF_ERROR(
      own.executor->RunStep({.micro_batches = deal.micro_batches, .num_rounds = deal.num_rounds}, batch_of, on_loss));
  double sum = 0;
  for (const auto& [index, loss] : losses) sum += loss;
  return sum;
}

// Collective.
absl::Status Summarise(const PoolRank& rank, TrainingRank& own, TrainingOutcome& outcome) {
  ParallelState& state = own.strategy->state();
  ASSIGN_OR_RETURN(std::vector<NamedHash> hashes, state.HashParameters());
  for (const NamedHash& hash : hashes) {
    outcome.boxes[hash.name] = hash.hash.substr(0, 8);
    outcome.parameters_hash += hash.hash.substr(0, 8);
  }
  const ModelPart& part = own.model->part();
  std::set<std::string> copies;  // names of the parameters that another rank counts
  for (const PartParameter& box : own.model->boxes()) {
    if ((box.replicated && part.tensor_rank > 0) || (box.tied && !part.embeds)) copies.insert(box.name);
  }
  double sum = 0;
  RETURN_IF_ERROR(state.VisitParameters([&](const StateEntry& entry, const at::Tensor& values) {
    if (copies.count(entry.name) == 0) sum += values.detach().abs().sum().item<double>();
    return absl::OkStatus();
  }));
  const at::Tensor of_job = at::full({1}, sum, at::kDouble);
  RETURN_IF_ERROR(rank.groups.world->AllReduceSum(of_job)->Wait());
  outcome.sum_of_parameters = of_job.item<double>();
  return absl::OkStatus();
}

// Four tensor ranks divide the heads of queries, keys and values evenly, and the vocabulary unevenly, as well as the 27
// hidden units of a Llama's MLP. A Llama has an untied head, Qwen2 a tied one.
ModelSizes DividedSizes(const TrainingCase& training) {
  if (!IsLlamaGraph(training.family)) {
    return {.layers = training.blocks,
            .heads = 4,
            .width = 20,
            .context = 16,
            .vocabulary = 67,
            .dropout = training.dropout,
            .lora = training.adapters()};
  }
  const bool is_llama = training.family == ModelFamily::kLlama;
  return CompleteLlamaSizes({.family = training.family,
                             .layers = training.blocks,
                             .heads = 8,
                             .width = 20,
                             .context = 16,
                             .vocabulary = 67,
                             .kv_heads = 4,
                             .head_width = 6,
                             .inner = 27,
                             .tied = !is_llama,
                             .attention_bias = is_llama ? AttentionBias::kAll : AttentionBias::kQkv,
                             .mlp_bias = is_llama,
                             .lora = training.adapters()});
}

// Returns nullopt if parameters, gradients and optimizer state have one type.
std::optional<Precision> PrecisionPolicyOf(const TrainingCase& training) {
  if (training.precision == "-") return std::nullopt;
  if (training.precision == "bf16-master") {
    return *ParsePrecision(PrecisionNames{.param = "bf16", .reduce = "fp32", .output = "fp32", .master = "bf16"});
  }
  return *ParsePrecision(training.precision);
}

}  // namespace

std::string TrainingCase::ToString() const {
  std::string text;
  EachField(*this, [&](const char* name, const auto& field) { absl::StrAppend(&text, name, "=", Text(field), " "); });
  return text;
}

TrainingCase TrainingCase::Parse(const std::string& text) {
  std::map<std::string, std::string> fields;
  std::istringstream in(text);
  for (std::string item; in >> item;) fields[item.substr(0, item.find('='))] = item.substr(item.find('=') + 1);
  TrainingCase training;
  EachField(training, [&](const char* name, auto& field) { Assign(fields.at(name), field); });
  return training;
}

LoraSettings TrainingCase::adapters() const {
  if (!lora) return {};
  const std::vector<std::string> of_gpt2 = {"c_attn", "h.1.*", "2.mlp.c_proj"};
  const std::vector<std::string> of_llama = {"q_proj", "v_proj", "down_proj", "layers.1.*"};
  return {.rank = 3, .alpha = 6, .dropout = dropout, .targets = IsLlamaGraph(family) ? of_llama : of_gpt2};
}

ModelSizes TrainingCase::model() const {
  if (lab_tiny) return {.layers = 4, .heads = 4, .width = 128, .context = 64, .vocabulary = 256, .dropout = dropout};
  if (blocks > 0) return DividedSizes(*this);
  // The number of elements of a block is not a multiple of a layout's alignment. The Llama has an untied head and all
  // biases; Mistral and Qwen2 are tied.
  if (IsLlamaGraph(family)) {
    const bool is_llama = family == ModelFamily::kLlama;
    return CompleteLlamaSizes({.family = family,
                               .layers = 3,
                               .heads = 4,
                               .width = 20,
                               .context = 16,
                               .vocabulary = 67,
                               .kv_heads = 2,
                               .head_width = 6,
                               .inner = 27,
                               .tied = !is_llama,
                               .attention_bias = is_llama                        ? AttentionBias::kAll
                                                 : family == ModelFamily::kQwen2 ? AttentionBias::kQkv
                                                                                 : AttentionBias::kNone,
                               .mlp_bias = is_llama,
                               .lora = adapters()});
  }
  return {
      .layers = 3, .heads = 2, .width = 20, .context = 16, .vocabulary = 67, .dropout = dropout, .lora = adapters()};
}

ParallelOptions TrainingCase::options() const {
  return {.recompute = {.mode = recompute, .every = static_cast<int>(recompute_every)},
          .data = {.strategy = strategy,
                   .precision = PrecisionPolicyOf(*this),
                   .bucket_elements = bucket_elements,
                   .overlap = overlap,
                   .reduce_scatter = reduce_scatter,
                   .reduce_every_micro_batch = reduce_every_micro_batch,
                   .reshard_after_forward = reshard_after_forward,
                   .prefetch_elements = prefetch_elements,
                   .offload = {.optimizer = offload_optimizer, .parameters = offload_parameters}},
          .update = {.clip_norm = clip_norm,
                     .loss_scale = {.window = static_cast<uint64_t>(scale_window)},
                     .tile_elements = tile_elements}};
}

double TrainingCase::LearningRate(int64_t step) const {
  return (lab_tiny ? 1e-3 : 4e-3) / (1 + 0.01 * static_cast<double>(step));
}

std::string TrainingOutcome::ToString() const {
  std::string text = parameters_hash;
  auto add = [&](double value) {
    char digits[32];
    std::snprintf(digits, sizeof digits, " %a", value);
    text += digits;
  };
  add(sum_of_parameters);
  for (size_t i = 0; i < losses.size(); ++i) {
    add(losses[i]);
    add(norms[i]);
  }
  text += "\n" + counts + "\n";
  for (const auto& [box, hash] : boxes) absl::StrAppend(&text, box, " ", hash, " ");
  return text;
}

TrainingOutcome TrainingOutcome::Parse(const std::string& text) {
  const size_t end = text.find('\n');
  std::istringstream in(text.substr(0, end));
  TrainingOutcome outcome;
  std::string number;
  in >> outcome.parameters_hash >> number;
  outcome.sum_of_parameters = std::strtod(number.c_str(), nullptr);
  while (in >> number) {
    outcome.losses.push_back(std::strtod(number.c_str(), nullptr));
    in >> number;
    outcome.norms.push_back(std::strtod(number.c_str(), nullptr));
  }
  const size_t end_of_counts = text.find('\n', end + 1);
  outcome.counts = text.substr(end + 1, end_of_counts - end - 1);
  std::istringstream boxes(text.substr(end_of_counts + 1));
  for (std::string box, hash; boxes >> box >> hash;) outcome.boxes[box] = hash;
  return outcome;
}

// Each rank writes its part, and rank 0 combines the parts into a checkpoint.
absl::Status SaveTo(const std::string& folder, int64_t step, const PoolRank& rank, ParallelState& state,
                    uint64_t consumed_samples) {
  const SaveKey save{.step = static_cast<uint64_t>(step),
                     .generation = 1,
                     .world_size = static_cast<uint64_t>(rank.mesh.world_size())};
  SaveTask task{.save = save,
                .rank = static_cast<uint64_t>(rank.rank),
                .folder = PartialPath(folder, save.step, save.generation),
                .needs_copy = step % 2 == 0};
  DeviceCopies copies(nullptr);
  ASSIGN_OR_RETURN(const std::vector<StateEntry> tensors, state.PrepareSaves());
  RETURN_IF_ERROR(AddOwnState(state, StateRoles::kAll, copies, task));
  SaveThread thread(FileSystem::Real(), Clock::GetSteadyClock(), 0);
  thread.Begin(std::move(task));
  thread.WaitForCopy();
  thread.AwaitEnd(absl::InfiniteDuration());
  RETURN_IF_ERROR(thread.ended()->status);
  RETURN_IF_ERROR(rank.groups.world->Barrier()->Wait());
  absl::Status committed =
      rank.rank == 0 ? Commit(folder, save, state, StateHeaders(tensors), consumed_samples) : absl::OkStatus();
  RETURN_IF_ERROR(committed);
  return rank.groups.world->Barrier()->Wait();
}

absl::StatusOr<TrainingOutcome> Train(const PoolRank& rank, const TrainingCase& training) {
  const int world = rank.mesh.world_size();
  ASSIGN_OR_RETURN(const std::unique_ptr<TrainingRank> own, MakeTrainingRank(rank, training));
  DataParallel& strategy = *own->strategy;
  int64_t consumed = 0;
  if (training.load_step > 0) {
    ASSIGN_OR_RETURN(consumed, LoadFrom(training.folder, training.load_step, strategy.state()));
  }
  if (training.copy_folder != "-") {
    RETURN_IF_ERROR(
        SaveTo(training.copy_folder, training.load_step, rank, strategy.state(), static_cast<uint64_t>(consumed)));
  }
  Deal deal = DealStep(training.global, training.micro, rank.mesh.DataRank(rank.rank), rank.mesh.num_data_ranks());
  if (training.reverse_micro_batches) std::reverse(deal.micro_batches.begin(), deal.micro_batches.end());
  TrafficCounter traffic(rank.groups);
  TrainingOutcome outcome;
  for (int64_t step = training.load_step + 1; step <= training.steps; ++step) {
    traffic.Begin();
    own->groups.BeginStep(step);
    const uint64_t tokens = CountTargets(training, consumed, training.global);
    strategy.BeginStep(tokens);
    if (step == training.rejected_step && rank.rank == world - 1) strategy.RejectStep();
    ASSIGN_OR_RETURN(double loss, RunMicroBatches(training, step, consumed, deal, *own));
    consumed += training.global;
    RETURN_IF_ERROR(strategy.FinishBackward());
    ASSIGN_OR_RETURN(StepOutput output, strategy.Step({.lr = training.LearningRate(step), .num_tokens = tokens}));
    own->groups.EndStep();
    outcome.counts = traffic.End();
    at::Tensor sum = at::full({1}, loss, at::kDouble);
    RETURN_IF_ERROR(own->groups.communicators().job->AllReduceSum(sum)->Wait());
    outcome.losses.push_back(sum.item<double>() / static_cast<double>(tokens));
    outcome.norms.push_back(output.skipped ? NAN : output.gradient_norm);
    if (step == training.save_step) {
      RETURN_IF_ERROR(SaveTo(training.folder, step, rank, strategy.state(), static_cast<uint64_t>(consumed)));
    }
  }
  RETURN_IF_ERROR(Summarise(rank, *own, outcome));
  return outcome;
}

absl::StatusOr<std::string> TrainMain(const PoolRank& rank, const std::string& arguments) {
  ASSIGN_OR_RETURN(TrainingOutcome outcome, Train(rank, TrainingCase::Parse(arguments)));
  return outcome.ToString();
}

TrainingOutcome TrainReference(const TrainingCase& training) {
  const ModelSizes config = training.model();
  auto model = *NewModel(config, kTrainingSeed, training.type);
  EnlargeFrozen(training, *model);
  reference::Parameters p, m, v;
  for (const NamedTensor& parameter : model->parameters()) {
    p[parameter.name] = parameter.tensor;
    m[parameter.name] = at::zeros_like(parameter.tensor);
    v[parameter.name] = at::zeros_like(parameter.tensor);
  }
  TrainingOutcome outcome;
  for (int64_t step = 1; step <= training.steps; ++step) {
    const int64_t consumed = (step - 1) * training.global;
    const auto& [inputs, targets, starts, dropout] = BatchOf(training, consumed, training.global);
    const double tokens = static_cast<double>(CountTargets(training, consumed, training.global));
    NoUnitHooks none;
    const DropoutKey key{.seed = kTrainingSeed, .step = static_cast<uint64_t>(step)};
    at::Tensor loss = training.dropout > 0 ? model->LossSum(inputs, targets, none, key, starts) / tokens
                                           : reference::MeanLoss(inputs, targets, p, config, starts);
    loss.backward();
    outcome.losses.push_back(loss.item<double>());
    outcome.norms.push_back(
        reference::Update(p, m, v, static_cast<int>(step), training.LearningRate(step), training.options().update));
  }
  for (const auto& [name, w] : p) outcome.sum_of_parameters += w.detach().abs().sum().item<double>();
  return outcome;
}

}  // namespace trainyard
