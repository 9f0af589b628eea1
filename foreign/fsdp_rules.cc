// The keys of fsdp_config in Accelerate's files and in TrainingArguments. In these files their names may begin with
// fsdp_; here they are written without it.
#include "foreign/key_rule.h"

namespace trainyard::foreign {
namespace {

constexpr absl::string_view kNoXla = "Trainyard does not run on TPUs; use false, or remove the key";
constexpr absl::string_view kVersion1 = "FSDP 2 has no such key, and no result depends on it";

constexpr KeyRule kFsdpRules[] = {
    Sets("fsdp_config", Form::kMap, "parallel.data", "FSDP shards all state, unless its keys say otherwise"),
    Sets("fsdp_config.version", Form::kWhole, "parallel.data", "2: fsdp; 1: what `accelerate to-fsdp2` makes of it"),
    Sets("fsdp_config.reshard_after_forward", Form::kText,
         "parallel.reshard_after_forward parallel.data parallel.shard", "true, false, or a sharding strategy"),
    Sets("fsdp_config.sharding_strategy", Form::kText, "parallel.data parallel.reshard_after_forward parallel.shard",
         "FULL_SHARD: fsdp, SHARD_GRAD_OP: fsdp without resharding, HYBRID_SHARD: hsdp, NO_SHARD: ddp"),
    Sets("fsdp_config.offload_params", Form::kFlag, "parallel.offload.parameters parallel.offload.optimizer"),
    Sets("fsdp_config.cpu_offload", Form::kFlag, "parallel.offload.parameters parallel.offload.optimizer",
         "another name of fsdp_offload_params"),
    Refused("fsdp_config.auto_wrap_policy", Form::kText,
            "parameters are communicated block by block; use TRANSFORMER_BASED_WRAP", "TRANSFORMER_BASED_WRAP"),
    Sets("fsdp_config.transformer_layer_cls_to_wrap", Form::kList, "train.model.family",
         "the class of a block, which belongs to a family of models"),
    Refused("fsdp_config.transformer_cls_names_to_wrap", Form::kText, "use fsdp_transformer_layer_cls_to_wrap", ""),
    None("fsdp_config.min_num_params", Form::kWhole, "it concerns SIZE_BASED_WRAP"),
    Sets("fsdp_config.backward_prefetch", Form::kText, "parallel.prefetch_elements",
         "NO_PREFETCH gathers nothing ahead; otherwise one block is gathered ahead",
         "BACKWARD_PRE|BACKWARD_POST|NO_PREFETCH"),
    None("fsdp_config.forward_prefetch", Form::kFlag, "parallel.prefetch_elements decides for both passes"),
    Sets("fsdp_config.state_dict_type", Form::kText, "checkpoint.format",
         "SHARDED_STATE_DICT: sharded, FULL_STATE_DICT: full", "SHARDED_STATE_DICT|FULL_STATE_DICT|LOCAL_STATE_DICT"),
    None("fsdp_config.cpu_ram_efficient_loading", Form::kFlag, "a rank always reads only its own part of the weights"),
    None("fsdp_config.sync_module_states", Form::kFlag, "all ranks compute or read the same initial weights"),
    None("fsdp_config.use_orig_params", Form::kFlag, kVersion1),
    None("fsdp_config.limit_all_gathers", Form::kFlag, "parallel.max_live_elements limits what is gathered"),
    Sets("fsdp_config.activation_checkpointing", Form::kFlag, "parallel.recompute.mode"),
    Refused("fsdp_config.activation_checkpointing_offload", Form::kFlag,
            "activations are not offloaded; set fsdp_activation_checkpointing", "false"),
    Refused("fsdp_config.ignored_modules", Form::kText, "all parameters are sharded; remove the key", "none"),
    Refused("fsdp_config.param_init_fn", Form::kText, "initial weights come from train.seed or a file", "none"),
    Refused("fsdp_config.mixed_precision_policy", Form::kOpaque, "set mixed_precision, or train.precision", ""),
    Refused("fsdp_config.state_dict_config", Form::kOpaque, "set fsdp_state_dict_type", ""),
    Refused("fsdp_config.optim_state_dict_config", Form::kOpaque, "set checkpoint.full_optimizer instead", ""),
    Refused("fsdp_config.xla", Form::kFlag, kNoXla, "false"),
    Refused("fsdp_config.xla_fsdp_v2", Form::kFlag, kNoXla, "false"),
    Refused("fsdp_config.xla_fsdp_grad_ckpt", Form::kFlag, kNoXla, "false"),
    Refused("fsdp_config.xla_fsdp_settings", Form::kOpaque, kNoXla, ""),
};

}  // namespace

absl::Span<const KeyRule> FsdpRules() { return kFsdpRules; }

}  // namespace trainyard::foreign
