"""Files of Accelerate, DeepSpeed and transformers as jobs. Accelerate's own dataclasses write the files; mutations of
them are imported or refused, and nothing is ignored without a reason. The shipped files train as the README says."""

import json
import os
import random
import re
import subprocess
import sys

import harness
import pytest
import yaml

ROOT = harness.ROOT
TRAINCTL = harness.BIN / "trainctl"
IMPORTED = ROOT / "configs" / "imported"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TRAINYARD_COORD")}
GIVEN = ("--model", "lab-tiny", "--set", "train.data.text=[corpus]", "--set", "train.steps=10", "--set",
         "train.batch.global=8")
# Prints the names from which the test makes all keys of a file of Accelerate: the fields of its two dataclasses, and
# all options of `accelerate launch`, because a key of a group such as fsdp_config is an option without its prefix.
KEYS_OF_ACCELERATE = """
import dataclasses, json
from accelerate.commands.config.config_args import ClusterConfig, SageMakerConfig
from accelerate.commands.launch import launch_command_parser
strings = [s for action in launch_command_parser()._actions for s in action.option_strings if s[:2] == '--']
names = sorted({s[2:].replace('-', '_') for s in strings})
print(json.dumps({"fields": [f.name for f in dataclasses.fields(ClusterConfig)], "options": names,
                  "sagemaker": [f.name for f in dataclasses.fields(SageMakerConfig)]}))
"""
# Writes one file for each dictionary of keyword arguments on standard input, as `accelerate config` does.
WRITE_FILES = """
import json, sys
from accelerate.commands.config.config_args import ClusterConfig
for path, arguments in json.load(sys.stdin):
    config = ClusterConfig(**{"compute_environment": "LOCAL_MACHINE", "mixed_precision": "no", "use_cpu": False,
                              "debug": False, **arguments})
    config.to_yaml_file(path)
"""
FSDP2 = {"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_offload_params": False,
         "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_transformer_layer_cls_to_wrap": "GPT2Block",
         "fsdp_state_dict_type": "SHARDED_STATE_DICT", "fsdp_cpu_ram_efficient_loading": True,
         "fsdp_activation_checkpointing": True}
# The arguments of Accelerate's dataclass, and keys of the job that its file becomes.
CONFIGS = {
    "cpu": ({"distributed_type": "MULTI_CPU", "num_processes": 2, "use_cpu": True},
            {"parallel": {"data": "ddp"}, "resources": {"ranks": 2, "device": "cpu"}}),
    "gpu": ({"distributed_type": "MULTI_GPU", "num_processes": 4, "mixed_precision": "fp16", "gpu_ids": "all"},
            {"parallel": {"data": "ddp"}, "resources": {"ranks": 4, "device": "cuda"}}),
    "single": ({"distributed_type": "NO", "num_processes": 1},
               {"parallel": {"data": "ddp"}, "resources": {"ranks": 1}}),
    "hosts": ({"distributed_type": "MULTI_CPU", "num_processes": 8, "num_machines": 2, "machine_rank": 1,
               "main_process_ip": "10.0.0.1", "main_process_port": 29500},
              {"parallel": {"data": "ddp"}, "resources": {"ranks": 8, "device": "cpu"}}),
    "fsdp": ({"distributed_type": "FSDP", "num_processes": 4, "mixed_precision": "bf16", "fsdp_config": FSDP2},
             {"parallel": {"data": "fsdp", "reshard_after_forward": True, "recompute": {"mode": "blocks"},
                           "offload": {"optimizer": False, "parameters": False}},
              "checkpoint": {"format": "sharded"}, "resources": {"ranks": 4}}),
    "fsdp1": ({"distributed_type": "FSDP", "num_processes": 4, "num_machines": 2, "fsdp_config": {
                  "fsdp_version": 1, "fsdp_sharding_strategy": "HYBRID_SHARD", "fsdp_use_orig_params": True,
                  "fsdp_sync_module_states": True, "fsdp_backward_prefetch": "NO_PREFETCH",
                  "fsdp_state_dict_type": "FULL_STATE_DICT"}},
              {"parallel": {"data": "hsdp", "shard": 2, "reshard_after_forward": True, "prefetch_elements": 0},
               "checkpoint": {"format": "full"}, "resources": {"ranks": 4}}),
    "deepspeed": ({"distributed_type": "DEEPSPEED", "num_processes": 2, "mixed_precision": "bf16", "deepspeed_config": {
                      "zero_stage": 3, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0,
                      "offload_optimizer_device": "cpu", "offload_param_device": "none", "zero3_init_flag": True,
                      "zero3_save_16bit_model": True}},
                  {"parallel": {"data": "zero3", "offload": {"optimizer": True}},
                   "checkpoint": {"weights_copy": "bf16"}, "resources": {"ranks": 2}}),
    "megatron": ({"distributed_type": "MEGATRON_LM", "num_processes": 4, "megatron_lm_config": {
                     "megatron_lm_tp_degree": 2, "megatron_lm_pp_degree": 2, "megatron_lm_num_micro_batches": 4,
                     "megatron_lm_use_distributed_optimizer": True, "megatron_lm_gradient_clipping": 1.0,
                     "megatron_lm_sequence_parallelism": False, "megatron_lm_recompute_activations": True}},
                 {"parallel": {"data": "zero1", "tensor": 2, "sequence": False, "pipeline": {"stages": 2},
                               "recompute": {"mode": "selective"}}, "resources": {"ranks": 4}}),
    "parallelism": ({"distributed_type": "FSDP", "num_processes": 4, "fsdp_config": {"fsdp_version": 2},
                     "parallelism_config": {"parallelism_config_dp_replicate_size": 2,
                                            "parallelism_config_dp_shard_size": 2, "parallelism_config_tp_size": 1}},
                    {"parallel": {"data": "hsdp", "replicate": 2, "shard": 2, "tensor": 1}, "resources": {"ranks": 4}}),
    "compiled": ({"distributed_type": "MULTI_CPU", "num_processes": 2, "dynamo_config": {"dynamo_backend": "INDUCTOR"},
                  "mpirun_config": {"mpirun_ccl": "1"}},
                 {"parallel": {"data": "ddp"}, "resources": {"ranks": 2, "device": "cpu"}}),
}


