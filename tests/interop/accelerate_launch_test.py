"""`trainctl launch --config_file` sets the variables of `accelerate launch`, and a script has the same losses."""

import json
import os
import pathlib
import re
import subprocess
import sys

import harness
import processes
import pytest
import yaml

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
TRAINCTL = harness.BIN / "trainctl"
FSDP = {"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_offload_params": False,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_transformer_layer_cls_to_wrap": "GPT2Block,T5Block",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT", "fsdp_activation_checkpointing": True}
# Files, as `accelerate config` writes them, by name.
FILES = {
    "gpu": {"distributed_type": "MULTI_GPU", "num_processes": 2, "mixed_precision": "bf16", "debug": True},
    "single": {"distributed_type": "NO", "num_processes": 1, "mixed_precision": "no"},
    "cpu": {"distributed_type": "MULTI_CPU", "num_processes": 2, "use_cpu": True, "enable_cpu_affinity": True},
    "compiled": {"distributed_type": "MULTI_GPU", "num_processes": 2,
                 "dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_use_dynamic": True}},
    "fsdp": {"distributed_type": "FSDP", "num_processes": 2, "mixed_precision": "bf16", "fsdp_config": FSDP},
    "fsdp1": {"distributed_type": "FSDP", "num_processes": 2, "fsdp_config": {
        "fsdp_version": 1, "fsdp_sharding_strategy": "SHARD_GRAD_OP", "fsdp_backward_prefetch": "NO_PREFETCH",
        "fsdp_min_num_params": 2000, "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_forward_prefetch": True}},
    "deepspeed": {"distributed_type": "DEEPSPEED", "num_processes": 2, "mixed_precision": "bf16", "deepspeed_config": {
        "zero_stage": 3, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0, "zero3_init_flag": True,
        "offload_optimizer_device": "cpu", "offload_param_device": "none", "zero3_save_16bit_model": True}},
}
# Prints the variables that `accelerate launch` would set for each file in the arguments; calls Accelerate's functions.
VARIABLES = """
import json, os, sys
from accelerate.commands import launch
from accelerate.utils import launch as utils
found = []
for path in sys.argv[1:]:
    os.environ.pop("ACCELERATE_CONFIG_DS_FIELDS", None)
    args = launch.launch_command_parser().parse_args(["--config_file", path, "--main_process_port", "0", "train.py"])
    args, defaults, from_file = launch._validate_launch_command(args)
    if args.use_deepspeed:
        fields = list(defaults.deepspeed_config) + (["mixed_precision"] if from_file else [])
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        env = utils.prepare_deepspeed_cmd_env(args)[1]
    elif args.multi_gpu or args.use_fsdp:
        env = utils.prepare_multi_gpu_env(args)
    else:
        env = utils.prepare_simple_launcher_cmd_env(args)[1]
    found.append({k: v for k, v in env.items() if os.environ.get(k) != v})
print(json.dumps(found))
"""
# Prints the environment of a rank. Only variables with these prefixes differ between the files.
PRINT = "import json, os; print('VARIABLES ' + json.dumps(dict(os.environ)))"
PREFIXES = ("ACCELERATE_", "FSDP_", "KMP_", "CUDA_VISIBLE", "PARALLELISM_")


@pytest.fixture(autouse=True)
def python_of_the_tests(monkeypatch):
    monkeypatch.setenv("PATH", f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)


@pytest.fixture
def files(tmp_path):
    paths = {name: tmp_path / f"{name}.yaml" for name in FILES}
    for name, path in paths.items():
        path.write_text(yaml.safe_dump({"compute_environment": "LOCAL_MACHINE", **FILES[name]}))
    return paths


def launch(folder, *arguments, expect=0):
    processes.start_reaper()
    done = subprocess.run([TRAINCTL, "launch", *map(str, arguments)], capture_output=True, text=True, timeout=240,
                          cwd=folder, stdin=subprocess.DEVNULL)
    assert done.returncode == expect, done
    return done


