#include "worker/trainer/sample.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "checkpoint/catalog.h"
#include "common/status_macros.h"
#include "tokenizers/open_tokenizer.h"
#include "worker/data/text_encoder.h"
#include "worker/link/spec_config.h"
#include "worker/saving/state.h"
#include "worker/trainer/rank.h"

namespace trainyard {
namespace {

// Returns one of the `top_k` most likely tokens, with a probability proportional to exp(score / temperature).
int64_t Choose(const std::vector<double>& scores, double temperature, int64_t top_k, std::mt19937_64& random) {
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  auto better = [&](int64_t a, int64_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; };
  std::sort(order.begin(), order.end(), better);
  if (temperature == 0) return order[0];
  if (top_k > 0 && static_cast<size_t>(top_k) < order.size()) order.resize(top_k);
  std::vector<double> weights;
  for (int64_t token : order) weights.push_back(std::exp((scores[token] - scores[order[0]]) / temperature));
  // Not std::discrete_distribution, whose draws differ between implementations.
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double remaining = static_cast<double>(random() >> 11) * 0x1.0p-53 * total;
  for (size_t i = 0; i < order.size(); ++i) {
    remaining -= weights[i];
    if (remaining < 0) return order[i];
  }
  return order.back();
}

std::vector<double> NextScores(Model& model, const std::vector<int64_t>& tokens) {
  const size_t context = std::min(tokens.size(), static_cast<size_t>(model.context()));
  at::Tensor inputs = at::empty({1, static_cast<int64_t>(context)}, at::kLong);
  std::copy(tokens.end() - static_cast<long>(context), tokens.end(), inputs.mutable_data_ptr<int64_t>());
  NoUnitHooks hooks;
  at::Tensor last = model.Logits(inputs, hooks)[0][static_cast<int64_t>(context) - 1].to(at::kDouble).contiguous();
  return std::vector<double>(last.const_data_ptr<double>(), last.const_data_ptr<double>() + last.numel());
}

// The prompt as the beginning of a document, as the model was trained.
absl::StatusOr<std::vector<int64_t>> TokensOfPrompt(const std::string& prompt, const std::string& tokenizer_path,
                                                    int64_t vocabulary) {
  std::unique_ptr<TextEncoder> encoder = NewByteEncoder();
  if (!tokenizer_path.empty()) {
    ASSIGN_OR_RETURN(encoder, OpenTextEncoder(tokenizer_path));
  }
  std::vector<int64_t> tokens;
  RETURN_IF_ERROR(encoder->Append(prompt, /*begins=*/true, tokens)) << "--prompt";
  if (tokens.empty())
    return absl::InvalidArgumentError("--prompt is empty: give at least one character to continue from");
  for (const int64_t token : tokens) {
    if (token < vocabulary) continue;
    return absl::InvalidArgumentError(absl::StrCat("--prompt has token ", token, ", but the model's vocabulary is ",
                                                   vocabulary, "; its tokenizer is not this one"));
  }
  return tokens;
}

}  // namespace

absl::StatusOr<SampledText> SampleText(const SampleOptions& options) {
  std::vector<std::string> skipped;  // not printed: the output names the checkpoint that was used
  ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, OpenCheckpointOrNewest(options.checkpoint, skipped));
  const Manifest& manifest = checkpoint->manifest();
  ASSIGN_OR_RETURN(TrainConfig config, ModelConfigFromSpec(manifest.spec), << checkpoint->path());
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, MakeModel(config));
  RETURN_IF_ERROR(LoadParametersFrom(*checkpoint, *model));

  at::NoGradGuard no_grad;
  const std::string& path = config.data.tokenizer_path;
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, OpenTokenizer(path.empty() ? "bytes" : path),
                   << "train.data.tokenizer_path of " << checkpoint->path());
  ASSIGN_OR_RETURN(std::vector<int64_t> tokens, TokensOfPrompt(options.prompt, path, config.model.vocabulary));
  std::mt19937_64 random(options.seed);
  for (int64_t i = 0; i < options.tokens; ++i) {
    tokens.push_back(Choose(NextScores(*model, tokens), options.temperature, options.top_k, random));
    if (tokens.back() == tokenizer->special().end) break;  // never for bytes, which have no such token
  }
  return SampledText{
      .checkpoint = checkpoint->path(),
      .step = manifest.step,
      .text = tokenizer->Decode(std::vector<int32_t>(tokens.begin(), tokens.end()), /*skip_special=*/true)};
}

}  // namespace trainyard
