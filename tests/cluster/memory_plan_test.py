"""`trainctl validate --memory` predicts what the ledger of a rank measures."""

import json
import subprocess

import harness
import pytest

JOB = """
name: planned
train:
  model: {layers: 6, heads: 4, width: 128, context: 128}
  data: {text: [TEXT]}
  batch: {global: 8, micro: 4}
  steps: 4
resources: {ranks: 2, threads_per_rank: 1}
"""
STATE = ("parameters", "gradients", "optimizer")


def trainctl(*arguments, cwd):
    done = subprocess.run([harness.BIN / "trainctl", *map(str, arguments)], capture_output=True, text=True, cwd=cwd,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


LLAMA = {"train.model.family": "llama", "train.model.kv_heads": 2}
PROJECTIONS = "targets: [c_attn, attn.c_proj, c_fc, mlp.c_proj]"
CASES = {
    "ddp": {},
    "zero1": {"parallel.data": "zero1"},
    "zero2": {"parallel.data": "zero2"},
    "zero3": {"parallel.data": "zero3"},
    "fsdp": {"parallel.data": "fsdp"},
    "fsdp_of_two_micro_batches": {"parallel.data": "fsdp", "train.batch.micro": 2},
    "zero2_of_two_micro_batches": {"parallel.data": "zero2", "train.batch.micro": 2},
    "llama_fsdp": {"parallel.data": "fsdp", **LLAMA},
    "llama_bf16": {"train.precision": "bf16", **LLAMA},
    "recompute": {"parallel.recompute": "blocks"},
    "recompute_selective": {"parallel.recompute": "selective", "parallel.data": "zero2"},
    "large_vocabulary": {"train.model.vocabulary": 16384},
    "dropout": {"train.model.dropout": 0.1},
    "dropout_recompute": {"train.model.dropout": 0.1, "parallel.recompute": "blocks"},
    "tensor": {"parallel.tensor": 2},
    "tensor_llama": {"parallel.tensor": 2, **LLAMA},
    "sequence": {"parallel.tensor": 2, "parallel.sequence": "true"},
    "tensor_fsdp": {"parallel.tensor": 2, "parallel.data": "fsdp", "resources.ranks": 4},
    # Rank 0, whose memory is measured, holds the larger stage.
    "pipeline": {"parallel.pipeline": "{stages: 2, split: [4, 2]}", "train.batch.micro": 1},
    "pipeline_gpipe": {"parallel.pipeline": "{stages: 2, schedule: gpipe, split: [4, 2]}", "train.batch.micro": 1},
    "frozen": {"train.freeze": '["h.0.*", "h.1.*", "wte.weight"]'},
    "frozen_first_blocks": {"train.freeze": '["h.0.*", "h.1.*", "wte.weight", "wpe.weight"]'},
    "adapters": {"train.lora": f"{{rank: 64, {PROJECTIONS}}}"},
    "adapters_dropout": {"train.lora": f"{{rank: 8, dropout: 0.1, {PROJECTIONS}}}"},
    "adapters_fsdp": {"train.lora": f"{{rank: 8, {PROJECTIONS}}}", "parallel.data": "fsdp"},
    "adapters_recompute": {"train.lora": f"{{rank: 8, {PROJECTIONS}}}", "parallel.recompute": "blocks"},
    "adapters_selective": {"train.lora": "{rank: 8}", "parallel.recompute": "selective", **LLAMA},
    "adapters_of_one_block": {"train.lora": "{rank: 8, targets: ['h.3.*']}"},
    "offload": {"parallel.data": "fsdp", "parallel.offload": "{optimizer: true, parameters: true}"},
}


# The cases that ./dev test runs; the others are marked long.
SHORT = {"ddp", "zero2", "llama_fsdp", "llama_bf16", "recompute_selective", "tensor_fsdp", "pipeline",
         "adapters_recompute", "offload"}


@pytest.mark.parametrize("changes", [pytest.param(changes, id=name, marks=() if name in SHORT else pytest.mark.long)
                                     for name, changes in CASES.items()])
def test_planned_memory_is_within_5_percent_of_what_a_rank_uses(tmp_path, changes):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 2000)
    job = tmp_path / "job.yaml"
    job.write_text(JOB.replace("TEXT", str(text)))
    sets = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]

    plan = json.loads(trainctl("validate", job, "--memory", "--json", *sets, cwd=tmp_path))["memory"]

    lines = trainctl("run", job, "--json", *sets, "--set", f"checkpoint.dir={tmp_path}/run", cwd=tmp_path).splitlines()
    measured = [event["memory"] for event in map(json.loads, lines) if event.get("memory")][-1]
    peak = sum(measured[kind]["peak_bytes"] for kind in (*STATE, "activations"))
    planned = plan["device_total_bytes"]
    print(f"planned {planned / 1e6:.2f} MB, measured {peak / 1e6:.2f} MB, {planned / peak - 1:+.1%}")
    assert planned == pytest.approx(peak, rel=0.05)
    assert plan["host_bytes"] == pytest.approx(measured["host"]["bytes"], rel=0.05)


def test_a_plan_of_memory_names_each_part_and_reads_no_data_of_the_job(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(JOB.replace("TEXT", "/not/on/this/machine.txt"))

    out = trainctl("validate", job, "--memory", cwd=tmp_path)

    assert "1239040 parameters, 2 ranks" in out
    for name in ("parameters", "gathered", "gradients", "optimizer", "activations", "scores", "device total", "host"):
        assert f"\n{name} " in out


def test_a_plan_of_memory_says_for_which_device_it_is(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(JOB.replace("TEXT", "/not/on/this/machine.txt"))

    for device, planned in (("auto", "cpu"), ("cpu", "cpu"), ("cuda", "cuda")):
        command = ["validate", job, "--memory", "--set", f"resources.device={device}"]
        assert ("--set resources.device=cuda" in trainctl(*command, cwd=tmp_path)) == (device == "auto")
        assert json.loads(trainctl(*command, "--json", cwd=tmp_path))["memory_device"] == planned
