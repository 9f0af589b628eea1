// The keys at the top of an Accelerate file, and its groups other than fsdp_config.
#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/plural.h"
#include "common/yaml_schema.h"
#include "foreign/translators.h"

namespace trainyard::foreign {
namespace {

constexpr char kMegatron[] = "megatron_lm_config.megatron_lm_";
constexpr char kParallelism[] = "parallelism_config.parallelism_config_";

class AccelerateTranslator {
 public:
  explicit AccelerateTranslator(Translation* t) : t_(*t) {
    const Value* type = t->Find("distributed_type");
    if (type != nullptr) type_ = type->flag == false ? "NO" : absl::AsciiStrToUpper(type->text);
  }

  void Translate() {
    SetRanks();
    SetDevice();
    SetPrecision();
    RefuseUnusedGroups();
    if (type_ == "DEEPSPEED") TranslatePlugin();
    if (type_ == "MEGATRON_LM") TranslateMegatron();
    TranslateParallelism();
    // The type decides after the groups above, because they are more specific.
    SetStrategy();
    if (type_ == "FSDP") TranslateFsdp(&t_, /*version=*/1, ranks_per_host_);
  }

 private:
  void SetRanks() {
    const Value* processes = t_.Find("num_processes");
    const Value* machines = t_.Find("num_machines");
    const Value* rank = t_.Find("machine_rank");
    const double num_machines = machines == nullptr ? 1 : *machines->number;
    if (machines != nullptr && num_machines < 1) {
      t_.Error(*machines, absl::StrCat("must be at least 1, found ", machines->text));
      return;
    }
    if (rank != nullptr && (*rank->number < 0 || *rank->number >= num_machines)) {
      t_.Error(*rank, absl::StrCat("must be from 0 to ", yaml::NumberText(num_machines - 1),
                                   ", one less than num_machines, found ", rank->text));
    }
    if (processes == nullptr) return;
    const double ranks = *processes->number;
    if (ranks == -1) {
      if (!t_.HasFlag("resources.ranks"))
        t_.Error(*processes, "-1 is not a number of ranks; add --set resources.ranks=N");
      return t_.Explain(*processes, "-1: --set resources.ranks decides");
    }
    if (ranks < num_machines || std::fmod(ranks, num_machines) != 0) {
      return t_.Error(*processes, absl::StrCat("is ", processes->text, ", which is not a multiple of num_machines, ",
                                               yaml::NumberText(num_machines)));
    }
    t_.Set(*processes, "resources.ranks", yaml::NumberText(ranks));
    const uint64_t machines_used = static_cast<uint64_t>(num_machines);
    if (RanksOf(t_) % machines_used == 0) ranks_per_host_ = RanksOf(t_) / machines_used;
    if (type_ == "NO" && RanksOf(t_) > 1) {
      t_.Error(*processes,
               absl::StrCat("is ", processes->text,
                            ", but distributed_type is NO, which is one process; use MULTI_GPU or MULTI_CPU"));
    }
  }

  void SetDevice() {
    const Value* type = t_.Find("distributed_type");
    if (const Value* cpu = t_.Find("use_cpu"); cpu != nullptr) {
      if (*cpu->flag)
        t_.Set(*cpu, "resources.device", "cpu");
      else
        t_.Explain(*cpu, "resources.device auto: GPUs if the hosts have them");
    }
    if (type == nullptr) return;
    if (type_ == "MULTI_CPU") t_.Set(*type, "resources.device", "cpu");
    if (type_ == "MULTI_GPU") t_.Set(*type, "resources.device", "cuda");
  }

  void SetPrecision() {
    if (const Value* old = t_.Find("fp16"); old != nullptr) {
      t_.Set(*old, "train.precision.type", *old->flag ? "fp16" : "fp32");
      SetScaler(*old);
    }
    const Value* precision = t_.Find("mixed_precision");
    if (precision == nullptr) return;
    const std::string type = precision->flag == false ? "no" : absl::AsciiStrToLower(precision->text);
    if (type == "fp8") {
      return t_.Error(*precision, "fp8 is not available: the types are fp32, bf16 and fp16; use bf16");
    }
    t_.Set(*precision, "train.precision.type", type == "no" ? "fp32" : type);
    SetScaler(*precision);
  }

