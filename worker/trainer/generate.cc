#include "worker/trainer/generate.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "common/status_macros.h"
#include "worker/model/key_value_cache.h"

namespace trainyard {
namespace {

// A text that is being continued. Its index in texts_ is that of its sequence in the cache.
struct ActiveText {
  size_t prompt = 0;
  std::vector<int64_t> tokens;
  int64_t generated = 0;
  std::mt19937_64 random;
};

absl::StatusOr<int64_t> ChooseFrom(const at::Tensor& scores, const SamplingPolicy& policy, std::mt19937_64& random) {
  // A double holds 53 bits exactly.
  const double uniform = static_cast<double>(random() >> 11) * 0x1.0p-53;
  const size_t size = static_cast<size_t>(scores.numel());
  if (scores.scalar_type() == at::kDouble) {
    const at::Tensor dense = scores.contiguous();
    return ChooseToken(absl::MakeConstSpan(dense.const_data_ptr<double>(), size), policy, uniform);
  }
  const at::Tensor dense = scores.to(at::kFloat).contiguous();
  return ChooseToken(absl::MakeConstSpan(dense.const_data_ptr<float>(), size), policy, uniform);
}

class Generator {
 public:
  Generator(Model& model, const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options,
            TextReceiver& receiver)
      : model_(model), prompts_(prompts), options_(options), receiver_(receiver), cache_(NewCache()) {
    texts_.resize(static_cast<size_t>(cache_.sequences()));
  }

  absl::Status Run(const std::function<bool()>& must_stop) {
    while (true) {
      if (must_stop()) return EndAll();
      RETURN_IF_ERROR(BeginTexts());
      std::vector<size_t> active;
      for (size_t i = 0; i < texts_.size(); ++i) {
        if (texts_[i].has_value()) active.push_back(i);
      }
      if (active.empty()) return absl::OkStatus();
      RETURN_IF_ERROR(Advance(active));
    }
  }

 private:
  KeyValueCache NewCache() const {
    int64_t longest = 0;
    for (const std::vector<int64_t>& prompt : prompts_) {
      longest = std::max(longest, static_cast<int64_t>(prompt.size()) + options_.tokens);
    }
    return KeyValueCache(model_.cache_shape(),
                         {.sequences = std::min(options_.batch, static_cast<int64_t>(prompts_.size())),
                          .positions = std::min(longest, model_.context())},
                         model_.parameters().front().tensor.options().requires_grad(false));
  }

  // Gives a prompt to each sequence that has none, and chooses its first token.
  absl::Status BeginTexts() {
    for (size_t i = 0; i < texts_.size(); ++i) {
      while (!texts_[i].has_value() && next_prompt_ < prompts_.size()) {
        texts_[i] = ActiveText{.prompt = next_prompt_,
                               .tokens = prompts_[next_prompt_],
                               .generated = 0,
                               .random = std::mt19937_64(options_.seed)};
        ++next_prompt_;
        RETURN_IF_ERROR(Continue(i, ReadAgain(i)));
      }
    }
    return absl::OkStatus();
  }

  // Adds a token to each of these texts.
  absl::Status Advance(const std::vector<size_t>& active) {
    std::vector<SequenceTokens> added;
    std::vector<size_t> moved;  // texts that have filled the cache, which is filled again with their last tokens
    for (size_t i : active) {
      const int64_t sequence = static_cast<int64_t>(i);
      if (cache_.length(sequence) == cache_.positions()) {
        moved.push_back(i);
      } else {
        added.push_back({.sequence = sequence, .tokens = absl::MakeConstSpan(texts_[i]->tokens).last(1)});
      }
    }
    if (!added.empty()) {
      const at::Tensor scores = model_.Decode(added, cache_);
      for (size_t row = 0; row < added.size(); ++row) {
        RETURN_IF_ERROR(Continue(static_cast<size_t>(added[row].sequence), scores[static_cast<int64_t>(row)]));
      }
    }
    for (size_t i : moved) RETURN_IF_ERROR(Continue(i, ReadAgain(i)));
    return absl::OkStatus();
  }

  // Returns the scores after the last tokens of a text, as many as fit into the cache.
  at::Tensor ReadAgain(size_t text) {
    const std::vector<int64_t>& tokens = texts_[text]->tokens;
    const size_t count = std::min(tokens.size(), static_cast<size_t>(cache_.positions()));
    const int64_t sequence = static_cast<int64_t>(text);
    cache_.Clear(sequence);
    return model_.Decode({{.sequence = sequence, .tokens = absl::MakeConstSpan(tokens).last(count)}}, cache_)[0];
  }

  // Chooses the next token of a text; ends the text if that token was the last.
  absl::Status Continue(size_t index, const at::Tensor& scores) {
    ActiveText& text = *texts_[index];
    ASSIGN_OR_RETURN(const int64_t token, ChooseFrom(scores, options_.policy, text.random));
    text.tokens.push_back(token);
    RETURN_IF_ERROR(receiver_.Add(text.prompt, token));
    const bool at_end = std::find(options_.ends.begin(), options_.ends.end(), token) != options_.ends.end();
    if (!at_end && ++text.generated < options_.tokens) return absl::OkStatus();
    const size_t prompt = text.prompt;
    texts_[index].reset();
    return receiver_.End(prompt, at_end ? TextEnd::kEndToken : TextEnd::kLength);
  }

  absl::Status EndAll() {
    for (const std::optional<ActiveText>& text : texts_) {
      if (!text.has_value()) continue;
      RETURN_IF_ERROR(receiver_.End(text->prompt, TextEnd::kInterrupted));
    }
    return absl::OkStatus();
  }

  Model& model_;
  const std::vector<std::vector<int64_t>>& prompts_;
  const GenerateOptions& options_;
  TextReceiver& receiver_;
  KeyValueCache cache_;
  std::vector<std::optional<ActiveText>> texts_;  // by sequence
  size_t next_prompt_ = 0;
};

}  // namespace

absl::Status Generate(Model& model, const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options,
                      TextReceiver& receiver, const std::function<bool()>& must_stop) {
  return Generator(model, prompts, options, receiver).Run(must_stop);
}

}  // namespace trainyard
