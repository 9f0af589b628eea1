// Translates the keys of transformers' TrainingArguments, except those of its batch (batch.cc) and of fsdp_config
// (fsdp.cc).
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/yaml_schema.h"
#include "foreign/translators.h"

namespace trainyard::foreign {
namespace {

// Translates the value of `fsdp`: true, false, or words such as "full_shard offload auto_wrap".
void TranslateFsdpWords(Translation* t, const Value& fsdp) {
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
        t->Error(fsdp,
                 "the file does not say how many ranks a host has; add --set parallel.shard=N, so that N ranks "
                 "together hold one copy of the parameters");
      }
    } else if (word != "auto_wrap" && word != "false") {
      t->Error(fsdp, absl::StrCat("expected true, false, or words of full_shard, shard_grad_op, hybrid_shard, "
                                  "hybrid_shard_zero2, no_shard, offload and auto_wrap, found ",
                                  item));
    }
  }
}

// Sets `job_key` to `yes` if the flag `key` of the file is true, to `no` if it is false. An empty text sets nothing.
void SetByFlag(Translation* t, const char* key, const char* job_key, const char* yes, const char* no) {
  const Value* value = t->Find(key);
  if (value == nullptr) return;
  const char* text = *value->flag ? yes : no;
  if (*text != '\0') {
    t->Set(*value, job_key, text);
  } else {
    t->Explain(*value, "the value changes nothing");
  }
}

void SetBetas(Translation* t) {
  const Value* first = t->Find("adam_beta1");
  const Value* second = t->Find("adam_beta2");
  const std::string betas = absl::StrCat("[", first == nullptr ? "0.9" : yaml::NumberText(*first->number), ", ",
                                         second == nullptr ? "0.999" : yaml::NumberText(*second->number), "]");
  if (first != nullptr) t->Set(*first, "train.optimizer.betas", betas);
  if (second != nullptr) t->Set(*second, "train.optimizer.betas", betas);
}

void SetLearningRates(Translation* t) {
  const Value* type = t->Find("lr_scheduler_type");
  const Value* warmup = t->Find("warmup_steps");
  const std::string name = type == nullptr ? "" : absl::AsciiStrToLower(type->text);
  if (type != nullptr) {
    t->Set(*type, "train.schedule.kind", name == "constant_with_warmup" ? "constant" : name);
    t->Set(*type, "train.schedule.formula", "transformers");
  }
  if (warmup != nullptr && name == "constant") {
    t->Explain(*warmup, "no effect with lr_scheduler_type constant");
  } else {
    SetSame(t, "warmup_steps", "train.schedule.warmup_steps");
  }
}

// If the file has learning_rate or save_steps, sets related keys that it leaves out to the defaults of transformers,
// where these differ from ours.
void SetTrainerDefaults(Translation* t) {
  constexpr char kWhy[] = "the default of transformers, because the file has a learning_rate without it";
  if (const Value* rate = t->Find("learning_rate"); rate != nullptr) {
    t->SetDefault(*rate, "train.optimizer.weight_decay", "0", kWhy);
    t->SetDefault(*rate, "train.optimizer.betas", "[0.9, 0.999]", kWhy);
    // If --set names the schedule, its formula stays the default of job files.
    if (!t->HasFlag("train.schedule.kind")) {
      t->SetDefault(*rate, "train.schedule.kind", "linear", kWhy);
      t->SetDefault(*rate, "train.schedule.formula", "transformers", kWhy);
    }
  }
  if (const Value* steps = t->Find("save_steps"); steps != nullptr) {
    t->SetDefault(*steps, "checkpoint.keep", "0", "transformers keeps all checkpoints without save_total_limit");
  }
}

}  // namespace

void SetScalerDefaults(Translation* t, const Value& from) {
  constexpr char kType[] = "train.precision.type";
  if (t->FileValueOf(kType) != "fp16" || t->ValueOf(kType) != "fp16") return;
  if (t->ValueOf("train.loss_scale.static") == "true") return;  // the scale never changes
  constexpr char kWhy[] = "the default of PyTorch's GradScaler";
  t->SetDefault(from, "train.loss_scale.window", "2000", kWhy);
  t->SetDefault(from, "train.loss_scale.hysteresis", "1", kWhy);
}

void TranslateTrainer(Translation* t) {
  const Value* fsdp = t->Find("fsdp");
  const Value* group = t->Find("fsdp_config");
  const bool is_off = fsdp == nullptr || fsdp->items.empty() || absl::AsciiStrToLower(fsdp->items[0]) == "false";
  if (fsdp != nullptr) TranslateFsdpWords(t, *fsdp);
  if (fsdp != nullptr && is_off) t->Explain(*fsdp, "FSDP is off");
  if (group != nullptr && !group->is_off && is_off) {
    t->Error(*group, "has no effect, because fsdp is missing or off; set \"fsdp\": true, or remove fsdp_config");
  } else if (group != nullptr && !is_off) {
    TranslateFsdp(t, /*version=*/2, /*ranks_per_host=*/0);
  }
  SetByFlag(t, "bf16", "train.precision.type", "bf16", "");
  SetByFlag(t, "fp16", "train.precision.type", "fp16", "");
  if (const Value* fp16 = t->Find("fp16"); fp16 != nullptr) SetScalerDefaults(t, *fp16);
  SetByFlag(t, "use_cpu", "resources.device", "cpu", "");
  SetByFlag(t, "gradient_checkpointing", "parallel.recompute.mode", "blocks", "none");
  SetSame(t, "accelerator_config.gradient_accumulation_kwargs.sync_each_batch", "parallel.reduce_every_micro_batch");
  SetSame(t, "learning_rate", "train.optimizer.lr");
  SetSame(t, "weight_decay", "train.optimizer.weight_decay");
  SetSame(t, "adam_epsilon", "train.optimizer.eps");
  SetBetas(t);
  SetLearningRates(t);
  SetSame(t, "max_grad_norm", "train.optimizer.clip_norm");
  SetSame(t, "seed", "train.seed");
  SetSame(t, "save_steps", "checkpoint.every_steps");
  SetSame(t, "save_total_limit", "checkpoint.keep");
  SetSame(t, "output_dir", "checkpoint.dir");
  const Value* steps = t->Find("max_steps");
  if (steps != nullptr && *steps->number == -1) {
    t->Explain(*steps, "-1 means no number of steps; --set train.steps sets it");
  } else {
    SetSame(t, "max_steps", "train.steps");
  }
  SetTrainerDefaults(t);
}

}  // namespace trainyard::foreign
