#include "foreign/script_launch.h"

#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/escape.h"
#include "foreign/document.h"
#include "foreign/import.h"

namespace trainyard::foreign {
namespace {

// An environment variable that Accelerate sets from a key of a group. `absent`: its value if the file does not have the
// key; if this is empty, too, the variable is not set. `lower`: Accelerate writes the value in lower case.
struct GroupVariable {
  const char* key;
  const char* variable;
  const char* absent;
  bool lower;
};

constexpr GroupVariable kFsdpVariables[] = {
    {"fsdp_config.version", "FSDP_VERSION", "1", false},
    {"fsdp_config.sharding_strategy", "FSDP_SHARDING_STRATEGY", "FULL_SHARD", false},
    {"fsdp_config.reshard_after_forward", "FSDP_RESHARD_AFTER_FORWARD", "true", true},
    {"fsdp_config.offload_params", "FSDP_OFFLOAD_PARAMS", "false", true},
    {"fsdp_config.min_num_params", "FSDP_MIN_NUM_PARAMS", "100000000", false},
    {"fsdp_config.auto_wrap_policy", "FSDP_AUTO_WRAP_POLICY", "", false},
    {"fsdp_config.transformer_layer_cls_to_wrap", "FSDP_TRANSFORMER_CLS_TO_WRAP", "", false},
    {"fsdp_config.backward_prefetch", "FSDP_BACKWARD_PREFETCH", "", false},
    {"fsdp_config.state_dict_type", "FSDP_STATE_DICT_TYPE", "", false},
    {"fsdp_config.forward_prefetch", "FSDP_FORWARD_PREFETCH", "false", true},
    {"fsdp_config.use_orig_params", "FSDP_USE_ORIG_PARAMS", "true", true},
    {"fsdp_config.cpu_ram_efficient_loading", "FSDP_CPU_RAM_EFFICIENT_LOADING", "true", true},
    {"fsdp_config.sync_module_states", "FSDP_SYNC_MODULE_STATES", "true", true},
    {"fsdp_config.activation_checkpointing", "FSDP_ACTIVATION_CHECKPOINTING", "false", true},
    {"fsdp_config.activation_checkpointing_offload", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false", true},
    {"fsdp_config.ignored_modules", "FSDP_IGNORED_MODULES", "", false},
};

constexpr GroupVariable kDeepSpeedVariables[] = {
    {"deepspeed_config.zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE", "", false},
    {"deepspeed_config.gradient_accumulation_steps", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "", false},
    {"deepspeed_config.gradient_clipping", "ACCELERATE_GRADIENT_CLIPPING", "", true},
    {"deepspeed_config.offload_optimizer_device", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "", true},
    {"deepspeed_config.offload_param_device", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "", true},
    {"deepspeed_config.zero3_init_flag", "ACCELERATE_DEEPSPEED_ZERO3_INIT", "", true},
    {"deepspeed_config.zero3_save_16bit_model", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "", true},
    {"deepspeed_config.deepspeed_config_file", "ACCELERATE_DEEPSPEED_CONFIG_FILE", "", false},
    {"deepspeed_config.deepspeed_moe_layer_cls_names", "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", "", false},
};

constexpr GroupVariable kDynamoVariables[] = {
    {"dynamo_config.mode", "ACCELERATE_DYNAMO_MODE", "default", false},
    {"dynamo_config.use_fullgraph", "ACCELERATE_DYNAMO_USE_FULLGRAPH", "False", false},
    {"dynamo_config.use_dynamic", "ACCELERATE_DYNAMO_USE_DYNAMIC", "False", false},
    {"dynamo_config.use_regional_compilation", "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "False", false},
};

// A value as Python's str() writes what PyYAML reads.
std::string PythonText(const yaml::Node& node) {
  const std::string& text = node.text;
  if (IsOneOf(text, "true")) return "True";
  if (IsOneOf(text, "false")) return "False";
  return text;
}

// "A,B" for [A, B]: Accelerate splits the variable FSDP_TRANSFORMER_CLS_TO_WRAP at its commas.
std::string CommaText(const yaml::Node& list) {
  return absl::StrJoin(list.items, ",", [](std::string* out, const yaml::NodePtr& item) {
    if (item->IsScalar()) out->append(item->text);
  });
}

class ScriptLaunchReader {
 public:
  ScriptLaunchReader(const std::string& file_name, const ScriptLaunchFlags& flags, Problems* problems)
      : file_name_(file_name), flags_(flags), problems_(*problems) {}

  ScriptLaunch Read(absl::string_view text) {
    if (text.empty()) {
      type_ = flags_.cpu ? "NO" : "MULTI_GPU";
      SetAccelerate();
      return std::move(launch_);
    }
    const absl::optional<Dialect> dialect = DialectOf(text);
    const yaml::NodePtr root = ParseDocument(text, file_name_, &problems_);
    if (root == nullptr) return std::move(launch_);
    if (dialect == Dialect::kAccelerate) {
      ReadKeys(*root, *dialect, file_name_, &problems_);  // reports unknown keys and values of a wrong form
      Collect(*root, "");
      // Some guides write cpu_offload for offload_params.
      if (Get("fsdp_config.offload_params").empty() && !Get("fsdp_config.cpu_offload").empty()) {
        values_["fsdp_config.offload_params"] = Get("fsdp_config.cpu_offload");
      }
      CheckEnvironment();
      if (problems_.ok()) SetAccelerate();
    } else if (dialect == Dialect::kDeepSpeed) {
      ReadKeys(*root, *dialect, file_name_, &problems_);
      Collect(*root, "");
      if (problems_.ok()) SetDeepSpeedFile();
    } else {
      Error("",
            "has no launch part: expected the YAML of Accelerate or the JSON of DeepSpeed; a job file is run with "
            "`trainctl run`");
    }
    return std::move(launch_);
  }

 private:
  void Error(const std::string& key, absl::string_view text) {
    problems_.Add({.is_warning = false,
                   .position = {.file = file_name_, .line = 0, .column = 0},
                   .path = key,
                   .text = std::string(text)});
  }

  void Collect(const yaml::Node& map, const std::string& parent) {
    for (const auto& [key, value] : map.entries) {
      const std::string canonical = CanonicalKey(parent, key->text);
      if (parent == "deepspeed_config") deepspeed_keys_.push_back(key->text);
      if (value->IsMap() && !value->entries.empty()) groups_[canonical] = true;
      if (value->IsMap()) Collect(*value, canonical);
      if (value->IsScalar() && !value->IsNothing()) values_[canonical] = PythonText(*value);
      if (value->IsList()) values_[canonical] = CommaText(*value);
    }
  }

  // Empty: not given.
  std::string Get(const std::string& key) const {
    const auto at = values_.find(key);
    return at == values_.end() ? "" : at->second;
  }

  bool IsTrue(const std::string& key) const { return IsOneOf(Get(key), "true|yes|on|1"); }

  void CheckEnvironment() {
    const std::string environment = Get("compute_environment");
    if (!environment.empty() && environment != "LOCAL_MACHINE") {
      Error("compute_environment", absl::StrCat("is ", EscapeText(environment),
                                                ": Trainyard runs on hosts with its worker daemon; use LOCAL_MACHINE"));
    }
    type_ = absl::AsciiStrToUpper(Get("distributed_type"));
    if (type_ == "FALSE") type_ = "NO";
    if (type_.empty()) Error("distributed_type", "is required, as in `accelerate launch`");
    if (type_ == "MEGATRON_LM") {
      Error("distributed_type",
            "MEGATRON_LM is not set up for scripts: use `accelerate launch`, or `trainctl import` to make a job");
    } else if (!type_.empty() && !IsOneOf(type_, "NO|MULTI_CPU|MULTI_GPU|FSDP|DEEPSPEED")) {
      Error("distributed_type", absl::StrCat(EscapeText(type_),
                                             " is not available: Trainyard runs on CPUs and NVIDIA "
                                             "GPUs; use MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED"));
    }
    if (flags_.cpu) type_ = "NO";
    if (flags_.multi_gpu) type_ = "MULTI_GPU";
  }

  void Set(absl::string_view name, absl::string_view value) { launch_.env.push_back(absl::StrCat(name, "=", value)); }

  // Returns the value of the flag or, without it, of the file. Adds a note if the flag replaces another value.
  std::string Chosen(const char* name, const std::string& flag) {
    const std::string file = Get(name);
    if (!flag.empty() && !file.empty() && flag != file) {
      launch_.notes.push_back(
          absl::StrCat("--", name, " ", flag, " replaces ", name, ": ", EscapeText(file), " of ", file_name_));
    }
    return flag.empty() ? file : flag;
  }

  void SetCounts() {
    const auto text = [](const absl::optional<int64_t>& flag) { return flag ? absl::StrCat(*flag) : ""; };
    const std::string machines = Chosen("num_machines", text(flags_.num_machines));
    const std::string processes = Chosen("num_processes", text(flags_.num_processes));
    if (!machines.empty() && (!absl::SimpleAtoi(machines, &launch_.num_machines) || launch_.num_machines < 1)) {
      Error("num_machines", absl::StrCat("expected a number of at least 1, found ", EscapeText(machines)));
      launch_.num_machines = 1;
    }
    if (processes.empty()) {
      launch_.num_processes = type_ == "NO" ? 1 : 0;
    } else if (!absl::SimpleAtoi(processes, &launch_.num_processes) || launch_.num_processes < 1 ||
               launch_.num_processes % launch_.num_machines != 0) {
      Error("num_processes", absl::StrCat("expected a multiple of num_machines (", launch_.num_machines, "), found ",
                                          EscapeText(processes), "; --num_processes N replaces it"));
    }
    for (const char* key : {"machine_rank", "main_process_ip", "main_process_port", "rdzv_backend"}) {
      const std::string value = Get(key);
      if (value.empty() || value == "0" || value == "static" || IsOneOf(value, "none|null")) continue;
      launch_.notes.push_back(absl::StrCat(key, ": ", EscapeText(value), " of ", file_name_,
                                           " has no effect: one command starts the ranks of all hosts, and the "
                                           "coordinator connects them"));
    }
  }

  void SetAccelerate() {
    SetCounts();
    if (flags_.debug || IsTrue("debug")) Set("ACCELERATE_DEBUG_MODE", "true");
    const std::string gpus = Chosen("gpu_ids", flags_.gpu_ids);
    if (!gpus.empty() && gpus != "all" && !IsOneOf(gpus, "none|null")) Set("CUDA_VISIBLE_DEVICES", gpus);
    SetPrecision();
    const bool is_simple = type_ == "NO" || type_ == "MULTI_CPU";
    if (is_simple) {
      const bool on_cpu = flags_.cpu || IsTrue("use_cpu");
      Set("ACCELERATE_USE_CPU", on_cpu ? "True" : "False");
      if (on_cpu) {
        Set("KMP_AFFINITY", "granularity=fine,compact,1,0");
        Set("KMP_BLOCKTIME", "1");
      }
    }
    if (type_ != "DEEPSPEED") SetDynamo();
    if (type_ == "FSDP") {
      Set("ACCELERATE_USE_FSDP", "true");
      SetGroup(kFsdpVariables);
      CheckFsdp();
    }
    if (type_ == "DEEPSPEED") SetPlugin();
    if (IsTrue("enable_cpu_affinity")) {
      launch_.notes.push_back(absl::StrCat("enable_cpu_affinity of ", file_name_,
                                           " has no effect, as in Accelerate 1.15; set ACCELERATE_CPU_AFFINITY=1"));
    }
    if (groups_.count("parallelism_config") > 0) {
      Error("parallelism_config", "is not set up for scripts; use `accelerate launch`");
    }
  }

  void SetPrecision() {
    std::string precision = absl::AsciiStrToLower(Chosen("mixed_precision", flags_.mixed_precision));
    if (precision == "false" || precision.empty()) precision = IsTrue("fp16") ? "fp16" : "no";
    if (precision == "fp8") {
      return Error("mixed_precision", "fp8 is not set up for scripts: use `accelerate launch`, or bf16");
    }
    if (!IsOneOf(precision, "no|fp16|bf16")) {
      return Error("mixed_precision", absl::StrCat("expected no, fp16 or bf16, found ", EscapeText(precision)));
    }
    Set("ACCELERATE_MIXED_PRECISION", precision);
  }

  void SetDynamo() {
    const std::string old = Get("dynamo_backend"), grouped = Get("dynamo_config.backend");
    const std::string file = grouped.empty() ? old : grouped;
    std::string backend = absl::AsciiStrToUpper(flags_.dynamo_backend.empty() ? file : flags_.dynamo_backend);
    if (backend.empty() || backend == "FALSE") backend = "NO";
    Set("ACCELERATE_DYNAMO_BACKEND", backend);
    SetGroup(kDynamoVariables);
  }

  template <size_t N>
  void SetGroup(const GroupVariable (&variables)[N]) {
    for (const GroupVariable& each : variables) {
      const std::string value = Get(each.key);
      if (value.empty() && *each.absent == '\0') continue;
      const std::string text = value.empty() ? each.absent : value;
      Set(each.variable, each.lower ? absl::AsciiStrToLower(text) : text);
    }
  }

  void CheckFsdp() {
    const bool is_efficient = !absl::EqualsIgnoreCase(Get("fsdp_config.cpu_ram_efficient_loading"), "false");
    if (is_efficient && absl::EqualsIgnoreCase(Get("fsdp_config.sync_module_states"), "false")) {
      Error("fsdp_config.fsdp_sync_module_states", "must be true with fsdp_cpu_ram_efficient_loading");
    }
  }

  void SetPlugin() {
    if (flags_.mixed_precision.empty() && !Get("mixed_precision").empty()) deepspeed_keys_.push_back("mixed_precision");
    Set("ACCELERATE_CONFIG_DS_FIELDS", absl::AsciiStrToLower(absl::StrJoin(deepspeed_keys_, ",")));
    Set("ACCELERATE_USE_DEEPSPEED", "true");
    SetGroup(kDeepSpeedVariables);
  }

  // The script's own DeepSpeed reads the file.
  void SetDeepSpeedFile() {
    const char* type = IsTrue("fp16.enabled") ? "fp16" : IsTrue("bf16.enabled") ? "bf16" : "no";
    const std::string& flag = flags_.mixed_precision;
    SetCounts();
    if (!flag.empty() && flag != type && Get("fp16.enabled") != "auto" && Get("bf16.enabled") != "auto") {
      launch_.notes.push_back(absl::StrCat("--mixed_precision ", flag, " replaces ", type, " of ", file_name_));
    }
    values_["mixed_precision"] = flag.empty() ? type : flag;
    SetPrecision();
    Set("ACCELERATE_USE_DEEPSPEED", "true");
    Set("ACCELERATE_DEEPSPEED_CONFIG_FILE", file_name_);
  }

  const std::string& file_name_;
  const ScriptLaunchFlags& flags_;
  Problems& problems_;
  ScriptLaunch launch_;
  std::string type_;
  std::map<std::string, std::string> values_;  // scalars and lists, by key of the tables
  std::map<std::string, bool> groups_;         // those that are not empty
  std::vector<std::string> deepspeed_keys_;
};

}  // namespace

ScriptLaunch ReadScriptLaunch(absl::string_view text, const std::string& file_name, const ScriptLaunchFlags& flags,
                              Problems* problems) {
  return ScriptLaunchReader(file_name, flags, problems).Read(text);
}

}  // namespace trainyard::foreign
