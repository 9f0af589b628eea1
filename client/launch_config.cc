#include "client/launch_config.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "common/strict_yaml.h"

namespace trainyard::client {
namespace {

// Flags of Accelerate that request something that `trainctl launch` does not do.
struct RefusedFlag {
  const char* names;
  const char* why;
};
constexpr RefusedFlag kRefusedFlags[] = {
    {"--tpu", "Trainyard does not run on TPUs"},
    {"--use_deepspeed,--use-deepspeed",
     "give --config_file with DeepSpeed's JSON, or with distributed_type: DEEPSPEED"},
    {"--use_fsdp,--use-fsdp",
     "give --config_file with distributed_type: FSDP, which `trainctl config --accelerate` writes"},
    {"--use_megatron_lm,--use-megatron-lm", "Megatron-LM is not set up for scripts; use `accelerate launch`"},
};

// "--a" of "--a,--b".
std::string FirstName(absl::string_view names) { return std::string(names.substr(0, names.find(','))); }

void AddCounts(CLI::App& verb, const std::shared_ptr<AccelerateFlags>& options) {
  verb.add_option_function<int64_t>(
      "--num_processes,--num-processes",
      [options](int64_t count) {
        options->flags.num_processes = count;
        options->for_accelerate = true;
      },
      "Accelerate's flag: the number of ranks on all hosts together");
  verb.add_option_function<int64_t>(
      "--num_machines,--num-machines",
      [options](int64_t count) {
        options->flags.num_machines = count;
        options->for_accelerate = true;
      },
      "Accelerate's flag: the same as --nnodes");
  verb.add_option("--machine_rank,--machine-rank", options->machine_rank, "The same as --node-rank");
  verb.add_option("--num_cpu_threads_per_process,--num-cpu-threads-per-process", options->threads_per_process,
                  "OMP_NUM_THREADS of each rank")
      ->check(CLI::PositiveNumber);
}

void AddText(CLI::App& verb, const std::shared_ptr<AccelerateFlags>& options, const char* names, std::string* text,
             const char* help) {
  verb.add_option_function<std::string>(
      names,
      [options, text](const std::string& value) {
        *text = value;
        options->for_accelerate = true;
      },
      help);
}

void AddSwitch(CLI::App& verb, const std::shared_ptr<AccelerateFlags>& options, const char* names, bool* flag,
               const char* help) {
  verb.add_flag_callback(
      names,
      [options, flag] {
        *flag = true;
        options->for_accelerate = true;
      },
      help);
}

}  // namespace

void AddAccelerateFlags(CLI::App& verb, const std::shared_ptr<AccelerateFlags>& options, LaunchFlags* launch) {
  foreign::ScriptLaunchFlags& flags = options->flags;
  AddText(
      verb, options, "--config_file,--config-file", &options->config_file,
      "Accelerate's YAML or DeepSpeed's JSON: number of ranks, and the variables that Accelerate sets for a script. "
      "Flags override it");
  AddCounts(verb, options);
  AddText(verb, options, "--mixed_precision,--mixed-precision", &flags.mixed_precision, "Precision: no, fp16 or bf16");
  AddText(verb, options, "--dynamo_backend,--dynamo-backend", &flags.dynamo_backend,
          "The backend of torch.compile in the script: no, inductor and so on");
  AddText(verb, options, "--gpu_ids,--gpu-ids", &flags.gpu_ids, "The value of CUDA_VISIBLE_DEVICES, or all");
  AddSwitch(verb, options, "--multi_gpu,--multi-gpu", &flags.multi_gpu,
            "The same as distributed_type: MULTI_GPU in the file");
  AddSwitch(verb, options, "--cpu", &flags.cpu, "The script uses CPUs, even if there are GPUs");
  AddSwitch(verb, options, "--debug", &flags.debug, "Accelerate checks the shapes of its collectives");
  for (const char* names : {"--main_process_ip,--main-process-ip", "--main_process_port,--main-process-port"}) {
    const std::string name = FirstName(names);
    verb.add_option_function<std::string>(
        names, [launch, name](const std::string&) { launch->without_effect.push_back(name); },
        "Has no effect, like --master-addr");
  }
  verb.add_flag_callback(
      "--same_network,--same-network", [launch] { launch->without_effect.push_back("--same_network"); },
      "Has no effect, like --master-addr");
  for (const RefusedFlag& refused : kRefusedFlags) {
    const std::string name = FirstName(refused.names);
    verb.add_flag_callback(
            refused.names,
            [options, name, why = refused.why] { options->refused.push_back(absl::StrCat(name, ": ", why)); })
        ->group("");
  }
}

absl::Status ApplyAccelerateFlags(const AccelerateFlags& options, const std::string& working_directory,
                                  LaunchFlags* launch) {
  std::vector<std::string> problems = options.refused;
  if (options.machine_rank > 0) {
    problems.push_back(absl::StrCat("--machine_rank ", options.machine_rank,
                                    ": launch runs once for all hosts, not on each; run it without --machine_rank"));
  }
  if (options.flags.cpu && options.flags.multi_gpu) problems.push_back("give either --cpu or --multi_gpu, not both");
  if (options.has_ranks && options.flags.num_processes.has_value()) {
    problems.push_back("give either --nproc-per-node (of each host) or --num_processes (of all hosts), not both");
  }
  if (options.has_hosts && options.flags.num_machines.has_value()) {
    problems.push_back("give either --nnodes or --num_machines, not both");
  }
  if (options.has_hosts && options.flags.num_processes.has_value()) {
    problems.push_back(
        "--num_processes (of all hosts) belongs to --num_machines; with --nnodes, give --nproc-per-node (of each "
        "host)");
  }
  if (!problems.empty()) return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
  if (options.threads_per_process > 0)
    launch->env.push_back(absl::StrCat("OMP_NUM_THREADS=", options.threads_per_process));
  if (!options.for_accelerate) return absl::OkStatus();
  launch->for_accelerate = true;
  const std::string path = options.config_file.empty() ? "" : AbsolutePath(options.config_file, working_directory);
  std::string text;
  if (!path.empty()) {
    ASSIGN_OR_RETURN(text, ReadFile(path, kYamlBytesMax));
    if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
  }
  Problems found;
  foreign::ScriptLaunch script = foreign::ReadScriptLaunch(text, path, options.flags, &found);
  RETURN_IF_ERROR(found.ToStatus());
  launch->env.insert(launch->env.end(), script.env.begin(), script.env.end());
  launch->notes = std::move(script.notes);
  if (options.has_hosts || options.has_ranks) {
    if (script.num_processes > 0 && !path.empty()) {
      launch->notes.push_back(absl::StrCat("--nproc-per-node and --nnodes replace the numbers of ", path, " (",
                                           script.num_processes, " processes on ", script.num_machines, " machines)"));
    }
    if (options.flags.num_machines.has_value()) launch->nnodes = absl::StrCat(script.num_machines);
    return absl::OkStatus();
  }
  launch->nnodes = absl::StrCat(script.num_machines);
  if (script.num_processes > 0) {
    launch->nproc_per_node = absl::StrCat(script.num_processes / script.num_machines);
  } else {
    launch->notes.push_back(
        "each host gets one rank, because neither file nor flags give a number; --num_processes N "
        "changes it");
  }
  return absl::OkStatus();
}

}  // namespace trainyard::client