def accelerate(folder, *arguments):
    """Runs `accelerate launch`. Port 0 requests a free port, because other tests may use the default one."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder, check=True)


def lines(done):
    """Losses and settings, without the prefix that names the rank."""
    return [text for text in (re.sub(r"^\[\w+\]:", "", line) for line in done.stdout.splitlines())
            if text.startswith(("step ", "precision "))]


@pytest.mark.slow
def test_each_file_sets_the_variables_of_accelerate(tmp_path, files):
    done = subprocess.run([sys.executable, "-c", VARIABLES, *map(str, files.values())], capture_output=True, text=True,
                          check=True, timeout=120, cwd=tmp_path)
    theirs = dict(zip(files, json.loads(done.stdout.splitlines()[-1])))
    (tmp_path / "print_variables.py").write_text(PRINT)
    for name, path in files.items():
        shown = launch(tmp_path, "--config_file", path, "print_variables.py").stdout
        ranks = [json.loads(text) for text in re.findall(r"VARIABLES (\{.*\})", shown)]
        ours = {key: value for key, value in ranks[0].items() if key.startswith(PREFIXES)}
        expected = {key: value for key, value in theirs[name].items() if key.startswith(PREFIXES)}
        assert len(ranks) == FILES[name]["num_processes"]
        assert ours == expected, name


@pytest.mark.slow
def test_a_script_of_accelerate_has_the_losses_of_accelerate_launch(tmp_path, monkeypatch, files):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")  # there are no GPUs
    ours = lines(launch(tmp_path, "--config_file", files["gpu"], SCRIPTS / "train_accelerate.py", "--steps", 3))
    theirs = lines(accelerate(tmp_path, "--config_file", files["gpu"], SCRIPTS / "train_accelerate.py", "--steps", 3))

    assert len(ours) == 4 and "of 2" in ours[0] and ours[-1] == "precision bf16 debug true"
    assert ours == theirs


@pytest.mark.slow
def test_flags_win_over_the_file_and_the_output_says_so(tmp_path, files):
    done = launch(tmp_path, "--config-file", files["cpu"], "--num_processes", 1, "--mixed_precision=bf16", "--",
                  SCRIPTS / "train_accelerate.py", "--steps", 1)

    assert "--num_processes 1 replaces num_processes: 2 of" in done.stderr
    assert lines(done)[-1] == "precision bf16 debug None"
    assert "of 1" in lines(done)[0]


@pytest.mark.long
def test_a_file_of_the_wizard_starts_two_ranks_with_accelerate_and_with_us(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")  # there are no GPUs
    subprocess.run([TRAINCTL, "config", "--accelerate", "--yes", "--set", "resources.ranks=2", "--set",
                    "resources.device=cuda", "--set", "train.precision=fp32"], cwd=tmp_path, check=True, timeout=60,
                   capture_output=True)

    ours = lines(launch(tmp_path, "--config_file", "accelerate.yaml", SCRIPTS / "train_accelerate.py"))
    theirs = lines(accelerate(tmp_path, "--config_file", "accelerate.yaml", SCRIPTS / "train_accelerate.py"))

    assert len(ours) == 5 and "of 2" in ours[0]
    assert ours == theirs


@pytest.mark.parametrize("arguments, message", [
    (["--tpu"], "--tpu: Trainyard does not run on TPUs"),
    (["--use_fsdp"], "--use_fsdp: give --config_file"),
    (["--machine_rank", "1"], "--machine_rank 1: launch runs once"),
    (["--cpu", "--multi_gpu"], "either --cpu or --multi_gpu"),
    (["--num_processes", "2", "--nproc-per-node", "2"], "either --nproc-per-node"),
    (["--config_file", "none.yaml"], "none.yaml"),
    (["--config_file", "sagemaker.yaml"], "AMAZON_SAGEMAKER"),
    (["--config_file", "tpu.yaml"], "XLA is not available"),
    (["--config_file", "job.yaml"], "trainctl run"),
    (["--mixed_precision", "fp8"], "fp8 is not set up"),
])
def test_what_is_not_supported_is_refused_by_name(tmp_path, arguments, message):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "sagemaker.yaml").write_text("compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'\n")
    (tmp_path / "tpu.yaml").write_text("distributed_type: XLA\nnum_processes: 8\n")
    (tmp_path / "job.yaml").write_text("name: a\ntrain: {steps: 3}\n")

    done = launch(tmp_path, *arguments, "train.py", expect=2)

    assert message in done.stderr
