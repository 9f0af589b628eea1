#include "tests/parity/training.h"

#include <sstream>

#include "common/status_macros.h"
#include "tests/parity/reference.h"
#include "worker/mesh/mesh.h"
#include "worker/parallel/deal.h"
#include "worker/parallel/parallelize.h"

namespace trainyard {
namespace {

constexpr uint64_t kSeed = 20;

}  // namespace

std::string TrainingCase::ToString() const {
  std::ostringstream out;
  out << std::hexfloat << (type == at::kDouble) << ' ' << steps << ' ' << global << ' ' << micro << ' '
      << bucket_elements << ' ' << overlap << ' ' << static_cast<int64_t>(clip_norm * 1000) << ' '
      << static_cast<int64_t>(dropout * 1000) << ' ' << rejected_step;
  return out.str();
}

TrainingCase TrainingCase::Parse(const std::string& text) {
  std::istringstream in(text);
  TrainingCase training;
  bool fp64 = false;
  int64_t clip = 0, drop = 0;
  in >> fp64 >> training.steps >> training.global >> training.micro >> training.bucket_elements >> training.overlap >>
      clip >> drop >> training.rejected_step;
  training.type = fp64 ? at::kDouble : at::kFloat;
  training.clip_norm = static_cast<double>(clip) / 1000;
  training.dropout = static_cast<double>(drop) / 1000;
  return training;
}

Gpt2Config TrainingCase::model() const {
  return {.layers = 2, .heads = 2, .width = 32, .context = 16, .vocabulary = 64, .dropout = dropout};
}

DataParallelOptions TrainingCase::options() const {
  return {.optimizer = {}, .clip_norm = clip_norm, .bucket_elements = bucket_elements, .overlap = overlap};
}

double TrainingCase::LearningRate(int64_t step) const { return 1e-3 / (1 + 0.01 * static_cast<double>(step)); }

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
  return text;
}

TrainingOutcome TrainingOutcome::Parse(const std::string& text) {
  std::istringstream in(text);
  TrainingOutcome outcome;
  std::string word;
  in >> outcome.parameters_hash >> word;
  outcome.sum_of_parameters = std::strtod(word.c_str(), nullptr);
  while (in >> word) {
    outcome.losses.push_back(std::strtod(word.c_str(), nullptr));
    in >> word;
    outcome.norms.push_back(std::strtod(word.c_str(), nullptr));
  }
  return outcome;
}

// A text with something to learn: mostly the square of the place, sometimes noise.
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

absl::StatusOr<TrainingOutcome> Train(Communicator& communicator, const TrainingCase& training) {
  int world = communicator.world_size();
  ASSIGN_OR_RETURN(Mesh mesh, Mesh::Create({.dp_replicate = world}, world));
  // Only rank 0 has the right weights at first.
  uint64_t seed = communicator.rank() == 0 ? kSeed : 0;
  ASSIGN_OR_RETURN(auto model, NewGpt2(training.model(), seed, training.type));
  ASSIGN_OR_RETURN(auto strategy, Parallelize(*model, mesh, communicator, training.options()));
  Deal deal = DealStep(training.global, training.micro, mesh.DataRank(communicator.rank()), world);
  uint64_t tokens = static_cast<uint64_t>(training.global * training.model().context);

  TrainingOutcome outcome;
  for (int64_t step = 1; step <= training.steps; ++step) {
    at::Tensor loss_sum = at::zeros({1}, at::kDouble);
    for (int64_t micro_batch : deal.micro_batches) {
      int64_t first = (step - 1) * training.global + micro_batch * training.micro;
      auto [inputs, targets] = Samples(first, training.micro, model->context());
      DropoutKey key{
          .seed = kSeed, .step = static_cast<uint64_t>(step), .micro_batch = static_cast<uint64_t>(micro_batch)};
      at::Tensor loss = model->LossSum(inputs, targets, *strategy, key);
      bool rejects = step == training.rejected_step && communicator.rank() == world - 1;
      if (rejects) strategy->RejectStep();
      strategy->Backward(loss, /*last=*/micro_batch == deal.micro_batches.back());
      loss_sum += loss.detach();
    }
    RETURN_IF_ERROR(strategy->FinishBackward());
    StepOutput output = strategy->Step({.lr = training.LearningRate(step), .num_tokens = tokens});
    RETURN_IF_ERROR(communicator.AllReduceSum(loss_sum)->Wait());
    outcome.losses.push_back(loss_sum.item<double>() / static_cast<double>(tokens));
    outcome.norms.push_back(output.gradient_norm);
  }
  outcome.parameters_hash = strategy->ParametersHash();
  for (const NamedTensor& p : model->parameters())
    outcome.sum_of_parameters += p.tensor.detach().abs().sum().item<double>();
  return outcome;
}

TrainingOutcome TrainReference(const TrainingCase& training) {
  Gpt2Config config = training.model();
  auto model = *NewGpt2(config, kSeed, training.type);
  reference::Parameters p, m, v;
  for (const NamedTensor& parameter : model->parameters()) {
    p[parameter.name] = parameter.tensor.detach().clone().requires_grad_(true);
    m[parameter.name] = at::zeros_like(parameter.tensor);
    v[parameter.name] = at::zeros_like(parameter.tensor);
  }
  TrainingOutcome outcome;
  for (int64_t step = 1; step <= training.steps; ++step) {
    auto [inputs, targets] = Samples((step - 1) * training.global, training.global, config.context);
    outcome.losses.push_back(reference::Step(inputs, targets, p, m, v, static_cast<int>(step),
                                             training.LearningRate(step), config, training.options()));
  }
  for (const auto& [name, w] : p) outcome.sum_of_parameters += w.detach().abs().sum().item<double>();
  return outcome;
}

}  // namespace trainyard
