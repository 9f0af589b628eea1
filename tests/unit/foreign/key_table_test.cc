// Every key that the other programs read has a rule, and every rule is complete. The lists are those of the sources of
// DeepSpeed 0.19.6 (runtime/constants.py, runtime/config.py, runtime/zero/config.py, runtime/zero/offload_config.py,
// runtime/precision_config.py) and Accelerate 1.15 (commands/config/config_args.py, commands/launch.py);
// tests/interop/import_test.py compares the list of Accelerate with the installed library.
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/yaml_schema.h"
#include "foreign/key_rule.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard::foreign {
namespace {

constexpr char kDeepSpeedKeys[] =
    "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps managed_gradient_accumulation "
    "steps_per_print dump_state disable_allgather communication_data_type seq_parallel_communication_data_type "
    "prescale_gradients gradient_predivide_factor gradient_allreduce_op sparse_gradients zero_optimization "
    "activation_checkpointing comms_logger gradient_clipping fp16 bf16 bfloat16 amp torch_autocast "
    "compression_training "
    "graph_harvesting optimizer scheduler zero_allow_untested_optimizer zero_force_ds_cpu_optimizer flops_profiler "
    "wall_clock_breakdown memory_breakdown autotuning eigenvalue use_data_before_expert_parallelism hybrid_engine "
    "sparse_attention pipeline progressive_layer_drop curriculum_learning data_efficiency checkpoint data_types aio "
    "dataloader_drop_last log_level nebula datastates_ckpt weight_quantization compile timers tensor_parallel "
    "expert_parallel elasticity quantize_training vocabulary_size tensorboard wandb csv_monitor comet "
    "sequence_parallel_size";

constexpr char kZeroKeys[] =
    "stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce allgather_partitions "
    "allgather_bucket_size overlap_comm load_from_fp32_weights elastic_checkpoint offload_param offload_optimizer "
    "zenflow "
    "sub_group_size cpu_offload_param cpu_offload_use_pin_memory cpu_offload prefetch_bucket_size "
    "stage3_prefetch_bucket_size param_persistence_threshold stage3_param_persistence_threshold "
    "model_persistence_threshold stage3_model_persistence_threshold max_live_parameters stage3_max_live_parameters "
    "max_reuse_distance stage3_max_reuse_distance gather_16bit_weights_on_model_save "
    "stage3_gather_16bit_weights_on_model_save module_granularity_threshold stage3_module_granularity_threshold "
    "use_all_reduce_for_fetch_params stage3_use_all_reduce_for_fetch_params allgather_sequential "
    "stage3_allgather_sequential stage3_gather_fp16_weights_on_model_save ignore_unused_parameters legacy_stage1 "
    "round_robin_gradients zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights "
    "zero_quantized_gradients zeropp_loco_param mics_shard_size mics_hierarchical_params_gather "
    "memory_efficient_linear "
    "pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings enable_sanity_checks "
    "save_muon_momentum_buffer_in_memory leaf_module "
    "offload_param.device offload_param.nvme_path offload_param.buffer_count offload_param.buffer_size "
    "offload_param.max_in_cpu offload_param.pin_memory offload_optimizer.device offload_optimizer.nvme_path "
    "offload_optimizer.buffer_count offload_optimizer.pin_memory offload_optimizer.pipeline_read "
    "offload_optimizer.pipeline_write offload_optimizer.fast_init offload_optimizer.ratio "
    "offload_optimizer.super_offload offload_optimizer.cpuadam_cores_perc";

constexpr char kGroupKeys[] =
    "fp16.enabled fp16.auto_cast fp16.loss_scale fp16.initial_scale_power fp16.loss_scale_window fp16.hysteresis "
    "fp16.consecutive_hysteresis fp16.min_loss_scale fp16.fp16_master_weights_and_grads bf16.enabled "
    "bf16.immediate_grad_update bf16.check_grad_overflow bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states "
    "optimizer.type optimizer.params optimizer.legacy_fusion scheduler.type scheduler.params "
    "scheduler.params.warmup_min_lr scheduler.params.warmup_max_lr scheduler.params.warmup_num_steps "
    "scheduler.params.warmup_type scheduler.params.total_num_steps scheduler.params.warmup_min_ratio "
    "scheduler.params.cos_min_ratio checkpoint.tag_validation checkpoint.load_universal "
    "checkpoint.use_node_local_storage checkpoint.parallel_write data_types.grad_accum_dtype data_types.param_dtype "
    "data_types.buffer_dtype tensor_parallel.autotp_size pipeline.stages pipeline.partition pipeline.seed_layers "
    "pipeline.activation_checkpoint_interval pipeline.pipe_partitioned pipeline.grad_partitioned "
    "activation_checkpointing.partition_activations activation_checkpointing.number_checkpoints "
    "activation_checkpointing.contiguous_memory_optimization activation_checkpointing.synchronize_checkpoint_boundary "
    "activation_checkpointing.profile activation_checkpointing.cpu_checkpointing";

constexpr char kAccelerateKeys[] =
    "compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank num_machines "
    "gpu_ids "
    "main_process_ip main_process_port rdzv_backend same_network main_training_function enable_cpu_affinity fp8_config "
    "deepspeed_config fsdp_config parallelism_config megatron_lm_config mpirun_config downcast_bf16 tpu_name tpu_zone "
    "tpu_use_cluster tpu_use_sudo command_file commands tpu_vm tpu_env dynamo_config dynamo_backend fp16";

std::vector<std::string> Split(absl::string_view words) { return absl::StrSplit(words, ' ', absl::SkipEmpty()); }

TEST(KeyTableTest, EveryKeyOfDeepSpeedHasARule) {
  for (const std::string& key : Split(absl::StrCat(kDeepSpeedKeys, " ", kGroupKeys))) {
    EXPECT_NE(FindRule(Dialect::kDeepSpeed, key), nullptr) << key;
  }
  for (const std::string& key : Split(kZeroKeys)) {
    EXPECT_NE(FindRule(Dialect::kDeepSpeed, absl::StrCat("zero_optimization.", key)), nullptr) << key;
  }
}

TEST(KeyTableTest, EveryKeyAtTheTopOfAnAccelerateFileHasARule) {
  for (const std::string& key : Split(kAccelerateKeys)) EXPECT_NE(FindRule(Dialect::kAccelerate, key), nullptr) << key;
}

TEST(KeyTableTest, EachKeyHasExactlyOneRule) {
  for (Dialect dialect :
       {Dialect::kAccelerate, Dialect::kDeepSpeed, Dialect::kTrainingArguments, Dialect::kFsdpConfig}) {
    std::set<absl::string_view> seen;
    for (const KeyRule* rule : RulesOf(dialect)) EXPECT_TRUE(seen.insert(rule->key).second) << rule->key;
  }
}

// Whether a dotted path is one of the schema of jobs.
bool IsJobKey(absl::string_view path) {
  const google::protobuf::Descriptor* message = v1::JobSpec::descriptor();
  for (absl::string_view key : absl::StrSplit(path, '.')) {
    const auto* field = message == nullptr ? nullptr : yaml::FieldOfKey(*message, key);
    if (field == nullptr) return false;
    message = field->message_type();
  }
  return true;
}

TEST(KeyTableTest, EveryRuleNamesKeysOfAJobOrAReason) {
  for (Dialect dialect : {Dialect::kAccelerate, Dialect::kDeepSpeed, Dialect::kTrainingArguments}) {
    for (const KeyRule* rule : RulesOf(dialect)) {
      SCOPED_TRACE(rule->key);
      if (rule->effect != Effect::kSets) {
        EXPECT_FALSE(rule->note.empty());
        continue;
      }
      EXPECT_FALSE(rule->target.empty());
      for (const std::string& key : Split(rule->target)) EXPECT_TRUE(IsJobKey(key)) << key;
    }
  }
}

TEST(KeyTableTest, EveryGroupHasARuleOfItsOwn) {
  for (Dialect dialect : {Dialect::kAccelerate, Dialect::kDeepSpeed, Dialect::kTrainingArguments}) {
    for (const KeyRule* rule : RulesOf(dialect)) {
      const size_t dot = rule->key.rfind('.');
      if (dot == absl::string_view::npos) continue;
      const KeyRule* group = FindRule(dialect, rule->key.substr(0, dot));
      ASSERT_NE(group, nullptr) << rule->key;
      EXPECT_EQ(group->form, Form::kMap) << rule->key;
    }
  }
}

}  // namespace
}  // namespace trainyard::foreign
