// The keys at the top of an Accelerate file. block_rules.cc and fsdp_rules.cc have those of its groups.
#include "foreign/key_rule.h"

namespace trainyard::foreign {
namespace {

constexpr absl::string_view kCoordinatorConnects = "the coordinator connects the ranks and knows their hosts";
constexpr absl::string_view kNoTpu = "Trainyard does not run on TPUs; remove the key";
constexpr absl::string_view kNoSageMaker = "Trainyard does not run on SageMaker; remove the key";

constexpr KeyRule kAccelerateRules[] = {
    Refused("compute_environment", Form::kText, "Trainyard runs on hosts with its worker daemon; use LOCAL_MACHINE",
            "LOCAL_MACHINE"),
    Sets("distributed_type", Form::kText, "parallel.data resources.device resources.ranks",
         "NO and MULTI_*: ddp, FSDP: fsdp; zero_stage decides for DEEPSPEED, its group for MEGATRON_LM",
         "NO|MULTI_CPU|MULTI_GPU|FSDP|DEEPSPEED|MEGATRON_LM|MULTI_NPU|MULTI_MLU|MULTI_SDAA|MULTI_MUSA|MULTI_XPU|"
         "MULTI_HPU|MULTI_NEURON|XLA|TPU"),
    Sets("mixed_precision", Form::kText, "train.precision.type train.loss_scale.window train.loss_scale.hysteresis",
         "no is fp32", "no|fp16|bf16|fp8"),
    Sets("fp16", Form::kFlag, "train.precision.type train.loss_scale.window train.loss_scale.hysteresis",
         "the old form of mixed_precision"),
    Sets("use_cpu", Form::kFlag, "resources.device", "true: cpu"),
    Sets("num_processes", Form::kWhole, "resources.ranks", "-1 leaves the number to --set resources.ranks"),
    None("num_machines", Form::kWhole, "the coordinator places the ranks on hosts with free slots", "1"),
    None("machine_rank", Form::kWhole, "one command starts the ranks of all hosts"),
    Refused("gpu_ids", Form::kText,
            "each rank gets a GPU of its own from its host; use all, and give the daemon CUDA_VISIBLE_DEVICES", "all"),
    None("main_process_ip", Form::kText, kCoordinatorConnects),
    None("main_process_port", Form::kWhole, kCoordinatorConnects),
    None("rdzv_backend", Form::kText, kCoordinatorConnects),
    None("same_network", Form::kFlag, kCoordinatorConnects),
    None("main_training_function", Form::kText, "it is the name of a function in a notebook or for a TPU"),
    None("enable_cpu_affinity", Form::kFlag, "resources.threads_per_rank divides the cores among the ranks", "false"),
    None("debug", Form::kFlag, "shapes are always the same on all ranks"),
    None("dynamo_backend", Form::kText, "Trainyard's models are compiled ahead of time", "no"),
    Refused("downcast_bf16", Form::kFlag, "it concerns TPUs; use no", "false"),
    Refused("tpu_name", Form::kText, kNoTpu, "none"),
    Refused("tpu_zone", Form::kText, kNoTpu, "none"),
    Refused("tpu_use_cluster", Form::kFlag, kNoTpu, "false"),
    Refused("tpu_use_sudo", Form::kFlag, kNoTpu, "false"),
    Refused("tpu_vm", Form::kList, kNoTpu, "none|[]"),
    Refused("tpu_env", Form::kList, kNoTpu, "none|[]"),
    Refused("command_file", Form::kText, kNoTpu, "none"),
    Refused("commands", Form::kList, kNoTpu, "none|[]"),
    Refused("ec2_instance_type", Form::kText, kNoSageMaker, ""),
    Refused("iam_role_name", Form::kText, kNoSageMaker, ""),
    Refused("image_uri", Form::kText, kNoSageMaker, ""),
    Refused("profile", Form::kText, kNoSageMaker, ""),
    Refused("region", Form::kText, kNoSageMaker, ""),
    Refused("base_job_name", Form::kText, kNoSageMaker, ""),
    Refused("pytorch_version", Form::kText, kNoSageMaker, ""),
    Refused("transformers_version", Form::kText, kNoSageMaker, ""),
    Refused("py_version", Form::kText, kNoSageMaker, ""),
    Refused("sagemaker_inputs_file", Form::kText, kNoSageMaker, ""),
    Refused("sagemaker_metrics_file", Form::kText, kNoSageMaker, ""),
    Refused("additional_args", Form::kOpaque, kNoSageMaker, ""),
};

}  // namespace

absl::Span<const KeyRule> AccelerateRules() { return kAccelerateRules; }

}  // namespace trainyard::foreign
