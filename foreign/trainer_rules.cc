// The keys of TrainingArguments that a JSON file with `fsdp` may have. Other arguments are unknown keys.
#include "foreign/key_rule.h"

namespace trainyard::foreign {
namespace {

constexpr KeyRule kTrainerRules[] = {
    Sets("fsdp", Form::kList, "parallel.data parallel.reshard_after_forward parallel.offload.parameters",
         "true, or words: full_shard shard_grad_op hybrid_shard hybrid_shard_zero2 no_shard offload auto_wrap"),
    Block("accelerator_config"),
    None("accelerator_config.non_blocking", Form::kFlag,
         "batches are always copied from pinned memory in the background"),
    Refused("accelerator_config.split_batches", Form::kFlag,
            "per_device_train_batch_size would be the batch of all ranks; use false, and divide it by their number",
            "false"),
    Block("accelerator_config.gradient_accumulation_kwargs"),
    Sets("accelerator_config.gradient_accumulation_kwargs.sync_each_batch", Form::kFlag,
         "parallel.reduce_every_micro_batch", "true: gradients are reduced after each micro-batch"),
    Refused("accelerator_config.gradient_accumulation_kwargs.num_steps", Form::kWhole,
            "set gradient_accumulation_steps instead", ""),
    None("accelerator_config.gradient_accumulation_kwargs.adjust_scheduler", Form::kFlag,
         "schedules count optimizer steps"),
    None("accelerator_config.gradient_accumulation_kwargs.sync_with_dataloader", Form::kFlag,
         "every step has train.batch.global sequences"),
    None("accelerator_config.dispatch_batches", Form::kFlag, "each rank reads its own samples", "false"),
    None("accelerator_config.even_batches", Form::kFlag, "every step has train.batch.global sequences"),
    None("accelerator_config.use_seedable_sampler", Form::kFlag, "the order of samples depends on train.seed alone"),
    None("dataloader_pin_memory", Form::kFlag, "batches are always copied from pinned memory in the background"),
    None("dataloader_drop_last", Form::kFlag, "every step has train.batch.global sequences"),
    None("dataloader_num_workers", Form::kWhole, "each rank reads a batch when a step needs it"),
    Sets("per_device_train_batch_size", Form::kWhole, "train.batch.micro train.batch.global",
         "the global batch is micro x accumulation x data ranks"),
    Sets("gradient_accumulation_steps", Form::kWhole, "train.batch.global train.batch.micro",
         "the global batch is micro x accumulation x data ranks"),
    Sets("learning_rate", Form::kNumber, "train.optimizer.lr",
         "what the file leaves out of optimizer and schedule gets the defaults of transformers"),
    Sets("lr_scheduler_type", Form::kText, "train.schedule.kind train.schedule.formula", "",
         "linear|cosine|constant|constant_with_warmup|inverse_sqrt"),
    Sets("warmup_steps", Form::kWhole, "train.schedule.warmup_steps"),
    Sets("weight_decay", Form::kNumber, "train.optimizer.weight_decay"),
    Sets("adam_beta1", Form::kNumber, "train.optimizer.betas"),
    Sets("adam_beta2", Form::kNumber, "train.optimizer.betas"),
    Sets("adam_epsilon", Form::kNumber, "train.optimizer.eps"),
    Sets("max_grad_norm", Form::kNumber, "train.optimizer.clip_norm"),
    Sets("max_steps", Form::kWhole, "train.steps", "-1 leaves the number to --set train.steps"),
    Sets("seed", Form::kWhole, "train.seed"),
    Sets("bf16", Form::kFlag, "train.precision.type"),
    Sets("fp16", Form::kFlag, "train.precision.type train.loss_scale.window train.loss_scale.hysteresis"),
    Sets("use_cpu", Form::kFlag, "resources.device", "true: cpu"),
    Sets("gradient_checkpointing", Form::kFlag, "parallel.recompute.mode"),
    Sets("save_steps", Form::kWhole, "checkpoint.every_steps checkpoint.keep",
         "all checkpoints are kept, unless save_total_limit is given"),
    Sets("save_total_limit", Form::kWhole, "checkpoint.keep"),
    Sets("output_dir", Form::kText, "checkpoint.dir"),
    None("logging_steps", Form::kOpaque, "metrics.jsonl has every step"),
    Refused("deepspeed", Form::kOpaque, "import the DeepSpeed file itself", ""),
};

}  // namespace

absl::Span<const KeyRule> TrainerRules() { return kTrainerRules; }

}  // namespace trainyard::foreign
