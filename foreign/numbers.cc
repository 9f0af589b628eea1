// What decides the numbers of a training step in a DeepSpeed file: types, optimizer and schedule of the learning rate.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/nearest_name.h"
#include "common/yaml_schema.h"
#include "foreign/translators.h"

namespace trainyard::foreign {
namespace {

constexpr char kTypeKey[] = "train.precision.type";
constexpr double kScalePowerMax = 99;    // 2 to this power is below the limit of train.loss_scale.initial
constexpr double kDefaultWarmup = 1000;  // DeepSpeed's default of warmup_num_steps
constexpr double kDefaultPeak = 0.001;   // WarmupDecayLR's default of warmup_max_lr

// The defaults of transformers, which the value auto stands for.
constexpr char kAutoLr[] = "5e-5", kAutoBetas[] = "[0.9, 0.999]", kAutoEps[] = "1e-8", kAutoDecay[] = "0";

// Sets the precision from a key such as fp16.enabled. Returns whether the group is in use.
bool SetType(Translation* t, absl::string_view key, const char* type) {
  const Value* enabled = t->Find(key);
  if (enabled == nullptr) return false;
  if (enabled->is_auto) {
    const bool is_on = t->ValueOf(kTypeKey) == type;
    t->Announce(*enabled, is_on ? absl::StrCat("auto is true, because --set or mixed_precision says ", type)
                                : absl::StrCat("auto is false; add --set train.precision=", type, " for true"));
    return is_on;
  }
  if (*enabled->flag) {
    t->Set(*enabled, kTypeKey, type);
  } else {
    t->Explain(*enabled, "the group is off");
  }
  return *enabled->flag;
}

void ExplainOff(Translation* t, std::initializer_list<const char*> keys, const char* why) {
  for (const char* key : keys) {
    if (const Value* value = t->Find(key); value != nullptr) t->Explain(*value, why);
  }
}

void SetLossScale(Translation* t) {
  const Value* scale = t->Find("fp16.loss_scale");
  const Value* power = t->Find("fp16.initial_scale_power");
  const bool is_static = scale != nullptr && *scale->number > 0;
  if (scale != nullptr) t->Set(*scale, "train.loss_scale.static", is_static ? "true" : "false");
  if (is_static) t->Set(*scale, "train.loss_scale.initial", yaml::NumberText(*scale->number));
  if (power != nullptr && is_static) {
    t->Explain(*power, "no effect with a static loss_scale");
  } else if (power != nullptr && (*power->number < 0 || *power->number > kScalePowerMax)) {
    t->Error(*power, absl::StrCat("must be from 0 to ", kScalePowerMax, ", found ", power->text));
  } else if (power != nullptr) {
    t->Set(*power, "train.loss_scale.initial", yaml::NumberText(std::exp2(*power->number)));
  }
  SetSame(t, "fp16.loss_scale_window", "train.loss_scale.window");
  SetSame(t, "fp16.hysteresis", "train.loss_scale.hysteresis");
  SetSame(t, "fp16.min_loss_scale", "train.loss_scale.min");
}

// Sets a parameter of the optimizer, or its default if the file does not have it.
void SetParameter(Translation* t, const Value& group, const char* name, const char* by_auto, const char* by_default) {
  const Value* value = t->Find(absl::StrCat("optimizer.params.", name));
  const std::string job_key = absl::StrCat("train.optimizer.", name);
  if (value == nullptr) {
    // The scheduler's rate replaces that of the optimizer.
    if (name == std::string("lr") && t->FindFixed("scheduler.params.warmup_max_lr") != nullptr) return;
    return t->SetDefault(group, job_key, by_default,
                         "DeepSpeed's default, because the file has an optimizer without it");
  }
  if (value->is_auto) {
    if (t->HasFlag(job_key)) return t->Announce(*value, absl::StrCat("auto is ", t->ValueOf(job_key), ", from --set"));
    t->Set(*value, job_key, by_auto);
    return t->Announce(*value, absl::StrCat("auto is ", by_auto, ", the default of transformers; --set ", job_key,
                                            "=VALUE changes it"));
  }
  t->Set(*value, job_key,
         value->rule->form == Form::kList ? absl::StrCat("[", absl::StrJoin(value->items, ", "), "]")
                                          : yaml::NumberText(*value->number));
}

struct ScheduleType {
  const char* name;
  const char* kind;
};
constexpr ScheduleType kSchedules[] = {
    {"WarmupLR", "constant"}, {"WarmupDecayLR", "linear"}, {"WarmupCosineLR", "cosine"}};

// Sets the rate after the warm-up, which replaces that of the optimizer in DeepSpeed.
void SetPeak(Translation* t, const Value& type, bool is_decay) {
  const Value* peak = t->Find("scheduler.params.warmup_max_lr");
  if (peak != nullptr && !peak->is_auto) return t->Set(*peak, "train.optimizer.lr", yaml::NumberText(*peak->number));
  const std::string lr = t->FileValueOf("train.optimizer.lr");
  if (peak == nullptr && is_decay && !lr.empty() && !SameYaml(lr, yaml::NumberText(kDefaultPeak))) {
    return t->Error(type,
                    absl::StrCat("has no warmup_max_lr, so that DeepSpeed trains with its default, ", kDefaultPeak,
                                 ", and not with optimizer.params.lr, ", lr, "; give warmup_max_lr"));
  }
  if (peak == nullptr && is_decay) {
    return t->SetDefault(type, "train.optimizer.lr", yaml::NumberText(kDefaultPeak), "the default of WarmupDecayLR");
  }
  if (peak == nullptr) return;
  if (t->ValueOf("train.optimizer.lr").empty()) t->Set(*peak, "train.optimizer.lr", kAutoLr);
  t->Announce(*peak, absl::StrCat("auto is ", t->ValueOf("train.optimizer.lr"), ", the learning rate"));
}

void SetWarmup(Translation* t, const Value& type) {
  constexpr char kWarmupKey[] = "train.schedule.warmup_steps";
  const Value* steps = t->Find("scheduler.params.warmup_num_steps");
  if (steps == nullptr) {
    t->SetDefault(type, kWarmupKey, yaml::NumberText(kDefaultWarmup), "DeepSpeed's default of warmup_num_steps");
  } else if (steps->is_auto) {
    if (!t->HasFlag(kWarmupKey)) t->Set(*steps, kWarmupKey, "0");
    t->Announce(*steps, absl::StrCat("auto is ", t->ValueOf(kWarmupKey), "; --set ", kWarmupKey, "=N changes it"));
  } else {
    t->Set(*steps, kWarmupKey, yaml::NumberText(*steps->number));
  }
  if (t->Find("scheduler.params.warmup_type") == nullptr && t->ValueOf(kWarmupKey) != "0") {
    t->Warn(type,
            "the file has no warmup_type, whose default in DeepSpeed is log; Trainyard's warm-up is linear, so its "
            "learning rates differ; write \"warmup_type\": \"linear\" for equal rates");
  }
}

void SetDecay(Translation* t, bool is_constant, bool is_cosine) {
  const Value* total = t->Find("scheduler.params.total_num_steps");
  if (total != nullptr && is_constant) {
    t->Explain(*total, "no effect with WarmupLR");
  } else if (total != nullptr && total->is_auto) {
    t->Announce(*total, t->HasFlag("train.steps") ? absl::StrCat("auto is ", t->ValueOf("train.steps"), ", train.steps")
                                                  : "auto is train.steps; add --set train.steps=N");
  } else if (total != nullptr) {
    t->Set(*total, "train.steps", yaml::NumberText(*total->number));
  }
  const Value* ratio = t->Find("scheduler.params.cos_min_ratio");
  if (ratio != nullptr && !is_cosine) {
    t->Explain(*ratio, "no effect without WarmupCosineLR");
  } else if (ratio != nullptr) {
    t->Set(*ratio, "train.schedule.min_ratio", yaml::NumberText(*ratio->number));
  }
}

}  // namespace

void TranslatePrecision(Translation* t) {
  const bool is_fp16 = SetType(t, "fp16.enabled", "fp16");
  const bool is_bf16 = SetType(t, "bf16.enabled", "bf16") || SetType(t, "bfloat16.enabled", "bf16");
  if (is_fp16) {
    SetLossScale(t);
  } else {
    ExplainOff(t,
               {"fp16.loss_scale", "fp16.initial_scale_power", "fp16.loss_scale_window", "fp16.hysteresis",
                "fp16.min_loss_scale"},
               "no effect, because fp16 is not enabled");
  }
  struct Key {
    const char* name;
    const char* job_key;
  };
  for (const Key& key : {Key{"bf16.bf16_master_weights_and_grads", "train.precision.master"},
                         Key{"bf16.bf16_optimizer_states", "train.precision.state"}}) {
    const Value* value = t->Find(key.name);
    if (value == nullptr) continue;
    if (!is_bf16) {
      t->Explain(*value, "no effect, because bf16 is not enabled");
    } else {
      t->Set(*value, key.job_key, *value->flag ? "bf16" : "fp32");
    }
  }
  const Value* communication = t->Find("communication_data_type");
  if (communication == nullptr) return;
  const std::string type = absl::AsciiStrToLower(communication->text);
  t->Set(*communication, "train.precision.reduce", type == "bfp16" ? "bf16" : type);
}

void TranslateOptimizer(Translation* t) {
  if (const Value* clip = t->Find("gradient_clipping"); clip != nullptr && clip->is_auto) {
    const bool is_given = t->HasFlag("train.optimizer.clip_norm");
    if (!is_given) t->Set(*clip, "train.optimizer.clip_norm", "1");
    t->Announce(*clip, is_given ? "auto is the value of --set" : "auto is 1, the default of transformers");
  }
  SetSame(t, "gradient_clipping", "train.optimizer.clip_norm");
  const Value* type = t->Find("optimizer.type");
  const Value* group = t->Find("optimizer");
  if (group == nullptr) return;
  if (type == nullptr && group->is_off) return;
  if (type == nullptr) return t->Error(*group, "has no type; expected \"type\": \"AdamW\"");
  const std::string name = absl::AsciiStrToLower(type->text);
  if (name != "adam" && name != "adamw") {
    return t->Error(*type, absl::StrCat("the optimizer ", type->text,
                                        " is not available; use AdamW, or remove the group and set train.optimizer"));
  }
  t->Set(*type, "train.optimizer.name", "adamw");
  SetParameter(t, *group, "lr", kAutoLr, "0.001");
  SetParameter(t, *group, "betas", kAutoBetas, "[0.9, 0.999]");
  SetParameter(t, *group, "eps", kAutoEps, "1e-8");
  // DeepSpeed then uses torch.optim.AdamW with its default.
  const bool is_torch = t->Flag("optimizer.params.torch_adam").value_or(false);
  SetParameter(t, *group, "weight_decay", kAutoDecay, is_torch ? "0.01" : "0");
}

void SetTrainingDefaults(Translation* t) {
  const Value* group = t->Find("optimizer");
  if (group == nullptr || t->Find("optimizer.type") == nullptr) return;
  t->SetDefault(*group, "train.optimizer.clip_norm", "0",
                "DeepSpeed's default, because the file has an optimizer without gradient_clipping");
  if (const Value* schedule = t->Find("scheduler"); schedule != nullptr && !schedule->is_off) return;
  t->SetDefault(*group, "train.schedule.kind", "constant",
                "DeepSpeed's default, because the file has an optimizer without a scheduler");
}

void TranslateSchedule(Translation* t) {
  const Value* type = t->Find("scheduler.type");
  const Value* group = t->Find("scheduler");
  if (group == nullptr || (type == nullptr && group->is_off)) return;
  if (type == nullptr) return t->Error(*group, "has no type; expected WarmupLR, WarmupDecayLR or WarmupCosineLR");
  const auto* found = std::find_if(std::begin(kSchedules), std::end(kSchedules),
                                   [&](const ScheduleType& row) { return type->text == row.name; });
  if (found == std::end(kSchedules)) {
    const std::string nearest = NearestName(type->text, {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"});
    return t->Error(*type, absl::StrCat("the schedule ", type->text, " is not available",
                                        nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?"),
                                        "; use WarmupLR, WarmupDecayLR or WarmupCosineLR, or remove the group and set "
                                        "train.schedule"));
  }
  const std::string kind = found->kind;
  t->Set(*type, "train.schedule.kind", kind);
  t->Set(*type, "train.schedule.formula", "transformers");
  if (kind != "cosine") {
    SetPeak(t, *type, kind == "linear");
  } else if (const Value* peak = t->Find("scheduler.params.warmup_max_lr"); peak != nullptr) {
    t->Error(*peak, "WarmupCosineLR has no such parameter; set optimizer.params.lr");
  }
  SetWarmup(t, *type);
  SetDecay(t, kind == "constant", kind == "cosine");
  if (kind == "cosine" && t->Find("scheduler.params.cos_min_ratio") == nullptr) {
    t->SetDefault(*type, "train.schedule.min_ratio", "0.0001", "the default of WarmupCosineLR");
  }
}

}  // namespace trainyard::foreign