  // DeepSpeed and Megatron-LM do not use PyTorch's GradScaler.
  void SetScaler(const Value& precision) {
    if (!IsOneOf(type_, "DEEPSPEED|MEGATRON_LM")) SetScalerDefaults(&t_, precision);
  }

  // Accelerate silently ignores a group of another distributed_type.
  void RefuseUnusedGroups() {
    struct Group {
      const char* name;
      const char* type;
    };
    for (const Group& group : {Group{"fsdp_config", "FSDP"}, Group{"deepspeed_config", "DEEPSPEED"},
                               Group{"megatron_lm_config", "MEGATRON_LM"}}) {
      const Value* value = t_.Find(group.name);
      if (value == nullptr || value->is_off || type_ == group.type) continue;
      t_.Error(*value, absl::StrCat("has no effect, because distributed_type is ", type_.empty() ? "not given" : type_,
                                    "; use distributed_type: ", group.type, ", or remove the group"));
    }
    const Value* parallelism = t_.Find("parallelism_config");
    if (parallelism != nullptr && !parallelism->is_off && type_ != "FSDP") {
      t_.Error(*parallelism, "needs distributed_type: FSDP with fsdp_version 2; correct it, or remove the group");
    }
  }

  void SetStrategy() {
    const Value* type = t_.Find("distributed_type");
    if (type == nullptr) return;
    if (IsOneOf(type_, "NO|MULTI_CPU|MULTI_GPU")) {
      t_.Set(*type, "parallel.data", "ddp");
      if (type_ == "NO" && t_.ValueOf("resources.ranks").empty()) t_.Set(*type, "resources.ranks", "1");
    } else if (type_ == "FSDP") {
      t_.Explain(*type, "fsdp_config decides parallel.data");
      if (t_.Find("fsdp_config") == nullptr) t_.Set(*type, "parallel.data", "fsdp");
    } else if (type_ == "DEEPSPEED" || type_ == "MEGATRON_LM") {
      t_.Explain(*type, "its group decides parallel.data");
    } else {
      t_.Error(*type, absl::StrCat(type_,
                                   " is not available: Trainyard runs on CPUs and NVIDIA GPUs; use MULTI_CPU, "
                                   "MULTI_GPU, FSDP, DEEPSPEED or MEGATRON_LM"));
    }
  }

  // Translates deepspeed_config, from which Accelerate makes its DeepSpeed plugin. If it names a DeepSpeed file, the
  // keys of that file were read before and are translated here too.
  void TranslatePlugin() {
    constexpr const char* kStages[] = {"ddp", "zero1", "zero2", "zero3"};
    TranslateDeepSpeed(&t_);
    const Value* stage = t_.FindFixed("deepspeed_config.zero_stage");
    const Value* group = t_.Find("deepspeed_config");
    if (stage != nullptr && (*stage->number < 0 || *stage->number > 3)) {
      t_.Error(*stage, absl::StrCat("expected 0, 1, 2 or 3, found ", stage->text));
    } else if (stage != nullptr) {
      t_.Set(*stage, "parallel.data", kStages[static_cast<int>(*stage->number)]);
    } else if (group != nullptr && t_.ValueOf("parallel.data").empty()) {
      t_.SetDefault(*group, "parallel.data", "zero2", "Accelerate's default of zero_stage");
    } else if (group == nullptr) {
      t_.SetDefault(*t_.Find("distributed_type"), "parallel.data", "zero2", "Accelerate's default of zero_stage");
    }
    if (const Value* clip = t_.Find("deepspeed_config.gradient_clipping"); clip != nullptr && clip->is_auto) {
      t_.Announce(*clip, "auto is Trainyard's default; --set train.optimizer.clip_norm=N changes it");
    }
    SetSame(&t_, "deepspeed_config.gradient_clipping", "train.optimizer.clip_norm");
    SetDeviceOf("deepspeed_config.offload_optimizer_device", "parallel.offload.optimizer");
    SetDeviceOf("deepspeed_config.offload_param_device", "parallel.offload.parameters");
    if (const Value* copy = t_.Find("deepspeed_config.zero3_save_16bit_model"); copy != nullptr) {
      const bool is_fp16 = t_.ValueOf("train.precision.type") == "fp16";
      t_.Set(*copy, "checkpoint.weights_copy", !*copy->flag ? "none" : is_fp16 ? "fp16" : "bf16");
    }
  }

