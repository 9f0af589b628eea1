// The keys of transformers' TrainingArguments, without its batch and fsdp_config.
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "foreign/translators.h"

namespace trainyard::foreign {
namespace {

// `fsdp` is true, or words such as "full_shard offload auto_wrap".
void TranslateWords(Translation* t, const Value& fsdp) {
  for (const std::string& item : fsdp.items) {
    const std::string word = absl::AsciiStrToLower(item);
    if (word == "true" || word == "full_shard") {
      t->Set(fsdp, "parallel.data", "fsdp");
    } else if (word == "shard_grad_op") {
      t->Set(fsdp, "parallel.data", "fsdp");
      t->Set(fsdp, "parallel.reshard_after_forward", "false");
    } else if (word == "no_shard") {
      t->Set(fsdp, "parallel.data", "ddp");
    } else if (word == "offload") {
      t->Set(fsdp, "parallel.offload.parameters", "true");
      t->Set(fsdp, "parallel.offload.optimizer", "true");
    } else if (word == "hybrid_shard" || word == "hybrid_shard_zero2") {
      t->Set(fsdp, "parallel.data", "hsdp");
      if (word == "hybrid_shard_zero2") t->Set(fsdp, "parallel.reshard_after_forward", "false");
      if (!t->HasFlag("parallel.shard") && !t->HasFlag("parallel.replicate")) {
        t->Error(fsdp, "the ranks of a host are not known; add --set parallel.shard=N: N ranks share a copy");
      }
    } else if (word != "auto_wrap" && word != "false") {
      t->Error(fsdp, absl::StrCat("expected true, false, or words of full_shard, shard_grad_op, hybrid_shard, "
                                  "hybrid_shard_zero2, no_shard, offload and auto_wrap, found ",
                                  item));
    }
  }
}

// Sets `job_key` to `yes` or `no` by a flag; an empty text sets nothing.
void SetByFlag(Translation* t, const char* key, const char* job_key, const char* yes, const char* no) {
  const Value* value = t->Find(key);
  if (value == nullptr) return;
  const char* yaml = *value->flag ? yes : no;
  if (*yaml != '\0') {
    t->Set(*value, job_key, yaml);
  } else {
    t->Explain(*value, "the value changes nothing");
  }
}

}  // namespace

void TranslateTrainer(Translation* t) {
  const Value* fsdp = t->Find("fsdp");
  const Value* group = t->Find("fsdp_config");
  const bool is_off = fsdp == nullptr || fsdp->items.empty() || absl::AsciiStrToLower(fsdp->items[0]) == "false";
  if (fsdp != nullptr) TranslateWords(t, *fsdp);
  if (fsdp != nullptr && is_off) t->Explain(*fsdp, "FSDP is off");
  if (group != nullptr && !group->is_off && is_off) {
    t->Error(*group, "has no effect, because fsdp is not given; add \"fsdp\": true, or remove the group");
  } else if (group != nullptr && !is_off) {
    TranslateFsdp(t, /*version=*/2, /*ranks_per_host=*/0);
  }
  SetByFlag(t, "bf16", "train.precision.type", "bf16", "");
  SetByFlag(t, "fp16", "train.precision.type", "fp16", "");
  SetByFlag(t, "use_cpu", "resources.device", "cpu", "");
  SetByFlag(t, "gradient_checkpointing", "parallel.recompute.mode", "blocks", "none");
  SetSame(t, "learning_rate", "train.optimizer.lr");
  SetSame(t, "weight_decay", "train.optimizer.weight_decay");
  SetSame(t, "adam_epsilon", "train.optimizer.eps");
  SetSame(t, "max_grad_norm", "train.optimizer.clip_norm");
  SetSame(t, "seed", "train.seed");
  SetSame(t, "save_steps", "checkpoint.every_steps");
  SetSame(t, "save_total_limit", "checkpoint.keep");
  SetSame(t, "output_dir", "checkpoint.dir");
  const Value* steps = t->Find("max_steps");
  if (steps != nullptr && *steps->number == -1) {
    t->Explain(*steps, "-1: --set train.steps decides");
  } else {
    SetSame(t, "max_steps", "train.steps");
  }
}

}  // namespace trainyard::foreign
