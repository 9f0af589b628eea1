// The keys of the groups of an Accelerate file, without fsdp_config (fsdp_rules.cc).
#include "foreign/key_rule.h"

namespace trainyard::foreign {
namespace {

constexpr absl::string_view kNoNvme = "state is offloaded to host memory; use device cpu";
constexpr absl::string_view kNoFp8 =
    "the types are fp32, bf16 and fp16; set mixed_precision: bf16, and remove the group";
constexpr absl::string_view kCompiled = "Trainyard's models are compiled ahead of time";
constexpr absl::string_view kHosts = "hosts are those whose daemons are connected to the coordinator";
constexpr absl::string_view kNoMoe = "no model has experts; remove the key";
constexpr absl::string_view kNoSequenceRanks = "set parallel.tensor and parallel.sequence instead";
constexpr absl::string_view kModelKey = "it is a property of the model; set train.model instead";
constexpr absl::string_view kNoMegatron = "Trainyard does not have this option of Megatron-LM; remove the key";

constexpr KeyRule kBlockRules[] = {
    Block("deepspeed_config"),
    None("deepspeed_config.deepspeed_config_file", Form::kText, "its keys are read as those of a DeepSpeed file"),
    Auto(Sets("deepspeed_config.zero_stage", Form::kWhole, "parallel.data parallel.reduce_every_micro_batch",
              "0: ddp, 1: zero1, 2: zero2, 3: zero3")),
    Auto(Sets("deepspeed_config.gradient_accumulation_steps", Form::kWhole, "train.batch.global train.batch.micro",
              "the global batch is micro x accumulation x data ranks")),
    Auto(Sets("deepspeed_config.gradient_clipping", Form::kNumber, "train.optimizer.clip_norm")),
    Sets("deepspeed_config.offload_optimizer_device", Form::kText, "parallel.offload.optimizer", kNoNvme,
         "none|cpu|nvme"),
    Sets("deepspeed_config.offload_param_device", Form::kText, "parallel.offload.parameters", kNoNvme, "none|cpu|nvme"),
    Refused("deepspeed_config.offload_optimizer_nvme_path", Form::kText, kNoNvme, "none"),
    Refused("deepspeed_config.offload_param_nvme_path", Form::kText, kNoNvme, "none"),
    None("deepspeed_config.zero3_init_flag", Form::kFlag, "a rank always makes only its own part of the model"),
    Sets("deepspeed_config.zero3_save_16bit_model", Form::kFlag, "checkpoint.weights_copy",
         "true: fp16 if the job computes in fp16, else bf16"),
    None("deepspeed_config.deepspeed_multinode_launcher", Form::kText, kHosts),
    None("deepspeed_config.deepspeed_hostfile", Form::kText, kHosts, "none"),
    Refused("deepspeed_config.deepspeed_inclusion_filter", Form::kText, "set resources.hosts instead", "none"),
    Refused("deepspeed_config.deepspeed_exclusion_filter", Form::kText, "set resources.exclude_hosts instead", "none"),
    Refused("deepspeed_config.deepspeed_moe_layer_cls_names", Form::kText, kNoMoe, "none"),
    Block("parallelism_config"),
    Sets("parallelism_config.parallelism_config_dp_replicate_size", Form::kWhole, "parallel.data parallel.replicate"),
    Sets("parallelism_config.parallelism_config_dp_shard_size", Form::kWhole, "parallel.data parallel.shard"),
    Sets("parallelism_config.parallelism_config_tp_size", Form::kWhole, "parallel.tensor"),
    Refused("parallelism_config.parallelism_config_cp_size", Form::kWhole, kNoSequenceRanks, "1"),
    None("parallelism_config.parallelism_config_cp_backend", Form::kText, "it concerns a cp_size above 1"),
    None("parallelism_config.parallelism_config_cp_comm_strategy", Form::kText, "it concerns a cp_size above 1"),
    Refused("parallelism_config.parallelism_config_sp_size", Form::kWhole, kNoSequenceRanks, "1"),
    None("parallelism_config.parallelism_config_sp_backend", Form::kText, "it concerns an sp_size above 1"),
    None("parallelism_config.parallelism_config_sp_seq_length", Form::kWhole, "it concerns an sp_size above 1"),
    None("parallelism_config.parallelism_config_sp_seq_length_is_variable", Form::kFlag,
         "it concerns an sp_size above 1"),
    None("parallelism_config.parallelism_config_sp_attn_implementation", Form::kText, "it concerns an sp_size above 1"),
    Block("megatron_lm_config"),
    Sets("megatron_lm_config.megatron_lm_tp_degree", Form::kWhole, "parallel.tensor"),
    Sets("megatron_lm_config.megatron_lm_pp_degree", Form::kWhole, "parallel.pipeline.stages"),
    Sets("megatron_lm_config.megatron_lm_num_micro_batches", Form::kWhole, "train.batch.global train.batch.micro",
         "the global batch is micro x micro-batches x data ranks"),
    Sets("megatron_lm_config.megatron_lm_sequence_parallelism", Form::kFlag, "parallel.sequence"),
    Sets("megatron_lm_config.megatron_lm_recompute_activations", Form::kFlag, "parallel.recompute.mode",
         "true: selective, unless recompute_granularity is full"),
    Sets("megatron_lm_config.megatron_lm_recompute_granularity", Form::kText, "parallel.recompute.mode",
         "full: blocks, selective: selective", "full|selective"),
    None("megatron_lm_config.megatron_lm_recompute_method", Form::kText, "every block is computed again", "uniform"),
    Refused("megatron_lm_config.megatron_lm_recompute_num_layers", Form::kWhole, "set parallel.recompute.every instead",
            "1"),
    Sets("megatron_lm_config.megatron_lm_use_distributed_optimizer", Form::kFlag, "parallel.data",
         "true: zero1, false: ddp"),
    Sets("megatron_lm_config.megatron_lm_gradient_clipping", Form::kNumber, "train.optimizer.clip_norm"),
    Refused("megatron_lm_config.megatron_lm_use_custom_fsdp", Form::kFlag, "set parallel.data instead", "false"),
    Refused("megatron_lm_config.megatron_lm_no_load_optim", Form::kFlag, kNoMegatron, "false"),
    Refused("megatron_lm_config.megatron_lm_no_save_optim", Form::kFlag, kNoMegatron, "false"),
    Refused("megatron_lm_config.megatron_lm_eod_mask_loss", Form::kFlag,
            "set train.data.separate_documents or train.data.fields instead", "false"),
    None("megatron_lm_config.megatron_lm_overlap_cpu_optimizer_d2h_h2d", Form::kFlag,
         "copies of offloaded state always overlap"),
    Sets("megatron_lm_config.megatron_lm_optimizer_cpu_offload", Form::kFlag, "parallel.offload.optimizer"),
    Refused("megatron_lm_config.megatron_lm_use_precision_aware_optimizer", Form::kFlag,
            "set train.precision.master and train.precision.state instead", "false"),
    Refused("megatron_lm_config.megatron_lm_decoder_last_pipeline_num_layers", Form::kWhole,
            "set parallel.pipeline.split instead", ""),
    None("megatron_lm_config.megatron_lm_attention_backend", Form::kFlag, "each device has one kind of attention"),
    Refused("megatron_lm_config.megatron_lm_expert_model_parallel_size", Form::kWhole, kNoMoe, "1"),
    Refused("megatron_lm_config.megatron_lm_expert_tensor_parallel_size", Form::kWhole, kNoMoe, "1"),
    Refused("megatron_lm_config.megatron_lm_context_parallel_size", Form::kWhole, kNoSequenceRanks, "1"),
    Refused("megatron_lm_config.megatron_lm_attention_dropout", Form::kNumber, kModelKey, "0|0.0"),
    Refused("megatron_lm_config.megatron_lm_hidden_dropout", Form::kNumber, kModelKey, "0|0.0"),
    None("megatron_lm_config.megatron_lm_attention_softmax_in_fp32", Form::kFlag, "softmax is always computed in fp32"),
    None("megatron_lm_config.megatron_lm_calculate_per_token_loss", Form::kFlag,
         "the loss is always the mean over the tokens"),
    Refused("megatron_lm_config.megatron_lm_use_rotary_position_embeddings", Form::kFlag, kModelKey, "false"),
    None("dynamo_config", Form::kMap, kCompiled),
    None("dynamo_config.backend", Form::kText, kCompiled, "no"),
    None("dynamo_config.mode", Form::kText, kCompiled),
    None("dynamo_config.use_dynamic", Form::kFlag, kCompiled),
    None("dynamo_config.use_fullgraph", Form::kFlag, kCompiled),
    None("dynamo_config.use_regional_compilation", Form::kFlag, kCompiled),
    None("fp8_config", Form::kMap, kNoFp8),
    Refused("fp8_config.backend", Form::kText, kNoFp8, "no"),
    None("fp8_config.use_autocast_during_eval", Form::kFlag, kNoFp8),
    None("fp8_config.margin", Form::kWhole, kNoFp8),
    None("fp8_config.interval", Form::kWhole, kNoFp8),
    None("fp8_config.format", Form::kText, kNoFp8),
    None("fp8_config.amax_history_len", Form::kWhole, kNoFp8),
    None("fp8_config.amax_history_length", Form::kWhole, kNoFp8),
    None("fp8_config.amax_compute_algo", Form::kText, kNoFp8),
    None("fp8_config.amax_compute_algorithm", Form::kText, kNoFp8),
    None("fp8_config.override_linear_precision", Form::kOpaque, kNoFp8),
    None("fp8_config.opt_level", Form::kText, kNoFp8),
    None("fp8_config.optimization_level", Form::kText, kNoFp8),
    None("fp8_config.enable_fsdp_float8_all_gather", Form::kFlag, kNoFp8),
    None("fp8_config.pad_inner_dim", Form::kFlag, kNoFp8),
    Block("mpirun_config"),
    None("mpirun_config.mpirun_hostfile", Form::kText, kHosts, "none"),
    None("mpirun_config.mpirun_ccl", Form::kText, "ranks on CPUs communicate through gloo and shared memory"),
};

}  // namespace

absl::Span<const KeyRule> AccelerateBlockRules() { return kBlockRules; }

}  // namespace trainyard::foreign
