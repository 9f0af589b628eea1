// What each key of a foreign file becomes: a row has the text of a file, one of its keys, and the effect of this key on
// the job.
#include <gtest/gtest.h>

#include <ostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/unit/foreign/imported.h"

namespace trainyard::foreign {
namespace {

struct Mapping {
  const char* file;    // the text of the file, with the abbreviations that the test below expands
  const char* key;     // one of its keys
  const char* became;  // Imported::Became
};

std::ostream& operator<<(std::ostream& out, const Mapping& row) { return out << row.file; }

class MappingTest : public testing::TestWithParam<Mapping> {};

TEST_P(MappingTest, SetsTheKeysOfTheJobAndNothingElse) {
  const Mapping& row = GetParam();
  const std::string file = absl::StrReplaceAll(
      row.file, {{"ZERO", "\"zero_optimization\":"},
                 {"FSDP:", "distributed_type: FSDP\nnum_processes: 4\nfsdp_config: {fsdp_version: 2, "},
                 {"DS:", "distributed_type: DEEPSPEED\nnum_processes: 4\ndeepspeed_config: {"},
                 {"MEGATRON:", "distributed_type: MEGATRON_LM\nnum_processes: 4\nmegatron_lm_config: {megatron_lm_"}});

  const Imported imported = Import(file, {"train.model.layers=2", "train.model.heads=2", "train.model.width=16",
                                          "train.model.context=8", "train.data.text=[corpus]", "train.batch.global=8"});

  EXPECT_EQ(imported.Became(row.key), row.became) << imported.Errors();
  for (const Setting& setting : SettingsOf(imported, row.key)) {
    v1::JobSpec expected = imported.job.spec;
    Problems problems;
    SetYamlKey(setting.key, {.text = setting.value, .file_name = "", .working_directory = "/work"}, &expected,
               &problems);
    EXPECT_TRUE(problems.ok()) << problems.ToStatus();
    EXPECT_EQ(WriteYaml(expected), imported.Yaml()) << setting.key << " does not have the value " << setting.value;
  }
}

const Mapping kZeroMappings[] = {
    {R"({ZERO {"stage": 0}})", "zero_optimization.stage", "parallel.data=ddp"},
    {R"({ZERO {"stage": 1}})", "zero_optimization.stage", "parallel.data=zero1"},
    {R"({ZERO {"stage": 2}})", "zero_optimization.stage", "parallel.data=zero2"},
    {R"({ZERO {"stage": 3}})", "zero_optimization.stage", "parallel.data=zero3"},
    {R"({ZERO {}})", "zero_optimization", "parallel.data=ddp"},
    {R"({ZERO {"stage": 2, "reduce_scatter": false}})", "zero_optimization.reduce_scatter",
     "parallel.reduce_scatter=false"},
    {R"({ZERO {"stage": 2, "reduce_bucket_size": 5e8}})", "zero_optimization.reduce_bucket_size",
     "parallel.bucket_elements=500000000"},
    {R"({ZERO {"stage": 2, "reduce_bucket_size": "auto"}})", "zero_optimization.reduce_bucket_size",
     "parallel.bucket_elements=256"},
    {R"({ZERO {"stage": 3, "reduce_bucket_size": 5e8}})", "zero_optimization.reduce_bucket_size",
     "no effect with stage 3, which communicates block by block"},
    {R"({ZERO {"stage": 2, "allgather_partitions": false}})", "zero_optimization.allgather_partitions",
     "parallel.all_gather=false"},
    {R"({ZERO {"stage": 2, "allgather_bucket_size": 2e8}})", "zero_optimization.allgather_bucket_size",
     "parallel.gather_bucket_elements=200000000"},
    {R"({ZERO {"stage": 2, "allgather_bucket_size": "auto"}})", "zero_optimization.allgather_bucket_size",
     "auto is Trainyard's default"},
    {R"({ZERO {"stage": 2, "overlap_comm": false}})", "zero_optimization.overlap_comm", "parallel.overlap=false"},
    {R"({ZERO {"stage": 3, "sub_group_size": 1e9}})", "zero_optimization.sub_group_size",
     "parallel.optimizer_tile_elements=1000000000"},
    {R"({ZERO {"stage": 3, "stage3_prefetch_bucket_size": 0}})", "zero_optimization.stage3_prefetch_bucket_size",
     "parallel.prefetch_elements=0"},
    {R"({ZERO {"stage": 3, "stage3_prefetch_bucket_size": "auto"}})", "zero_optimization.stage3_prefetch_bucket_size",
     "parallel.prefetch_elements=230"},
    {R"({ZERO {"stage": 3, "prefetch_bucket_size": 7}})", "zero_optimization.prefetch_bucket_size",
     "parallel.prefetch_elements=7"},
    {R"({ZERO {"stage": 2, "stage3_prefetch_bucket_size": 7}})", "zero_optimization.stage3_prefetch_bucket_size",
     "no effect with stage 2"},
    {R"({ZERO {"stage": 3, "stage3_param_persistence_threshold": "auto"}})",
     "zero_optimization.stage3_param_persistence_threshold", "parallel.persist_elements=160"},
    {R"({ZERO {"stage": 3, "param_persistence_threshold": 1e5}})", "zero_optimization.param_persistence_threshold",
     "parallel.persist_elements=100000"},
    {R"({ZERO {"stage": 3, "stage3_max_live_parameters": 1e9}})", "zero_optimization.stage3_max_live_parameters",
     "parallel.max_live_elements=1000000000"},
    {R"({ZERO {"stage": 3, "max_live_parameters": 10}})", "zero_optimization.max_live_parameters",
     "parallel.max_live_elements=10"},
    {R"({ZERO {"stage": 3, "stage3_max_reuse_distance": 1e9}})", "zero_optimization.stage3_max_reuse_distance",
     "parallel.reuse_elements=1000000000"},
    {R"({ZERO {"stage": 3, "max_reuse_distance": 9}})", "zero_optimization.max_reuse_distance",
     "parallel.reuse_elements=9"},
    {R"({ZERO {"stage": 3, "stage3_gather_16bit_weights_on_model_save": true}})",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save", "checkpoint.weights_copy=bf16"},
    {R"({"fp16": {"enabled": true}, ZERO {"stage": 3, "gather_16bit_weights_on_model_save": true}})",
     "zero_optimization.gather_16bit_weights_on_model_save", "checkpoint.weights_copy=fp16"},
    {R"({ZERO {"stage": 3, "stage3_gather_fp16_weights_on_model_save": false}})",
     "zero_optimization.stage3_gather_fp16_weights_on_model_save", "checkpoint.weights_copy=none"},
    {R"({ZERO {"stage": 3, "offload_optimizer": {"device": "cpu"}}})", "zero_optimization.offload_optimizer.device",
     "parallel.offload.optimizer=true"},
    {R"({ZERO {"stage": 3, "offload_param": {"device": "cpu"}}})", "zero_optimization.offload_param.device",
     "parallel.offload.parameters=true"},
    {R"({ZERO {"stage": 2, "cpu_offload": true}})", "zero_optimization.cpu_offload", "parallel.offload.optimizer=true"},
    {R"({ZERO {"stage": 3, "cpu_offload_param": true}})", "zero_optimization.cpu_offload_param",
     "parallel.offload.parameters=true"},
    {R"({ZERO {"stage": 3, "zero_hpz_partition_size": 2}})", "zero_optimization.zero_hpz_partition_size",
     "parallel.reshard_after_forward=2"},
    {R"({ZERO {"stage": 3, "mics_shard_size": 2}})", "zero_optimization.mics_shard_size",
     "parallel.data=hsdp parallel.shard=2"},
    {R"({ZERO {"stage": 3, "mics_shard_size": -1}})", "zero_optimization.mics_shard_size", "the value changes nothing"},
    {R"({"tensor_parallel": {"autotp_size": 2}})", "tensor_parallel.autotp_size", "parallel.tensor=2"},
    {R"({"train_batch_size": 8, "pipeline": {"stages": 2}})", "pipeline.stages", "parallel.pipeline.stages=2"},
};
INSTANTIATE_TEST_SUITE_P(Zero, MappingTest, testing::ValuesIn(kZeroMappings));

const Mapping kDeepSpeedMappings[] = {
    {R"({"gradient_clipping": 0.5, "steps_per_print": 1})", "gradient_clipping", "train.optimizer.clip_norm=0.5"},
    {R"({"gradient_clipping": "auto", "steps_per_print": 1})", "gradient_clipping", "train.optimizer.clip_norm=1"},
    {R"({"wall_clock_breakdown": true})", "wall_clock_breakdown", "diagnostics.events=true"},
    {R"({"communication_data_type": "bfp16"})", "communication_data_type", "train.precision.reduce=bf16"},
    {R"({"fp16": {"enabled": true}})", "fp16.enabled", "train.precision.type=fp16"},
    {R"({"fp16": {"enabled": true, "loss_scale": 0}})", "fp16.loss_scale", "train.loss_scale.static=false"},
    {R"({"fp16": {"enabled": true, "loss_scale": 128}})", "fp16.loss_scale",
     "train.loss_scale.static=true train.loss_scale.initial=128"},
    {R"({"fp16": {"enabled": true, "initial_scale_power": 12}})", "fp16.initial_scale_power",
     "train.loss_scale.initial=4096"},
    {R"({"fp16": {"enabled": true, "loss_scale_window": 1000}})", "fp16.loss_scale_window",
     "train.loss_scale.window=1000"},
    {R"({"fp16": {"enabled": true, "hysteresis": 3}})", "fp16.hysteresis", "train.loss_scale.hysteresis=3"},
    {R"({"fp16": {"enabled": true, "min_loss_scale": 2}})", "fp16.min_loss_scale", "train.loss_scale.min=2"},
    {R"({"fp16": {"enabled": false, "min_loss_scale": 2}})", "fp16.min_loss_scale",
     "no effect, because fp16 is not enabled"},
    {R"({"bf16": {"enabled": true}})", "bf16.enabled", "train.precision.type=bf16"},
    {R"({"bfloat16": {"enabled": true}})", "bfloat16.enabled", "train.precision.type=bf16"},
    {R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}})", "bf16.bf16_master_weights_and_grads",
     "train.precision.master=bf16"},
    {R"({"bf16": {"enabled": true, "bf16_optimizer_states": true}})", "bf16.bf16_optimizer_states",
     "train.precision.state=bf16"},
    {R"({"optimizer": {"type": "Adam"}})", "optimizer.type", "train.optimizer.name=adamw"},
    {R"({"optimizer": {"type": "AdamW", "params": {"lr": 3e-5}}})", "optimizer.params.lr", "train.optimizer.lr=3e-05"},
    {R"({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})", "optimizer.params.lr", "train.optimizer.lr=5e-5"},
    {R"({"optimizer": {"type": "AdamW", "params": {"betas": [0.8, 0.99]}}})", "optimizer.params.betas",
     "train.optimizer.betas=[0.8, 0.99]"},
    {R"({"optimizer": {"type": "AdamW", "params": {"eps": 1e-6}}})", "optimizer.params.eps",
     "train.optimizer.eps=1e-06"},
    {R"({"optimizer": {"type": "AdamW", "params": {"weight_decay": 0.01}}})", "optimizer.params.weight_decay",
     "train.optimizer.weight_decay=0.01"},
    {R"({"optimizer": {"type": "AdamW"}})", "optimizer",
     "train.optimizer.lr=0.001 train.optimizer.betas=[0.9, 0.999] train.optimizer.eps=1e-8 "
     "train.optimizer.weight_decay=0 train.optimizer.clip_norm=0 train.schedule.kind=constant"},
    {R"({"optimizer": {"type": "AdamW", "params": {"torch_adam": true}}})", "optimizer",
     "train.optimizer.lr=0.001 train.optimizer.betas=[0.9, 0.999] train.optimizer.eps=1e-8 "
     "train.optimizer.weight_decay=0.01 train.optimizer.clip_norm=0 train.schedule.kind=constant"},
    {R"({"gradient_clipping": 2, "optimizer": {"type": "AdamW"}, "scheduler": {"type": "WarmupCosineLR"}})",
     "optimizer",
     "train.optimizer.lr=0.001 train.optimizer.betas=[0.9, 0.999] train.optimizer.eps=1e-8 "
     "train.optimizer.weight_decay=0"},
    {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "linear", "warmup_num_steps": 5}}})",
     "scheduler.params.warmup_num_steps", "train.schedule.warmup_steps=5"},
    {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "linear", "warmup_num_steps": 5}}})",
     "scheduler.type", "train.schedule.kind=constant train.schedule.formula=transformers"},
    {R"({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear", "warmup_num_steps": 2,
        "warmup_max_lr": 0.01, "total_num_steps": 100}}})",
     "scheduler.type", "train.schedule.kind=linear train.schedule.formula=transformers"},
    {R"({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear", "warmup_num_steps": 2,
        "warmup_max_lr": 0.01, "total_num_steps": 100}}})",
     "scheduler.params.warmup_max_lr", "train.optimizer.lr=0.01"},
    {R"({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear", "warmup_num_steps": 2,
        "warmup_max_lr": 0.01, "total_num_steps": 100}}})",
     "scheduler.params.total_num_steps", "train.steps=100"},
    {R"({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_type": "linear", "cos_min_ratio": 0.25}}})",
     "scheduler.params.cos_min_ratio", "train.schedule.min_ratio=0.25"},
    {R"({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_type": "linear", "warmup_num_steps": 3}}})",
     "scheduler.type",
     "train.schedule.kind=cosine train.schedule.formula=transformers train.schedule.min_ratio=0.0001"},
};
INSTANTIATE_TEST_SUITE_P(DeepSpeed, MappingTest, testing::ValuesIn(kDeepSpeedMappings));

