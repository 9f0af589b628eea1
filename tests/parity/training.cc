#include "tests/parity/training.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "checkpoint/catalog.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/part.h"
#include "checkpoint/reader.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/status_macros.h"
#include "tests/parity/delays.h"
#include "tests/parity/reference.h"
#include "worker/data/sampler.h"
#include "worker/parallel/deal.h"
#include "worker/parallel/parallelize.h"
#include "worker/saving/save_thread.h"
#include "worker/saving/state.h"

namespace trainyard {
namespace {

constexpr uint64_t kSeed = 20;

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
  visit("lab_tiny", c.lab_tiny);
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
                    uint64_t consumed_samples) {
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
  RETURN_IF_ERROR(AssembleManifest(parts, StateHeaders(state), manifest));
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

// Returns samples [first, first + count) of the training order.
std::pair<at::Tensor, at::Tensor> SamplesInOrder(const TrainingCase& training, int64_t first, int64_t count,
                                                 int64_t context) {
  if (training.epoch == 0) return Samples(first, count, context);
  const Sampler sampler(static_cast<uint64_t>(training.epoch), kSeed);
  std::vector<at::Tensor> inputs, targets;
  for (int64_t i = first; i < first + count; ++i) {
    auto [input, target] = Samples(static_cast<int64_t>(sampler.At(static_cast<uint64_t>(i))), 1, context);
    inputs.push_back(input);
    targets.push_back(target);
  }
  return {at::cat(inputs), at::cat(targets)};
}

// Runs all rounds of one step on this rank; `consumed` is the number of samples before the step. Returns the sum of its
// losses.
absl::StatusOr<double> RunRounds(const TrainingCase& training, int64_t step, int64_t consumed, const Deal& deal,
                                 Model& model, DataParallel& strategy) {
  double sum = 0;
  for (int64_t round = 0; round < deal.num_rounds; ++round) {
    const bool last = round + 1 == deal.num_rounds;
    if (round >= static_cast<int64_t>(deal.micro_batches.size())) {
      RETURN_IF_ERROR(strategy.RunEmptyRound(/*with_backward=*/true, last));
      continue;
    }
    const int64_t micro_batch = deal.micro_batches[static_cast<size_t>(round)];
    const int64_t first = consumed + micro_batch * training.micro;
    const auto [inputs, targets] = SamplesInOrder(training, first, training.micro, model.context());
    const DropoutKey key{
        .seed = kSeed, .step = static_cast<uint64_t>(step), .micro_batch = static_cast<uint64_t>(micro_batch)};
    ASSIGN_OR_RETURN(at::Tensor loss, strategy.Forward([&, &in = inputs, &out = targets] {
      return model.LossSum(in, out, strategy, key);
    }));
    RETURN_IF_ERROR(strategy.Backward(loss, last));
    sum += loss.item<double>();
  }
  return sum;
}

absl::Status Summarise(ParallelState& state, TrainingOutcome& outcome) {
  ASSIGN_OR_RETURN(std::vector<NamedHash> hashes, state.HashParameters());
  for (const NamedHash& hash : hashes) outcome.parameters_hash += hash.hash.substr(0, 8);
  return state.Visit([&](absl::string_view role, const NamedTensor& p) {
    if (role == kParameterRole) outcome.sum_of_parameters += p.tensor.detach().abs().sum().item<double>();
    return absl::OkStatus();
  });
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
  // The sizes are not multiples of a world size or of a layout's alignment. The Llama has an untied head and all
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
  return text + "\n" + counts;
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
  outcome.counts = text.substr(end + 1);
  return outcome;
}

// A learnable text: mostly the square of the position, sometimes noise.
int64_t TokenAt(int64_t i) {
  uint64_t noise = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u;
  noise ^= noise >> 29;
  return noise % 5 == 0 ? static_cast<int64_t>(noise / 5 % 64) : i * i % 64;
}

std::pair<at::Tensor, at::Tensor> Samples(int64_t first, int64_t count, int64_t context) {
  at::Tensor inputs = at::empty({count, context}, at::kLong), targets = at::empty({count, context}, at::kLong);
  for (int64_t i = 0; i < count * context; ++i) {
    inputs.mutable_data_ptr<int64_t>()[i] = TokenAt(first * context + i);
    targets.mutable_data_ptr<int64_t>()[i] = TokenAt(first * context + i + 1);
  }
  return {inputs, targets};
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
  RETURN_IF_ERROR(AddOwnState(state, StateRoles::kAll, copies, task));
  SaveThread thread(FileSystem::Real(), Clock::GetSteadyClock(), 0);
  thread.Begin(std::move(task));
  thread.WaitForCopy();
  thread.AwaitEnd(absl::InfiniteDuration());
  RETURN_IF_ERROR(thread.ended()->status);
  RETURN_IF_ERROR(rank.groups.world->Barrier()->Wait());
  absl::Status committed = rank.rank == 0 ? Commit(folder, save, state, consumed_samples) : absl::OkStatus();
  RETURN_IF_ERROR(committed);
  return rank.groups.world->Barrier()->Wait();
}

// Adapters alone cannot lower the loss of a model whose frozen head has small values.
void EnlargeFrozen(const TrainingCase& training, Model& model) {
  c10::NoGradGuard no_grad;
  if (!training.lora) return;
  for (const NamedTensor& parameter : model.parameters()) {
    at::Tensor tensor = parameter.tensor;
    if (!tensor.requires_grad() && tensor.dim() == 2) tensor.mul_(15);
  }
}

absl::StatusOr<TrainingOutcome> Train(const PoolRank& rank, const TrainingCase& training) {
  const int world = rank.mesh.world_size();
  // Only rank 0 starts with the right weights; Parallelize must send them to the other ranks.
  ASSIGN_OR_RETURN(auto model, NewModel(training.model(), rank.rank == 0 ? kSeed : 0, training.type));
  EnlargeFrozen(training, *model);
  DelayedGroups groups(rank.groups, training.delay_ms);
  ASSIGN_OR_RETURN(auto strategy, Parallelize(*model, rank.mesh, groups.communicators(), training.options()));
  int64_t consumed = 0;
  if (training.load_step > 0) {
    ASSIGN_OR_RETURN(consumed, LoadFrom(training.folder, training.load_step, strategy->state()));
  }
  if (training.copy_folder != "-") {
    RETURN_IF_ERROR(
        SaveTo(training.copy_folder, training.load_step, rank, strategy->state(), static_cast<uint64_t>(consumed)));
  }
  const Deal deal =
      DealStep(training.global, training.micro, rank.mesh.DataRank(rank.rank), rank.mesh.num_data_ranks());
  const uint64_t tokens = static_cast<uint64_t>(training.global * training.model().context);
  TrafficCounter traffic(rank.groups);
  TrainingOutcome outcome;
  for (int64_t step = training.load_step + 1; step <= training.steps; ++step) {
    traffic.Begin();
    groups.BeginStep(step);
    strategy->BeginStep(tokens);
    if (step == training.rejected_step && rank.rank == world - 1) strategy->RejectStep();
    ASSIGN_OR_RETURN(double loss, RunRounds(training, step, consumed, deal, *model, *strategy));
    consumed += training.global;
    RETURN_IF_ERROR(strategy->FinishBackward());
    ASSIGN_OR_RETURN(StepOutput output, strategy->Step({.lr = training.LearningRate(step), .num_tokens = tokens}));
    groups.EndStep();
    outcome.counts = traffic.End();
    at::Tensor sum = at::full({1}, loss, at::kDouble);
    RETURN_IF_ERROR(groups.communicators().data->AllReduceSum(sum)->Wait());
    outcome.losses.push_back(sum.item<double>() / static_cast<double>(tokens));
    outcome.norms.push_back(output.skipped ? NAN : output.gradient_norm);
    if (step == training.save_step) {
      RETURN_IF_ERROR(SaveTo(training.folder, step, rank, strategy->state(), static_cast<uint64_t>(consumed)));
    }
  }
  RETURN_IF_ERROR(Summarise(strategy->state(), outcome));
  return outcome;
}

absl::StatusOr<std::string> TrainMain(const PoolRank& rank, const std::string& arguments) {
  ASSIGN_OR_RETURN(TrainingOutcome outcome, Train(rank, TrainingCase::Parse(arguments)));
  return outcome.ToString();
}

TrainingOutcome TrainReference(const TrainingCase& training) {
  const ModelSizes config = training.model();
  auto model = *NewModel(config, kSeed, training.type);
  EnlargeFrozen(training, *model);
  reference::Parameters p, m, v;
  for (const NamedTensor& parameter : model->parameters()) {
    p[parameter.name] = parameter.tensor;
    m[parameter.name] = at::zeros_like(parameter.tensor);
    v[parameter.name] = at::zeros_like(parameter.tensor);
  }
  const double tokens = static_cast<double>(training.global * config.context);
  TrainingOutcome outcome;
  for (int64_t step = 1; step <= training.steps; ++step) {
    const int64_t num_passes = training.dropout > 0 ? training.global / training.micro : 1;
    double sum = 0;
    for (int64_t i = 0; i < num_passes; ++i) {
      const int64_t count = training.global / num_passes;
      auto [inputs, targets] = Samples((step - 1) * training.global + i * count, count, config.context);
      NoUnitHooks none;
      const DropoutKey key{.seed = kSeed, .step = static_cast<uint64_t>(step), .micro_batch = static_cast<uint64_t>(i)};
      at::Tensor loss = training.dropout > 0 ? model->LossSum(inputs, targets, none, key) / tokens
                                             : reference::MeanLoss(inputs, targets, p, config);
      loss.backward();
      sum += loss.item<double>();
    }
    outcome.losses.push_back(sum);
    outcome.norms.push_back(
        reference::Update(p, m, v, static_cast<int>(step), training.LearningRate(step), training.options().update));
  }
  for (const auto& [name, w] : p) outcome.sum_of_parameters += w.detach().abs().sum().item<double>();
  return outcome;
}

}  // namespace trainyard
