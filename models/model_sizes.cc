#include "models/model_sizes.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace trainyard {
namespace {

void CheckGpt2Sizes(const ModelSizes& sizes, std::vector<std::string>& problems) {
  if (sizes.width % sizes.heads != 0) {
    problems.push_back(absl::StrCat("heads must divide width: ", sizes.width, " / ", sizes.heads, " leaves ",
                                    sizes.width % sizes.heads));
  }
  if (!(sizes.dropout >= 0 && sizes.dropout < 1)) {
    problems.push_back(absl::StrCat("dropout must be in [0, 1), found ", sizes.dropout));
  }
}

void CheckRope(const Rope& rope, std::vector<std::string>& problems) {
  if (!(rope.theta > 0)) problems.push_back(absl::StrCat("rope.theta must be above 0, found ", rope.theta));
  if (rope.scaling == Rope::Scaling::kNone) return;
  if (!(rope.factor >= 1)) problems.push_back(absl::StrCat("rope.factor must be at least 1, found ", rope.factor));
  if (rope.scaling != Rope::Scaling::kLlama3) return;
  if (!(rope.low_frequency_factor > 0 && rope.low_frequency_factor < rope.high_frequency_factor)) {
    problems.push_back(absl::StrCat("rope.low_frequency_factor must be above 0 and below high_frequency_factor ",
                                    rope.high_frequency_factor, ", found ", rope.low_frequency_factor));
  }
  if (rope.original_context < 1) {
    problems.push_back(absl::StrCat("rope.original_context must be positive, found ", rope.original_context));
  }
}

void CheckLlamaSizes(const ModelSizes& sizes, std::vector<std::string>& problems) {
  if (sizes.kv_heads < 1 || sizes.head_width < 1 || sizes.inner < 1) {
    problems.push_back(absl::StrCat("needs sizes of at least 1; found kv_heads ", sizes.kv_heads, ", head_width ",
                                    sizes.head_width, ", inner ", sizes.inner));
    return;
  }
  if (sizes.heads % sizes.kv_heads != 0) {
    problems.push_back(absl::StrCat("kv_heads must divide heads: ", sizes.heads, " / ", sizes.kv_heads, " leaves ",
                                    sizes.heads % sizes.kv_heads));
  }
  if (sizes.head_width % 2 != 0) {
    problems.push_back(absl::StrCat("head_width must be even for rotary positions, found ", sizes.head_width));
  }
  if (!(sizes.norm_eps > 0 && sizes.norm_eps < 1)) {
    problems.push_back(absl::StrCat("norm_eps must be above 0 and below 1, found ", sizes.norm_eps));
  }
  if (sizes.dropout != 0) {
    problems.push_back(absl::StrCat("dropout must be 0, because the family has none; found ", sizes.dropout));
  }
  CheckRope(sizes.rope, problems);
}

void CheckLora(const LoraSettings& lora, std::vector<std::string>& problems) {
  if (lora.rank == 0) return;
  if (lora.rank < 0) problems.push_back(absl::StrCat("the rank of adapters must be positive, found ", lora.rank));
  if (!(lora.alpha > 0)) problems.push_back(absl::StrCat("lora.alpha must be above 0, found ", lora.alpha));
  if (!(lora.dropout >= 0 && lora.dropout < 1)) {
    problems.push_back(absl::StrCat("lora.dropout must be in [0, 1), found ", lora.dropout));
  }
  if (lora.targets.empty()) problems.push_back("adapters have no targets");
}

}  // namespace

absl::string_view FamilyName(ModelFamily family) {
  switch (family) {
    case ModelFamily::kGpt2:
      return "gpt2";
    case ModelFamily::kLlama:
      return "llama";
    case ModelFamily::kMistral:
      return "mistral";
    case ModelFamily::kQwen2:
      return "qwen2";
    case ModelFamily::kMlp:
      return "mlp";
  }
  return "";
}

bool IsLlamaGraph(ModelFamily family) { return family != ModelFamily::kGpt2 && family != ModelFamily::kMlp; }

ModelSizes CompleteLlamaSizes(ModelSizes sizes) {
  constexpr int64_t kInnerMultiple = 256;
  if (sizes.kv_heads == 0) sizes.kv_heads = sizes.heads;
  if (sizes.head_width == 0) sizes.head_width = sizes.width / sizes.heads;
  if (sizes.inner == 0) {  // as in Llama: 8/3 x width, rounded up
    sizes.inner = (8 * sizes.width / 3 + kInnerMultiple - 1) / kInnerMultiple * kInnerMultiple;
  }
  if (sizes.norm_eps == 0) sizes.norm_eps = sizes.family == ModelFamily::kQwen2 ? 1e-6 : 1e-5;
  if (sizes.family == ModelFamily::kQwen2) sizes.attention_bias = AttentionBias::kQkv;
  return sizes;
}

int64_t LongestSequence(const ModelSizes& sizes) {
  return sizes.window == 0 ? sizes.context : std::min(sizes.context, sizes.window);
}

absl::Status CheckSizes(const ModelSizes& sizes) {
  std::vector<std::string> problems;
  if (sizes.layers < 1 || sizes.heads < 1 || sizes.width < 1 || sizes.context < 1 || sizes.vocabulary < 1) {
    problems.push_back(absl::StrCat("needs sizes of at least 1; found layers ", sizes.layers, ", heads ", sizes.heads,
                                    ", width ", sizes.width, ", context ", sizes.context, ", vocabulary ",
                                    sizes.vocabulary));
  } else if (IsLlamaGraph(sizes.family)) {
    CheckLlamaSizes(sizes, problems);
  } else if (sizes.family == ModelFamily::kGpt2) {
    CheckGpt2Sizes(sizes, problems);
  } else if (sizes.dropout != 0) {
    problems.push_back(absl::StrCat("dropout must be 0, because the family has none; found ", sizes.dropout));
  }
  CheckLora(sizes.lora, problems);
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a ", FamilyName(sizes.family), " model: ", absl::StrJoin(problems, "; ")));
}

std::string SizesText(const ModelSizes& sizes) {
  if (sizes.family == ModelFamily::kMlp) {
    return absl::StrCat("an mlp of ", sizes.layers, " hidden layers, width ", sizes.width, ", ", sizes.context,
                        " features, ", sizes.vocabulary, " classes");
  }
  std::string text = absl::StrCat(
      sizes.family == ModelFamily::kGpt2 ? "a GPT-2" : absl::StrCat("a ", FamilyName(sizes.family)), " of ",
      sizes.layers, " layers, width ", sizes.width, ", context ", sizes.context, ", vocabulary ", sizes.vocabulary);
  if (IsLlamaGraph(sizes.family)) {
    absl::StrAppend(&text, ", ", sizes.heads, " heads of ", sizes.head_width, ", ", sizes.kv_heads,
                    " heads of keys and values, inner width ", sizes.inner, sizes.tied ? ", tied head" : "");
  }
  if (sizes.lora.rank > 0) {
    absl::StrAppend(&text, ", adapters of rank ", sizes.lora.rank, " on ", absl::StrJoin(sizes.lora.targets, ", "));
  }
  return text;
}

}  // namespace trainyard