  void SetDeviceOf(const char* key, const char* job_key) {
    const Value* device = t_.Find(key);
    if (device == nullptr) return;
    if (absl::EqualsIgnoreCase(device->text, "nvme")) {
      return t_.Error(*device, "nvme is not available: state is offloaded to host memory; use cpu");
    }
    t_.Set(*device, job_key, absl::EqualsIgnoreCase(device->text, "cpu") ? "true" : "false");
  }

  void TranslateMegatron() {
    SetSame(&t_, absl::StrCat(kMegatron, "tp_degree"), "parallel.tensor");
    SetSame(&t_, absl::StrCat(kMegatron, "pp_degree"), "parallel.pipeline.stages");
    SetSame(&t_, absl::StrCat(kMegatron, "sequence_parallelism"), "parallel.sequence");
    SetSame(&t_, absl::StrCat(kMegatron, "gradient_clipping"), "train.optimizer.clip_norm");
    SetSame(&t_, absl::StrCat(kMegatron, "optimizer_cpu_offload"), "parallel.offload.optimizer");
    const Value* optimizer = t_.Find(absl::StrCat(kMegatron, "use_distributed_optimizer"));
    if (optimizer != nullptr) t_.Set(*optimizer, "parallel.data", *optimizer->flag ? "zero1" : "ddp");
    const Value* granularity = t_.Find(absl::StrCat(kMegatron, "recompute_granularity"));
    const Value* recompute = t_.Find(absl::StrCat(kMegatron, "recompute_activations"));
    const bool is_full = granularity != nullptr && absl::EqualsIgnoreCase(granularity->text, "full");
    if (granularity != nullptr) t_.Set(*granularity, "parallel.recompute.mode", is_full ? "blocks" : "selective");
    if (recompute == nullptr) return;
    if (*recompute->flag)
      t_.Set(*recompute, "parallel.recompute.mode", is_full ? "blocks" : "selective");
    else if (granularity == nullptr)
      t_.Set(*recompute, "parallel.recompute.mode", "none");
    else
      t_.Explain(*recompute, "recompute_granularity decides");
  }

  void TranslateParallelism() {
    const Value* replicate = t_.Find(absl::StrCat(kParallelism, "dp_replicate_size"));
    const Value* shard = t_.Find(absl::StrCat(kParallelism, "dp_shard_size"));
    const Value* tensor = t_.Find(absl::StrCat(kParallelism, "tp_size"));
    SetSame(&t_, absl::StrCat(kParallelism, "tp_size"), "parallel.tensor");
    const double copies = replicate == nullptr ? 1 : *replicate->number, parts = shard == nullptr ? 1 : *shard->number;
    const double width = tensor == nullptr ? 1 : *tensor->number;
    const uint64_t ranks = RanksOf(t_);
    const Value* any = replicate != nullptr ? replicate : shard != nullptr ? shard : tensor;
    if (any == nullptr || type_ != "FSDP") return;
    if (copies < 1 || parts < 1 || width < 1 || copies * parts * width != static_cast<double>(ranks)) {
      return t_.Error(
          *any, absl::StrCat("dp_replicate_size ", yaml::NumberText(copies), " x dp_shard_size ",
                             yaml::NumberText(parts), " x tp_size ", yaml::NumberText(width), " = ",
                             yaml::NumberText(copies * parts * width), ", but the job has ", Plural(ranks, "rank")));
    }
    const char* data = copies > 1 && parts > 1 ? "hsdp" : copies > 1 ? "ddp" : "fsdp";
    if (replicate != nullptr) t_.Set(*replicate, "parallel.data", data);
    if (shard != nullptr) t_.Set(*shard, "parallel.data", data);
    if (data != std::string("hsdp")) return;
    t_.Set(*replicate, "parallel.replicate", yaml::NumberText(copies));
    t_.Set(*shard, "parallel.shard", yaml::NumberText(parts));
  }

  Translation& t_;
  std::string type_;             // in upper case; empty: not given
  uint64_t ranks_per_host_ = 0;  // 0: unknown
};

}  // namespace

void TranslateAccelerate(Translation* t) { AccelerateTranslator(t).Translate(); }

}  // namespace trainyard::foreign