def python(script, text=""):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, "-c", script], input=text, capture_output=True, text=True, check=True,
                          timeout=120, env=environment).stdout


def imported(path, *flags):
    """The exit code and the JSON of `trainctl import`."""
    run = subprocess.run([TRAINCTL, "import", path, "--json", *flags], capture_output=True, text=True, timeout=60,
                         env=ENVIRONMENT)
    assert run.returncode in (0, 2), f"exit code {run.returncode}\n{run.stdout}{run.stderr}"
    return run.returncode, json.loads(run.stdout)


def keys_of(document, parent=""):
    for key, value in document.items():
        yield f"{parent}{key}"
        if isinstance(value, dict):
            yield from keys_of(value, f"{parent}{key}.")


def contains(job, expected):
    return all(contains(job.get(key, {}), value) if isinstance(value, dict) else job.get(key) == value
               for key, value in expected.items())


def check_nothing_is_ignored(document, result):
    """Every key of the document has an outcome: settings, a reason, or an error that names it or its group."""
    outcomes = {row["key"]: row for row in result["keys"]}
    errors = " ".join(problem["key"] + " " + problem["text"] for problem in result["problems"])
    for key in keys_of(document):
        row = outcomes.get(key)
        if row is None:
            # An error names the key, or its group if that is unknown or not a map.
            is_named = any(part in errors for part in key.split("."))
            assert not result["valid"] and is_named, f"{key} was ignored: {result}"
        else:
            assert row["sets"] or row["note"], f"{key} has neither an effect nor a reason"


@pytest.fixture(scope="module")
def accelerate_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accelerate")
    paths = {name: folder / f"{name}.yaml" for name in CONFIGS}
    python(WRITE_FILES, json.dumps([[str(paths[name]), CONFIGS[name][0]] for name in CONFIGS]))
    return paths


def test_every_key_that_accelerate_reads_is_known(tmp_path):
    names = json.loads(python(KEYS_OF_ACCELERATE))
    groups = {"fsdp_config": "fsdp_", "megatron_lm_config": "megatron_lm_", "parallelism_config": "parallelism_config_",
              "dynamo_config": "dynamo_", "fp8_config": "fp8_"}
    deepspeed = [name for name in names["options"] if re.match("zero|offload_(opt|param)|gradient_|deepspeed_", name)]
    document = {name: None for name in {*names["fields"], *names["sagemaker"]}}
    document["deepspeed_config"] = {name: None for name in deepspeed}
    for group, prefix in groups.items():
        document[group] = {name: None for name in names["options"] if name.startswith(prefix)}
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump(document))

    _, result = imported(path)

    unknown = [problem["text"] for problem in result["problems"] if "has no key" in problem["text"]]
    assert unknown == []
    assert len(result["keys"]) > 110


@pytest.mark.parametrize("name", CONFIGS)
def test_a_file_of_accelerates_dataclass_becomes_the_expected_job(accelerate_files, name):
    flags = (*GIVEN, "--set", "train.batch.micro=1") if name not in ("deepspeed", "megatron") else GIVEN

    code, result = imported(accelerate_files[name], *flags)

    assert code == 0, result["problems"]
    assert result["missing"] == []
    job = yaml.safe_load(result["job"])
    assert contains(job, CONFIGS[name][1]), result["job"]
    check_nothing_is_ignored(yaml.safe_load(accelerate_files[name].read_text()), result)