const Mapping kAccelerateMappings[] = {
    {"distributed_type: 'NO'\n", "distributed_type", "parallel.data=ddp resources.ranks=1"},
    {"distributed_type: no\n", "distributed_type", "parallel.data=ddp resources.ranks=1"},
    {"distributed_type: MULTI_CPU\nnum_processes: 2\n", "distributed_type", "resources.device=cpu parallel.data=ddp"},
    {"distributed_type: MULTI_GPU\nnum_processes: 2\n", "distributed_type", "resources.device=cuda parallel.data=ddp"},
    {"distributed_type: MULTI_CPU\nnum_processes: 2\n", "num_processes", "resources.ranks=2"},
    {"distributed_type: FSDP\nuse_cpu: true\n", "use_cpu", "resources.device=cpu"},
    {"distributed_type: FSDP\nuse_cpu: true\n", "distributed_type", "parallel.data=fsdp"},
    {"distributed_type: FSDP\nmixed_precision: bf16\n", "mixed_precision", "train.precision.type=bf16"},
    {"distributed_type: FSDP\nmixed_precision: no\n", "mixed_precision", "train.precision.type=fp32"},
    {"distributed_type: FSDP\nfp16: true\n", "fp16",
     "train.precision.type=fp16 train.loss_scale.window=2000 train.loss_scale.hysteresis=1"},
    {"mixed_precision: fp16\nDS: zero_stage: 1}", "mixed_precision", "train.precision.type=fp16"},
    {"FSDP:}", "fsdp_config.fsdp_version", "parallel.data=fsdp"},
    {"FSDP: fsdp_reshard_after_forward: true}", "fsdp_config.fsdp_reshard_after_forward",
     "parallel.data=fsdp parallel.reshard_after_forward=true"},
    {"FSDP: reshard_after_forward: false}", "fsdp_config.reshard_after_forward",
     "parallel.data=fsdp parallel.reshard_after_forward=false"},
    {"FSDP: fsdp_sharding_strategy: SHARD_GRAD_OP}", "fsdp_config.fsdp_sharding_strategy",
     "parallel.data=fsdp parallel.reshard_after_forward=false"},
    {"FSDP: fsdp_sharding_strategy: 1}", "fsdp_config.fsdp_sharding_strategy",
     "parallel.data=fsdp parallel.reshard_after_forward=true"},
    {"FSDP: fsdp_sharding_strategy: NO_SHARD}", "fsdp_config.fsdp_sharding_strategy", "parallel.data=ddp"},
    {"num_machines: 2\nFSDP: fsdp_sharding_strategy: HYBRID_SHARD}", "fsdp_config.fsdp_sharding_strategy",
     "parallel.data=hsdp parallel.reshard_after_forward=true parallel.shard=2"},
    {"FSDP: fsdp_offload_params: true}", "fsdp_config.fsdp_offload_params",
     "parallel.offload.parameters=true parallel.offload.optimizer=true"},
    {"FSDP: fsdp_cpu_offload: true}", "fsdp_config.fsdp_cpu_offload",
     "parallel.offload.parameters=true parallel.offload.optimizer=true"},
    {"FSDP: fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer}", "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
     "train.model.family=llama"},
    {"FSDP: fsdp_transformer_layer_cls_to_wrap: [GPT2Block]}", "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
     "train.model.family=gpt2"},
    {"FSDP: fsdp_backward_prefetch: NO_PREFETCH}", "fsdp_config.fsdp_backward_prefetch",
     "parallel.prefetch_elements=0"},
    {"FSDP: fsdp_backward_prefetch: BACKWARD_PRE}", "fsdp_config.fsdp_backward_prefetch",
     "one block is gathered ahead by default"},
    {"FSDP: fsdp_state_dict_type: FULL_STATE_DICT}", "fsdp_config.fsdp_state_dict_type", "checkpoint.format=full"},
    {"FSDP: fsdp_state_dict_type: SHARDED_STATE_DICT}", "fsdp_config.fsdp_state_dict_type",
     "checkpoint.format=sharded"},
    {"FSDP: fsdp_activation_checkpointing: true}", "fsdp_config.fsdp_activation_checkpointing",
     "parallel.recompute.mode=blocks"},
    {"FSDP: }\nparallelism_config: {parallelism_config_dp_replicate_size: 2, parallelism_config_dp_shard_size: 2}",
     "parallelism_config.parallelism_config_dp_replicate_size", "parallel.data=hsdp parallel.replicate=2"},
    {"FSDP: }\nparallelism_config: {parallelism_config_dp_replicate_size: 2, parallelism_config_dp_shard_size: 2}",
     "parallelism_config.parallelism_config_dp_shard_size", "parallel.data=hsdp parallel.shard=2"},
    {"FSDP: }\nparallelism_config: {parallelism_config_tp_size: 2, parallelism_config_dp_shard_size: 2}",
     "parallelism_config.parallelism_config_tp_size", "parallel.tensor=2"},
    {"DS: zero_stage: 3}", "deepspeed_config.zero_stage", "parallel.data=zero3"},
    {"DS: zero_stage: 3, gradient_accumulation_steps: 2}", "deepspeed_config.zero_stage",
     "parallel.data=zero3 parallel.reduce_every_micro_batch=true"},
    {"DS: gradient_accumulation_steps: 2}", "deepspeed_config",
     "parallel.data=zero2 parallel.reduce_every_micro_batch=true"},
    {"DS: gradient_accumulation_steps: 2}", "deepspeed_config.gradient_accumulation_steps", "train.batch.micro=1"},
    {"DS: gradient_clipping: 0.5}", "deepspeed_config.gradient_clipping", "train.optimizer.clip_norm=0.5"},
    {"DS: gradient_clipping: 0.5}", "deepspeed_config", "parallel.data=zero2"},
    {"DS: offload_optimizer_device: cpu}", "deepspeed_config.offload_optimizer_device",
     "parallel.offload.optimizer=true"},
    {"DS: offload_param_device: cpu}", "deepspeed_config.offload_param_device", "parallel.offload.parameters=true"},
    {"mixed_precision: fp16\nDS: zero3_save_16bit_model: true}", "deepspeed_config.zero3_save_16bit_model",
     "checkpoint.weights_copy=fp16"},
    {"MEGATRON:tp_degree: 2}", "megatron_lm_config.megatron_lm_tp_degree", "parallel.tensor=2"},
    {"MEGATRON:pp_degree: 2}", "megatron_lm_config.megatron_lm_pp_degree", "parallel.pipeline.stages=2"},
    {"MEGATRON:num_micro_batches: 2}", "megatron_lm_config.megatron_lm_num_micro_batches", "train.batch.micro=1"},
    {"MEGATRON:sequence_parallelism: true}", "megatron_lm_config.megatron_lm_sequence_parallelism",
     "parallel.sequence=true"},
    {"MEGATRON:recompute_activations: true}", "megatron_lm_config.megatron_lm_recompute_activations",
     "parallel.recompute.mode=selective"},
    {"MEGATRON:recompute_granularity: full}", "megatron_lm_config.megatron_lm_recompute_granularity",
     "parallel.recompute.mode=blocks"},
    {"MEGATRON:use_distributed_optimizer: true}", "megatron_lm_config.megatron_lm_use_distributed_optimizer",
     "parallel.data=zero1"},
    {"MEGATRON:gradient_clipping: 2.0}", "megatron_lm_config.megatron_lm_gradient_clipping",
     "train.optimizer.clip_norm=2"},
    {"MEGATRON:optimizer_cpu_offload: true}", "megatron_lm_config.megatron_lm_optimizer_cpu_offload",
     "parallel.offload.optimizer=true"},
};
INSTANTIATE_TEST_SUITE_P(Accelerate, MappingTest, testing::ValuesIn(kAccelerateMappings));

