"""Trains on a GPU as a user does, and compares with the same job on a CPU. Skipped with a reason if there is no GPU."""

import pathlib
import subprocess

import harness
import pytest

JOB = pathlib.Path(__file__).resolve().parents[2] / "configs" / "jobs" / "lab-10m.yaml"
STEPS = 20


def find_gpus():
    """Returns the GPUs that the driver lists, one line each, and the reason to report if there are none."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return [], "nvidia-smi is not installed"
    lines = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    output = (listed.stdout + listed.stderr).strip().splitlines()
    return lines, f"the last line of nvidia-smi is '{output[-1]}'" if output else "nvidia-smi lists nothing"


def losses_of(cluster, device, *settings):
    flags = ["--set", f"resources.device={device}", "--set", "resources.ranks=1", "--set", f"train.steps={STEPS}",
             "--set", f"train.data.text=[{cluster.text}]", "--set", "train.evaluate.every_steps=0",
             "--set", "checkpoint.every_steps=10", "--set", f"checkpoint.dir={cluster.folder / device}"]
    for setting in settings:
        flags += ["--set", setting]
    done = cluster.run_trainctl("run", JOB, *flags, "--json", timeout=900)
    lines = harness.events(done.stdout)
    assert (lines[-1]["event"], lines[-1]["state"]) == ("done", "SUCCEEDED")
    return harness.steps_of(lines)


@pytest.fixture
def gpu():
    listed, reason_for_none = find_gpus()
    if not listed:
        pytest.skip(f"no GPU: {reason_for_none}")
    return listed[0]


@pytest.mark.slow
def test_lab_10m_on_a_gpu_has_the_losses_of_the_cpu(cluster, gpu):
    on_cpu = losses_of(cluster, "cpu")

    on_gpu = losses_of(cluster, "cuda")

    assert sorted(on_gpu) == list(range(1, STEPS + 1)), gpu
    for step, loss in on_cpu.items():
        assert on_gpu[step] == pytest.approx(loss, rel=1e-4), f"step {step} on {gpu}"


@pytest.mark.slow
@pytest.mark.parametrize("settings", [["parallel.data=fsdp"], ["train.precision=bf16"], ["train.precision=fp16"],
                                      ["parallel.recompute.mode=blocks"], ["parallel.offload.optimizer=true"]])
def test_lab_10m_trains_on_a_gpu(cluster, gpu, settings):
    losses = losses_of(cluster, "cuda", *settings)

    assert sorted(losses) == list(range(1, STEPS + 1)), gpu
    assert losses[STEPS] < losses[1], gpu
