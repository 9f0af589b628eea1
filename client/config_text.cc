#include "client/config_text.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/text.h"
#include "common/escape.h"
#include "common/status_macros.h"
#include "common/strict_yaml.h"
#include "foreign/import.h"

namespace trainyard::client {
namespace {

constexpr size_t kCommentColumns = 110;

absl::Status IsNotTheDraft(absl::string_view text, absl::string_view why) {
  return absl::InternalError(
      absl::StrCat("the file was not written, because reading it gives another job than your "
                   "answers (",
                   why, "); please report this with the text:\n", text));
}

// The key of a line that WriteYaml has written, as a dotted path. `parents` has the keys of the maps that contain it.
std::string KeyOfLine(absl::string_view line, std::vector<std::string>* parents) {
  const size_t indent = line.find_first_not_of(' ');
  const size_t colon = line.find(':');
  if (indent == absl::string_view::npos || colon == absl::string_view::npos) return "";
  parents->resize(std::min(parents->size(), indent / 2));
  parents->push_back(std::string(line.substr(indent, colon - indent)));
  return absl::StrJoin(*parents, ".");
}

// The keys that a file of Accelerate has, in a form in which the draft and a job from an import can be compared.
std::string ComparedKeys(const v1::JobSpec& spec) {
  v1::JobSpec compared;
  const v1::Parallel& parallel = spec.parallel();
  compared.mutable_resources()->set_ranks(spec.resources().ranks());
  if (spec.resources().has_device()) compared.mutable_resources()->set_device(spec.resources().device());
  compared.mutable_parallel()->set_data(parallel.data());
  compared.mutable_parallel()->mutable_offload()->set_optimizer(parallel.offload().optimizer());
  compared.mutable_parallel()->mutable_offload()->set_parameters(parallel.offload().parameters());
  const bool recomputes = parallel.recompute().mode() == v1::RECOMPUTE_MODE_BLOCKS;
  compared.mutable_parallel()->mutable_recompute()->set_mode(recomputes ? v1::RECOMPUTE_MODE_BLOCKS
                                                                        : v1::RECOMPUTE_MODE_NONE);
  compared.mutable_train()->mutable_precision()->set_type(spec.train().precision().type());
  return WriteYaml(compared);
}

absl::StatusOr<std::string> TypeOf(const v1::JobSpec& spec) {
  const v1::DataParallel data = spec.parallel().data();
  const bool is_cuda = spec.resources().device() == v1::DEVICE_CUDA;
  if (data != v1::DATA_PARALLEL_DDP && is_cuda) {
    return absl::InvalidArgumentError(
        "resources.device: with this strategy, a file of Accelerate cannot require cuda, because Accelerate then uses "
        "GPUs if there are any; use auto or cpu");
  }
  if (data == v1::DATA_PARALLEL_FSDP) return std::string("FSDP");
  if (data != v1::DATA_PARALLEL_DDP) return std::string("DEEPSPEED");
  if (spec.resources().ranks() == 1 && !is_cuda) return std::string("'NO'");
  if (is_cuda) return std::string("MULTI_GPU");
  if (spec.resources().device() == v1::DEVICE_CPU) return std::string("MULTI_CPU");
  return absl::InvalidArgumentError(
      "resources.device: a file of Accelerate cannot describe auto with several ranks and ddp; choose cpu or cuda");
}

// Fails for combinations of values that the keys of Accelerate's file cannot express.
absl::Status CheckExpressible(const v1::JobSpec& spec) {
  const v1::Parallel& parallel = spec.parallel();
  const v1::DataParallel data = parallel.data();
  const auto refuse = [](absl::string_view text) { return absl::InvalidArgumentError(text); };
  if (parallel.recompute().has_mode() && parallel.recompute().mode() != v1::RECOMPUTE_MODE_NONE &&
      (data != v1::DATA_PARALLEL_FSDP || parallel.recompute().mode() != v1::RECOMPUTE_MODE_BLOCKS)) {
    return refuse("parallel.recompute.mode: Accelerate can recompute only blocks, and only with fsdp; remove this key");
  }
  const bool optimizer = parallel.offload().optimizer(), parameters = parallel.offload().parameters();
  if (data == v1::DATA_PARALLEL_DDP && (optimizer || parameters)) {
    return refuse("parallel.offload: Accelerate has no key for offloading with ddp; choose zero1 to zero3 or fsdp");
  }
  if (data == v1::DATA_PARALLEL_FSDP && optimizer != parameters) {
    return refuse("parallel.offload: Accelerate's fsdp offloads optimizer and parameters together; give both or none");
  }
  if (spec.train().precision().type() == v1::PRECISION_FP64) {
    return refuse("train.precision: Accelerate has no key for fp64; choose fp32, bf16 or fp16");
  }
  return absl::OkStatus();
}

std::string DeepSpeedGroup(const v1::JobSpec& spec) {
  const v1::Parallel& parallel = spec.parallel();
  // ddp, zero1, zero2 and zero3 have consecutive numbers, so the difference is the ZeRO stage.
  const int stage = parallel.data() - v1::DATA_PARALLEL_DDP;
  const auto device = [](bool is_cpu) { return is_cpu ? "cpu" : "none"; };
  return absl::StrCat("deepspeed_config:\n  zero_stage: ", stage,
                      "\n  offload_optimizer_device: ", device(parallel.offload().optimizer()),
                      "\n  offload_param_device: ", device(parallel.offload().parameters()),
                      "\n  zero3_init_flag: ", stage == 3 ? "true" : "false", "\n");
}

std::string FsdpGroup(const v1::JobSpec& spec) {
  const v1::Parallel& parallel = spec.parallel();
  const auto flag = [](bool is_on) { return is_on ? "true" : "false"; };
  return absl::StrCat(
      "fsdp_config:\n  fsdp_activation_checkpointing: ", flag(parallel.recompute().mode() == v1::RECOMPUTE_MODE_BLOCKS),
      "\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_cpu_ram_efficient_loading: true\n"
      "  fsdp_offload_params: ",
      flag(parallel.offload().parameters()),
      "\n  fsdp_reshard_after_forward: true\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n  fsdp_version: 2\n");
}

absl::Status CheckImport(const Draft& draft, const std::string& text) {
  Problems problems;
  Positions positions;
  const JobFile file = {.text = text, .file_name = "the file", .working_directory = "", .overrides = {}};
  const foreign::ForeignJob job =
      foreign::ImportFile(file, foreign::Dialect::kAccelerate, nullptr, &problems, &positions);
  if (!problems.ok()) return IsNotTheDraft(text, problems.ToStatus().message());
  const std::string expected = ComparedKeys(draft.spec), found = ComparedKeys(job.spec);
  return found == expected ? absl::OkStatus() : IsNotTheDraft(text, absl::StrCat(expected, "and\n", found));
}

}  // namespace

absl::StatusOr<std::string> JobFileText(const Draft& draft) {
  const std::string yaml = WriteYaml(draft.spec);
  std::string text =
      "# Written by `trainctl config`. `trainctl validate FILE` checks it; proto/trainyard/v1/job.proto documents "
      "every "
      "key.\n";
  std::vector<std::string> parents;
  for (absl::string_view line : absl::StrSplit(yaml, '\n', absl::SkipEmpty())) {
    const auto comment = draft.comments.find(KeyOfLine(line, &parents));
    const std::string indent(line.find_first_not_of(' '), ' ');
    if (comment != draft.comments.end()) {
      for (const std::string& part : WrapText(comment->second, kCommentColumns)) {
        absl::StrAppend(&text, indent, "# ", EscapeText(part), "\n");
      }
    }
    absl::StrAppend(&text, line, "\n");
  }
  Problems problems;
  v1::JobSpec read;
  ReadYaml({.text = text, .file_name = "the file", .working_directory = ""}, &read, &problems);
  if (!problems.ok()) return IsNotTheDraft(text, problems.ToStatus().message());
  // The texts are compared, not the messages, because WriteYaml leaves out the draft's maps without keys.
  if (WriteYaml(read) != yaml) return IsNotTheDraft(text, "some values differ");
  return text;
}

absl::StatusOr<std::string> AccelerateText(const Draft& draft) {
  const v1::JobSpec& spec = draft.spec;
  RETURN_IF_ERROR(CheckExpressible(spec));
  ASSIGN_OR_RETURN(const std::string type, TypeOf(spec));
  const v1::Precision precision = spec.train().precision().type();
  const char* mixed = precision == v1::PRECISION_BF16 ? "bf16" : precision == v1::PRECISION_FP16 ? "fp16" : "'no'";
  const std::string group = type == "FSDP" ? FsdpGroup(spec) : type == "DEEPSPEED" ? DeepSpeedGroup(spec) : "";
  const bool is_cpu = spec.resources().device() == v1::DEVICE_CPU;
  const std::string text = absl::StrCat(
      "# Written by `trainctl config --accelerate`.\ncompute_environment: LOCAL_MACHINE\ndebug: false\n"
      "distributed_type: ",
      type, "\ndowncast_bf16: 'no'\nenable_cpu_affinity: false\n", group,
      "machine_rank: 0\nmain_training_function: main\nmixed_precision: ", mixed,
      "\nnum_machines: 1\nnum_processes: ", spec.resources().ranks(),
      "\nrdzv_backend: static\nsame_network: true\nuse_cpu: ", is_cpu ? "true" : "false", "\n");
  RETURN_IF_ERROR(CheckImport(draft, text));
  return text;
}

}  // namespace trainyard::client