def mutants():
    """Documents of Accelerate with one change each: a misspelt, moved or added key, or another value."""
    rng = random.Random(17)
    values = [None, True, False, -1, 0, 3, 1e9, "auto", "nvme", "cpu", "XLA", "yes", [], {}, ["a"], "2", 0.5,
              "FULL_SHARD"]
    for number in range(60):
        name = rng.choice(list(CONFIGS))
        document = {"compute_environment": "LOCAL_MACHINE", **json.loads(json.dumps(CONFIGS[name][0]))}
        group = rng.choice([document, *[value for value in document.values() if isinstance(value, dict)]])
        key = rng.choice(list(group))
        kind = number % 4
        if kind == 0:
            group[key[:-1] + "x"] = group.pop(key)
        elif kind == 1:
            group[key] = rng.choice(values)
        elif kind == 2:
            document[f"fsdp_{number}"] = rng.choice(values)
        else:
            group[rng.choice(list(CONFIGS["fsdp"][0]) + list(FSDP2) + ["tpu_name", "fp8_config"])] = rng.choice(values)
        yield document


def test_mutated_files_are_imported_or_refused_and_nothing_is_ignored(tmp_path):
    refused = 0
    for number, document in enumerate(mutants()):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(document))

        code, result = imported(path, *GIVEN)

        assert code == (0 if result["valid"] else 2)
        assert result["valid"] or all(row["text"] for row in result["problems"])
        check_nothing_is_ignored(document, result)
        refused += code == 2
    assert 15 < refused < 60


def test_the_written_job_validates_and_one_with_missing_keys_does_not(tmp_path):
    (tmp_path / "corpus").write_text("a line of text\n" * 500)
    complete, incomplete = tmp_path / "complete.yaml", tmp_path / "incomplete.yaml"
    command = [TRAINCTL, "import", IMPORTED / "deepspeed_zero2.json"]
    subprocess.run([*command, *GIVEN, "-o", complete], check=True, capture_output=True, cwd=tmp_path, env=ENVIRONMENT)
    subprocess.run([*command, "-o", incomplete], check=True, capture_output=True, cwd=tmp_path, env=ENVIRONMENT)

    runs = [subprocess.run([TRAINCTL, "validate", path], capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT)
            for path in (complete, incomplete)]

    assert runs[0].returncode == 0, runs[0].stderr
    assert runs[1].returncode == 2 and "train.steps: is required" in runs[1].stderr
    assert "# REQUIRED: steps" in incomplete.read_text()
    again = subprocess.run([*command, "-o", complete], capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT)
    assert again.returncode == 2 and "exists already" in again.stderr


def test_a_file_of_an_unknown_format_is_refused_with_the_names_of_the_known_ones(tmp_path):
    path = tmp_path / "other.yaml"
    path.write_text("colour: blue\n")

    for verb in ("validate", "run", "import"):
        run = subprocess.run([TRAINCTL, verb, path], capture_output=True, text=True, timeout=60, env=ENVIRONMENT)

        assert run.returncode == 2
        assert "neither a job file" in run.stderr and "Accelerate" in run.stderr and "DeepSpeed" in run.stderr


def readme_commands():
    text = (ROOT / "README.md").read_text()
    commands = re.findall(r"^build/bin/(trainctl run configs/imported/(?:.*\\\n)*.*)$", text, re.MULTILINE)
    return {re.search(r"imported/(\w+)", command).group(1): command.replace("\\\n", " ") for command in commands}


@pytest.mark.parametrize("name", ["deepspeed_zero2", "deepspeed_zero3", "fsdp_config"])
def test_the_shipped_file_trains_with_the_command_of_the_readme(cluster, name, tmp_path):
    command = readme_commands()[name].split()[1:]

    run = cluster.run_trainctl(*command, "--json", "--set", f"checkpoint.dir={tmp_path / 'run'}", "--set",
                               "resources.threads_per_rank=1", cwd=ROOT, timeout=120)

    events = harness.events(run.stdout)
    steps = [event for event in events if event.get("event") == "step"]
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(0 < step["loss"] < 10 for step in steps)
    resolved = cluster.run_trainctl("validate", *command[1:], "--resolved", cwd=ROOT).stdout
    job = yaml.safe_load(resolved)
    strategy, precision = {"deepspeed_zero2": ("zero2", "fp16"), "deepspeed_zero3": ("zero3", "fp16"),
                           "fsdp_config": ("fsdp", "bf16")}[name]
    assert (job["parallel"]["data"], job["train"]["precision"]["param"]) == (strategy, precision)
    assert job["resources"]["ranks"] == 2
