#include "worker/link/spec_config.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "spec/job_layout.h"
#include "spec/model_sizes.h"
#include "trainyard/v1/job.pb.h"

namespace trainyard {
namespace {

absl::Status Missing(absl::string_view key) {
  return absl::InvalidArgumentError(
      absl::StrCat("the resolved spec has no ", key, ": it must be decided before trainers are started"));
}

// Refuses texts with a zero byte: the operating system would end a path there, which could lead to a file other than
// the one that was checked. With `check_enums`, also refuses values of enums that this program does not know: it would
// read them as the default. A newer coordinator accepts them.
absl::Status CheckFields(const google::protobuf::Message& message, const std::string& path, bool check_enums) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    const std::string at = path.empty() ? field->name() : absl::StrCat(path, ".", field->name());
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->message_type() != nullptr) {
        RETURN_IF_ERROR(CheckFields(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                         : reflection.GetMessage(message, field),
                                    at, check_enums));
      } else if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_STRING) {
        const std::string text = field->is_repeated() ? reflection.GetRepeatedString(message, field, i)
                                                      : reflection.GetString(message, field);
        if (text.find('\0') == std::string::npos) continue;
        return absl::InvalidArgumentError(absl::StrCat(at, " '", absl::CHexEscape(text), "' holds a zero byte"));
      } else if (check_enums && field->enum_type() != nullptr) {
        const int number = field->is_repeated() ? reflection.GetRepeatedEnumValue(message, field, i)
                                                : reflection.GetEnumValue(message, field);
        if (field->enum_type()->FindValueByNumber(number) != nullptr) continue;
        return absl::InvalidArgumentError(absl::StrCat(at, " has the value ", number, ", which version ", kVersion,
                                                       " does not know: install the coordinator's version of "
                                                       "trainyard on this host"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Parse(absl::string_view bytes, v1::JobSpec& spec, bool check_enums) {
  if (spec.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return CheckFields(spec, "", check_enums);
  return absl::InvalidArgumentError(absl::StrCat("the ", bytes.size(), " bytes of the spec are not a JobSpec"));
}

absl::Status ReadModel(const v1::Train& train, TrainConfig& out) {
  const v1::Model& model = train.model();
  if (!model.has_layers()) return Missing("train.model.layers");
  if (!model.has_heads()) return Missing("train.model.heads");
  if (!model.has_width()) return Missing("train.model.width");
  if (!model.has_context()) return Missing("train.model.context");
  if (!v1::ModelFamily_IsValid(model.family())) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.model.family is ", static_cast<int>(model.family()), ", which this program does not know"));
  }
  out.model = SizesOf(train);
  out.init_from = model.init_from();
  out.model_path = model.path();
  out.model_config = model.config();
  out.lora_path = train.lora().path();
  out.lora_config = train.lora().config();
  return absl::OkStatus();
}

TrainConfig::LrScheduleKind ScheduleKindOf(v1::ScheduleKind kind) {
  switch (kind) {
    case v1::SCHEDULE_KIND_LINEAR:
      return TrainConfig::LrScheduleKind::kLinear;
    case v1::SCHEDULE_KIND_CONSTANT:
      return TrainConfig::LrScheduleKind::kConstant;
    case v1::SCHEDULE_KIND_INVERSE_SQRT:
      return TrainConfig::LrScheduleKind::kInverseSqrt;
    case v1::SCHEDULE_KIND_WSD:
      return TrainConfig::LrScheduleKind::kWsd;
    default:
      return TrainConfig::LrScheduleKind::kCosine;
  }
}

void ReadSchedule(const v1::Train& train, TrainConfig& out) {
  const v1::Schedule& schedule = train.schedule();
  TrainConfig::LrSchedule& lr = out.lr_schedule;
  lr.kind = ScheduleKindOf(schedule.kind());
  lr.zero_based = schedule.formula() == v1::SCHEDULE_FORMULA_TRANSFORMERS;
  lr.warmup_steps = schedule.warmup_steps();
  if (schedule.has_min_ratio()) lr.min_ratio = schedule.min_ratio();
  lr.decay_steps = schedule.decay_steps();
  if (schedule.decay() == v1::DECAY_SHAPE_LINEAR) lr.decay = TrainConfig::DecayShape::kLinear;
  if (schedule.decay() == v1::DECAY_SHAPE_SQRT) lr.decay = TrainConfig::DecayShape::kSqrt;
  lr.timescale = schedule.timescale();
}

absl::Status ReadOptimizer(const v1::Train& train, TrainConfig& out) {
  const v1::Optimizer& optimizer = train.optimizer();
  if (optimizer.has_lr()) out.optimizer.lr = optimizer.lr();
  if (optimizer.betas_size() == 2) {
    out.optimizer.beta1 = optimizer.betas(0);
    out.optimizer.beta2 = optimizer.betas(1);
  } else if (optimizer.betas_size() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.optimizer.betas has ", optimizer.betas_size(), " values, not 2"));
  }
  if (optimizer.has_eps()) out.optimizer.eps = optimizer.eps();
  if (optimizer.has_weight_decay()) out.optimizer.weight_decay = optimizer.weight_decay();
  if (optimizer.has_clip_norm()) out.optimizer.clip_norm = optimizer.clip_norm();
  out.optimizer.clip_value = optimizer.clip_value();

  ReadSchedule(train, out);
  return absl::OkStatus();
}

TrainConfig::Switch SwitchOf(v1::Switch value) {
  if (value == v1::SWITCH_ON) return TrainConfig::Switch::kOn;
  if (value == v1::SWITCH_OFF) return TrainConfig::Switch::kOff;
  return TrainConfig::Switch::kAuto;
}

const char* NameOf(v1::Precision type) {
  switch (type) {
    case v1::PRECISION_FP64:
      return "fp64";
    case v1::PRECISION_BF16:
      return "bf16";
    case v1::PRECISION_FP16:
      return "fp16";
    default:
      return "fp32";
  }
}

void ReadPrecision(const v1::Train& train, TrainConfig& out) {
  const v1::PrecisionPolicy& policy = train.precision();
  out.precision = {.param = NameOf(policy.param()),
                   .reduce = NameOf(policy.reduce()),
                   .output = NameOf(policy.output()),
                   .master = NameOf(policy.master()),
                   .state = NameOf(policy.state())};
  const v1::LossScale& scale = train.loss_scale();
  if (scale.has_initial()) out.loss_scale.initial = scale.initial();
  if (scale.has_window()) out.loss_scale.window = scale.window();
  if (scale.has_backoff()) out.loss_scale.backoff = scale.backoff();
  if (scale.has_hysteresis()) out.loss_scale.hysteresis = scale.hysteresis();
  if (scale.has_min()) out.loss_scale.min = scale.min();
  out.loss_scale.is_static = scale.static_();
  if (train.has_nonfinite_limit()) out.nonfinite_limit = train.nonfinite_limit();
}

// Reads what the data consists of and how it becomes tokens.
void ReadForm(const v1::Data& data, TrainConfig& out) {
  out.data.text.assign(data.text().begin(), data.text().end());
  out.data.jsonl.assign(data.jsonl().begin(), data.jsonl().end());
  const v1::DataFields& fields = data.fields();
  out.data.fields = {.text = fields.text(),
                     .prompt = fields.prompt(),
                     .response = fields.response(),
                     .input_ids = fields.input_ids(),
                     .labels = fields.labels(),
                     .label = fields.label(),
                     .messages = fields.messages()};
  out.data.tokenizer_path = data.tokenizer_path();
}

absl::Status ReadData(const v1::Data& data, TrainConfig& out) {
  ReadForm(data, out);
  if (data.text().empty() && data.jsonl().empty() && data.tokens().empty() && data.csv().empty()) {
    return Missing("train.data.text, train.data.jsonl, train.data.tokens or train.data.csv");
  }
  out.data.loss_on_prompts = data.loss() == v1::DATA_LOSS_ALL;
  out.data.chat_template = data.chat_template();
  out.data.tokens.assign(data.tokens().begin(), data.tokens().end());
  out.data.csv.assign(data.csv().begin(), data.csv().end());
  out.data.weights.assign(data.weights().begin(), data.weights().end());
  out.data.held_out.assign(data.held_out().begin(), data.held_out().end());
  out.data.separate_documents = data.separate_documents();
  out.data.joins_uneven = data.uneven() == v1::UNEVEN_DATA_JOIN;
  if (data.has_validation()) out.data.validation = data.validation();
  return absl::OkStatus();
}

absl::Status ReadTrain(const v1::Train& train, TrainConfig& out) {
  RETURN_IF_ERROR(ReadModel(train, out));
  RETURN_IF_ERROR(ReadData(train.data(), out));
  out.freeze.assign(train.freeze().begin(), train.freeze().end());
  if (!train.batch().has_global_size()) return Missing("train.batch.global");
  if (!train.batch().has_micro()) return Missing("train.batch.micro");
  out.batch_global = train.batch().global_size();
  out.batch_micro = train.batch().micro();
  out.batch_length = SequenceLength(train);
  if (!train.has_steps()) return Missing("train.steps");
  out.steps = train.steps();
  if (train.has_seed()) out.seed = train.seed();
  ReadPrecision(train, out);
  out.evaluate_every = train.evaluate().every_steps();
  if (train.evaluate().has_batches()) out.evaluate_batches = train.evaluate().batches();
  out.evaluate_patience = train.evaluate().patience();
  out.evaluate_min_delta = train.evaluate().min_delta();
  return ReadOptimizer(train, out);
}

// Names as in the job file.
std::string StrategyNameOf(v1::DataParallel strategy) {
  switch (strategy) {
    case v1::DATA_PARALLEL_ZERO1:
      return "zero1";
    case v1::DATA_PARALLEL_ZERO2:
      return "zero2";
    case v1::DATA_PARALLEL_ZERO3:
      return "zero3";
    case v1::DATA_PARALLEL_FSDP:
      return "fsdp";
    case v1::DATA_PARALLEL_HSDP:
      return "hsdp";
    default:
      return "ddp";
  }
}

const char* RecomputeNameOf(v1::RecomputeMode mode) {
  if (mode == v1::RECOMPUTE_MODE_BLOCKS) return "blocks";
  return mode == v1::RECOMPUTE_MODE_SELECTIVE ? "selective" : "none";
}

TrainConfig::Parallel ParallelOf(const v1::Parallel& parallel) {
  TrainConfig::Parallel out;
  out.strategy = StrategyNameOf(parallel.data());
  out.shard = static_cast<int>(parallel.shard());
  out.replicate = static_cast<int>(parallel.replicate());
  if (parallel.has_bucket_elements()) out.bucket_elements = static_cast<int64_t>(parallel.bucket_elements());
  if (parallel.has_overlap()) out.overlap = parallel.overlap();
  if (parallel.has_reduce_scatter()) out.reduce_scatter = parallel.reduce_scatter();
  out.reduce_every_micro_batch = parallel.reduce_every_micro_batch();
  // 0 means `true`, 1 `false`; see job.proto.
  out.reshard_after_forward = parallel.reshard_after_forward() != 1;
  const bool shards_parameters = parallel.data() == v1::DATA_PARALLEL_ZERO3 ||
                                 parallel.data() == v1::DATA_PARALLEL_FSDP || parallel.data() == v1::DATA_PARALLEL_HSDP;
  if (shards_parameters && parallel.reshard_after_forward() > 1) {
    out.reshard_to = static_cast<int>(parallel.reshard_after_forward());
  }
  if (parallel.has_gather_bucket_elements()) {
    out.gather_bucket_elements = static_cast<int64_t>(parallel.gather_bucket_elements());
  }
  if (parallel.has_all_gather()) out.all_gather = parallel.all_gather();
  out.persist_elements = static_cast<int64_t>(parallel.persist_elements());
  if (parallel.has_prefetch_elements()) out.prefetch_elements = static_cast<int64_t>(parallel.prefetch_elements());
  if (parallel.has_max_live_elements()) out.max_live_elements = static_cast<int64_t>(parallel.max_live_elements());
  out.reuse_elements = static_cast<int64_t>(parallel.reuse_elements());
  out.recompute = RecomputeNameOf(parallel.recompute().mode());
  if (parallel.has_optimizer_tile_elements()) {
    out.optimizer_tile_elements = static_cast<int64_t>(parallel.optimizer_tile_elements());
  }
  out.offload_optimizer = parallel.offload().optimizer();
  out.offload_parameters = parallel.offload().parameters();
  if (parallel.recompute().has_every()) out.recompute_every = static_cast<int>(parallel.recompute().every());
  const v1::Pipeline& pipeline = parallel.pipeline();
  out.tensor = static_cast<int>(std::max(parallel.tensor(), 1u));
  out.sequence = parallel.sequence();
  out.stages = static_cast<int>(std::max(pipeline.stages(), 1u));
  out.schedule = std::string(ScheduleName(KindOf(pipeline.schedule())));
  out.chunks_per_rank = static_cast<int>(ChunksPerRank(pipeline));
  out.split.assign(pipeline.split().begin(), pipeline.split().end());
  return out;
}

TrainConfig::Probe ProbeOf(const v1::Probe& probe) {
  TrainConfig::Probe out;
  if (probe.has_matmul_size()) out.matmul_size = probe.matmul_size();
  if (probe.has_matmul_repeats()) out.matmul_repeats = probe.matmul_repeats();
  if (probe.has_all_reduce_bytes()) out.all_reduce_bytes = static_cast<int64_t>(probe.all_reduce_bytes());
  return out;
}

// Jobs that an earlier version accepted have only the former name of the key, mkl_avx512.
TrainConfig::ProductKernels ProductKernelsOf(const v1::Resources& resources) {
  const v1::ProductKernels value = resources.product_kernels();
  const v1::Switch former = resources.has_product_kernels() ? v1::SWITCH_UNSPECIFIED : resources.mkl_avx512();
  if (value == v1::PRODUCT_KERNELS_MKL_INTEL || former == v1::SWITCH_ON) return TrainConfig::ProductKernels::kMklIntel;
  if (value == v1::PRODUCT_KERNELS_MKL || former == v1::SWITCH_OFF) return TrainConfig::ProductKernels::kMkl;
  return TrainConfig::ProductKernels::kAuto;
}

}  // namespace

absl::StatusOr<TrainConfig> ModelConfigFromSpec(absl::string_view spec_bytes) {
  v1::JobSpec spec;
  RETURN_IF_ERROR(Parse(spec_bytes, spec, /*check_enums=*/false));
  TrainConfig config;
  RETURN_IF_ERROR(ReadModel(spec.train(), config));
  ReadPrecision(spec.train(), config);
  ReadForm(spec.train().data(), config);
  return config;
}

absl::StatusOr<TrainConfig> ConfigFromSpec(absl::string_view spec_bytes) {
  v1::JobSpec spec;
  RETURN_IF_ERROR(Parse(spec_bytes, spec, /*check_enums=*/true));
  TrainConfig config;
  config.job_name = spec.name();
  if (spec.resources().device() == v1::DEVICE_CUDA) config.device = TrainConfig::Device::kCuda;
  config.product_kernels = ProductKernelsOf(spec.resources());
  if (spec.has_probe()) {
    config.probe = ProbeOf(spec.probe());
    return config;
  }
  RETURN_IF_ERROR(ReadTrain(spec.train(), config));
  config.parallel = ParallelOf(spec.parallel());
  config.reverse_micro_batches = spec.diagnostics().reverse_micro_batches();
  config.events = spec.diagnostics().events();
  config.hash_every_steps = spec.diagnostics().hash_every_steps();
  config.shared_memory = SwitchOf(spec.network().shared_memory());
  config.checkpoint_dir = spec.checkpoint().dir();
  if (config.checkpoint_dir.empty()) return Missing("checkpoint.dir");
  config.checkpoint_every = spec.checkpoint().every_steps();
  if (spec.checkpoint().has_keep()) config.checkpoint_keep = spec.checkpoint().keep();
  config.checkpoint_keep_every = spec.checkpoint().keep_every();
  config.checkpoint_keep_best = spec.checkpoint().keep_best();
  config.allow_data_change = spec.checkpoint().allow_data_change();
  config.checkpoint_full = spec.checkpoint().format() == v1::CHECKPOINT_FORMAT_FULL;
  config.checkpoint_full_optimizer = spec.checkpoint().full_optimizer();
  if (spec.checkpoint().weights_copy() == v1::WEIGHTS_COPY_BF16) config.checkpoint_copy = "BF16";
  if (spec.checkpoint().weights_copy() == v1::WEIGHTS_COPY_FP16) config.checkpoint_copy = "F16";
  if (spec.checkpoint().has_timeout_s()) config.checkpoint_timeout_s = spec.checkpoint().timeout_s();
  if (spec.checkpoint().has_last_save_retry_s()) {
    config.checkpoint_last_save_retry_s = spec.checkpoint().last_save_retry_s();
  }
  config.checkpoint_write_bytes_per_s = spec.checkpoint().write_bytes_per_s();
  return config;
}

}  // namespace trainyard