const Mapping kTrainerMappings[] = {
    {R"({"fsdp": true})", "fsdp", "parallel.data=fsdp"},
    {R"({"fsdp": "full_shard auto_wrap offload"})", "fsdp",
     "parallel.data=fsdp parallel.offload.parameters=true parallel.offload.optimizer=true"},
    {R"({"fsdp": ["shard_grad_op"]})", "fsdp", "parallel.data=fsdp parallel.reshard_after_forward=false"},
    {R"({"fsdp": true, "fsdp_config": {"version": 2, "cpu_offload": true}})", "fsdp_config.cpu_offload",
     "parallel.offload.parameters=true parallel.offload.optimizer=true"},
    {R"({"fsdp": true, "fsdp_config": {"fsdp_activation_checkpointing": true}})",
     "fsdp_config.fsdp_activation_checkpointing", "parallel.recompute.mode=blocks"},
    {R"({"fsdp": true, "bf16": true})", "bf16", "train.precision.type=bf16"},
    {R"({"fsdp": true, "fp16": true})", "fp16",
     "train.precision.type=fp16 train.loss_scale.window=2000 train.loss_scale.hysteresis=1"},
    {R"({"fsdp": true, "use_cpu": true})", "use_cpu", "resources.device=cpu"},
    {R"({"fsdp": true, "gradient_checkpointing": true})", "gradient_checkpointing", "parallel.recompute.mode=blocks"},
    {R"({"fsdp": true, "learning_rate": 1e-4})", "learning_rate",
     "train.optimizer.lr=1e-04 train.optimizer.weight_decay=0 train.optimizer.betas=[0.9, 0.999] "
     "train.schedule.kind=linear train.schedule.formula=transformers"},
    {R"({"fsdp": true, "learning_rate": 1e-4, "weight_decay": 0.1, "adam_beta1": 0.8, "lr_scheduler_type": "cosine"})",
     "learning_rate", "train.optimizer.lr=1e-04"},
    {R"({"fsdp": true, "adam_beta1": 0.8})", "adam_beta1", "train.optimizer.betas=[0.8, 0.999]"},
    {R"({"fsdp": true, "adam_beta1": 0.8, "adam_beta2": 0.95})", "adam_beta2", "train.optimizer.betas=[0.8, 0.95]"},
    {R"({"fsdp": true, "lr_scheduler_type": "constant_with_warmup"})", "lr_scheduler_type",
     "train.schedule.kind=constant train.schedule.formula=transformers"},
    {R"({"fsdp": true, "lr_scheduler_type": "linear", "warmup_steps": 5})", "warmup_steps",
     "train.schedule.warmup_steps=5"},
    {R"({"fsdp": true, "lr_scheduler_type": "constant", "warmup_steps": 5})", "warmup_steps",
     "no effect with lr_scheduler_type constant"},
    {R"({"fsdp": true, "weight_decay": 0.1})", "weight_decay", "train.optimizer.weight_decay=0.1"},
    {R"({"fsdp": true, "adam_epsilon": 1e-6})", "adam_epsilon", "train.optimizer.eps=1e-06"},
    {R"({"fsdp": true, "max_grad_norm": 2})", "max_grad_norm", "train.optimizer.clip_norm=2"},
    {R"({"fsdp": true, "max_steps": 50})", "max_steps", "train.steps=50"},
    {R"({"fsdp": true, "seed": 7})", "seed", "train.seed=7"},
    {R"({"fsdp": true, "save_steps": 5})", "save_steps", "checkpoint.every_steps=5 checkpoint.keep=0"},
    {R"({"fsdp": true, "save_steps": 5, "save_total_limit": 2})", "save_steps", "checkpoint.every_steps=5"},
    {R"({"fsdp": true, "save_total_limit": 2})", "save_total_limit", "checkpoint.keep=2"},
    {R"({"fsdp": true, "output_dir": "out"})", "output_dir", "checkpoint.dir=out"},
    {R"({"fsdp": true, "per_device_train_batch_size": 4})", "per_device_train_batch_size", "train.batch.micro=4"},
    {R"({"fsdp": true, "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": true}}})",
     "accelerator_config.gradient_accumulation_kwargs.sync_each_batch", "parallel.reduce_every_micro_batch=true"},
    {R"({"fsdp": true, "gradient_accumulation_steps": 2})", "gradient_accumulation_steps", "train.batch.micro=4"},
    {R"({"fsdp_reshard_after_forward": false, "min_num_params": 0})", "fsdp_reshard_after_forward",
     "parallel.data=fsdp parallel.reshard_after_forward=false"},
    {R"({"version": 2, "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"]})", "transformer_layer_cls_to_wrap",
     "train.model.family=qwen2"},
};
INSTANTIATE_TEST_SUITE_P(TrainingArguments, MappingTest, testing::ValuesIn(kTrainerMappings));

}  // namespace
}  // namespace trainyard::foreign
