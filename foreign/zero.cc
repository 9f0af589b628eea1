// DeepSpeed's zero_optimization, tensor_parallel and pipeline.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/yaml_schema.h"
#include "foreign/translators.h"

namespace trainyard::foreign {
namespace {

constexpr char kZero[] = "zero_optimization.";
constexpr const char* kStrategies[] = {"ddp", "zero1", "zero2", "zero3"};

class ZeroTranslator {
 public:
  explicit ZeroTranslator(Translation* t) : t_(*t) {}

  void Translate() {
    SetModelParallel();
    if (!SetStage()) return;
    SetSame(&t_, absl::StrCat(kZero, "overlap_comm"), "parallel.overlap");
    SetSame(&t_, absl::StrCat(kZero, "sub_group_size"), "parallel.optimizer_tile_elements");
    SetBuckets();
    SetStage3();
    SetOffload("offload_optimizer.device", "cpu_offload", "parallel.offload.optimizer");
    SetOffload("offload_param.device", "cpu_offload_param", "parallel.offload.parameters");
    for (const char* name : {"stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save",
                             "stage3_gather_fp16_weights_on_model_save"}) {
      SetWeightsCopy(Get(name));
    }
  }

 private:
  const Value* Get(absl::string_view name) const { return t_.Find(absl::StrCat(kZero, name)); }

  void SetModelParallel() {
    const Value* tensor = t_.Find("tensor_parallel.autotp_size");
    if (tensor != nullptr) {
      t_.Set(*tensor, "parallel.tensor", *tensor->number < 2 ? "1" : yaml::NumberText(*tensor->number));
    }
    const Value* stages = t_.Find("pipeline.stages");
    if (stages == nullptr) return;
    t_.Set(*stages, "parallel.pipeline.stages", stages->is_auto ? "1" : stages->text);
  }

  // Returns false after an error.
  bool SetStage() {
    const Value* stage = Get("stage");
    if (stage == nullptr) {
      const Value* group = t_.Find("zero_optimization");
      if (group != nullptr) t_.SetDefault(*group, "parallel.data", "ddp", "zero_optimization.stage is 0 by default");
      return true;
    }
    const double number = *stage->number;
    if (number < 0 || number > 3) {
      t_.Error(*stage, absl::StrCat("expected 0, 1, 2 or 3, found ", stage->text));
      return false;
    }
    stage_ = static_cast<int>(number);
    const Value* mics = Get("mics_shard_size");
    if (mics != nullptr && *mics->number > 0 && stage_ == 3) {
      t_.Set(*stage, "parallel.data", "hsdp");
      t_.Set(*mics, "parallel.data", "hsdp");
      t_.Set(*mics, "parallel.shard", yaml::NumberText(*mics->number));
    } else {
      t_.Set(*stage, "parallel.data", kStrategies[stage_]);
      if (mics != nullptr) ExplainStage(*mics, *mics->number > 0);
    }
    return true;
  }

  void ExplainStage(const Value& value, bool is_other_stage) {
    t_.Explain(value, is_other_stage ? absl::StrCat("no effect with stage ", stage_) : "the value changes nothing");
  }

  // Sets the keys that have an effect in stages 1 and 2; reduce_bucket_size also has one in stage 0.
  void SetBuckets() {
    struct Key {
      const char* name;
      const char* job_key;
      int first_stage;
    };
    for (const Key& key :
         {Key{"reduce_scatter", "parallel.reduce_scatter", 1}, Key{"reduce_bucket_size", "parallel.bucket_elements", 0},
          Key{"allgather_partitions", "parallel.all_gather", 1},
          Key{"allgather_bucket_size", "parallel.gather_bucket_elements", 1}}) {
      const Value* value = Get(key.name);
      if (value == nullptr) continue;
      if (stage_ < key.first_stage || stage_ == 3) {
        t_.Explain(*value, absl::StrCat("no effect with stage ", stage_,
                                        stage_ == 3 ? ", which communicates block by block" : ""));
      } else if (value->is_auto && absl::StrContains(key.name, "allgather")) {
        t_.Announce(*value, "auto is Trainyard's default");
      } else if (value->is_auto) {
        SetByWidth(*value, key.job_key, "the square of the model's width", 1, 2);
      } else {
        SetSame(&t_, absl::StrCat(kZero, key.name), key.job_key);
      }
    }
  }

  void SetStage3() {
    struct Key {
      const char* name;
      const char* job_key;
      const char* rule;  // what transformers makes of auto, in words; the number is factor x width^power
      double factor;
      int power;
    };
    constexpr char kPrefetch[] = "parallel.prefetch_elements", kPersist[] = "parallel.persist_elements";
    constexpr char kSquare[] = "0.9 x the square of the model's width", kTen[] = "10 x the model's width";
    for (const Key& key : {Key{"stage3_prefetch_bucket_size", kPrefetch, kSquare, 0.9, 2},
                           Key{"prefetch_bucket_size", kPrefetch, kSquare, 0.9, 2},
                           Key{"stage3_param_persistence_threshold", kPersist, kTen, 10, 1},
                           Key{"param_persistence_threshold", kPersist, kTen, 10, 1},
                           Key{"stage3_max_live_parameters", "parallel.max_live_elements", "", 0, 0},
                           Key{"max_live_parameters", "parallel.max_live_elements", "", 0, 0},
                           Key{"stage3_max_reuse_distance", "parallel.reuse_elements", "", 0, 0},
                           Key{"max_reuse_distance", "parallel.reuse_elements", "", 0, 0}}) {
      const Value* value = Get(key.name);
      if (value == nullptr) continue;
      if (stage_ != 3) {
        ExplainStage(*value, true);
      } else if (value->is_auto) {
        SetByWidth(*value, key.job_key, key.rule, key.factor, key.power);
      } else {
        SetSame(&t_, absl::StrCat(kZero, key.name), key.job_key);
      }
    }
    const Value* group = Get("zero_hpz_partition_size");
    if (group == nullptr) return;
    if (stage_ != 3 || *group->number < 2) return ExplainStage(*group, stage_ != 3);
    t_.Set(*group, "parallel.reshard_after_forward", yaml::NumberText(*group->number));
  }

  // Sets the number that transformers computes for auto. If the model's width is not known, the job's key stays auto.
  void SetByWidth(const Value& value, const char* job_key, const char* rule, double factor, int power) {
    const double width = t_.flags().train().model().width();
    if (width == 0) {
      t_.Announce(value, absl::StrCat("auto is ", rule, ", and the width is not known; Trainyard decides ", job_key,
                                      ", unless you add --set train.model.preset=NAME"));
      return;
    }
    const uint64_t elements = static_cast<uint64_t>(factor * (power == 2 ? width * width : width));
    t_.Set(value, job_key, absl::StrCat(elements));
    t_.Announce(value, absl::StrCat("auto is ", elements, ": ", rule, ", ", width));
  }

  void SetOffload(const char* name, const char* old_name, const char* job_key) {
    if (const Value* device = Get(name); device != nullptr) {
      if (absl::EqualsIgnoreCase(device->text, "nvme")) {
        t_.Error(*device, "nvme is not available: state is offloaded to host memory; use cpu");
      } else {
        t_.Set(*device, job_key, absl::EqualsIgnoreCase(device->text, "cpu") ? "true" : "false");
      }
    }
    SetSame(&t_, absl::StrCat(kZero, old_name), job_key);
  }

  void SetWeightsCopy(const Value* value) {
    if (value == nullptr) return;
    const bool is_fp16 = t_.ValueOf("train.precision.type") == "fp16";
    t_.Set(*value, "checkpoint.weights_copy", !*value->flag ? "none" : is_fp16 ? "fp16" : "bf16");
  }

  Translation& t_;
  int stage_ = 0;
};

}  // namespace

void TranslateZero(Translation* t) { ZeroTranslator(t).Translate(); }

// With stages 2 and 3, DeepSpeed reduces the gradients of each micro-batch, so that no rank holds them whole.
void SetReduction(Translation* t) {
  const Value* stage = t->Find("zero_optimization.stage");
  const std::string theirs = t->FileValueOf("parallel.data");
  const bool is_sharded = IsOneOf(theirs, "zero2|zero3") || (stage != nullptr && theirs == "hsdp");
  // --set may have replaced the strategy.
  if (!is_sharded || !IsOneOf(t->ValueOf("parallel.data"), "zero2|zero3|fsdp|hsdp") || !ReducesSeveralTimes(*t)) return;
  if (stage == nullptr) stage = t->FindFixed("deepspeed_config.zero_stage");
  if (stage == nullptr) stage = t->Find("deepspeed_config");
  if (stage == nullptr) stage = t->Find("distributed_type");  // without the group, its value is DEEPSPEED
  t->SetDefault(*stage, "parallel.reduce_every_micro_batch", "true",
                "with stages 2 and 3, DeepSpeed reduces the gradients of each micro-batch, so that no rank holds them "
                "whole; false communicates less and needs more memory");
}

void TranslateDeepSpeed(Translation* t) {
  TranslatePrecision(t);  // before zero_optimization, whose copy of the weights has the type of the computation
  TranslateZero(t);
  TranslateOptimizer(t);
  TranslateSchedule(t);
  SetSame(t, "wall_clock_breakdown", "diagnostics.events");
}

}  // namespace trainyard::foreign
