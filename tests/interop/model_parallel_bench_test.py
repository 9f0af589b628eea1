"""The parts of `./dev bench model-parallel` that decide whether its figures are right: the PyTorch program that it
compares with Trainyard has the same losses however the model is divided, and the idle share of a pipeline is computed
from its traces."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import harness

sys.path.insert(0, str(harness.ROOT / "bench"))

import model_parallel
import pipeline_idle
import sides

PEER = sides.PEERS / "model_parallel_torch.py"
SIZES = ["--layers", 3, "--heads", 4, "--width", 32, "--seq", 16, "--batch", 8, "--micro-batches", 4, "--steps", 6,
         "--warmup", 2, "--losses"]


def losses(program, launcher, *options):
    command = [*launcher, program, "--threads", 1, *options]
    done = subprocess.run([str(part) for part in command], env=dict(os.environ, OMP_NUM_THREADS="1"),
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))["losses"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "text"
    path.write_bytes(bytes(range(256)) * 40 + b"a stage has two neighbours, " * 300)
    return path


@pytest.fixture(scope="module")
def expected(text):
    return losses(PEER, [sys.executable], "--mode", "one", "--data", text, *SIZES)


@pytest.mark.long
def test_one_process_of_the_peer_has_the_losses_of_the_other_benchmarks_without_micro_batches(text, expected):
    sizes = [size for pair in zip(SIZES[::2], SIZES[1::2]) for size in pair if pair[0] != "--micro-batches"]

    program = sides.PEERS / "gpt_torch.py"
    other = losses(program, [sys.executable], "--mode", "eager", "--losses", "--data", text, *sizes)

    assert len(other) == 8 and other[-1] < other[0]
    assert expected == pytest.approx(other, rel=1e-5)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("mode, processes", [("tensor", 2), ("1f1b", 2), ("1f1b", 3), ("gpipe", 2)])
def test_a_divided_model_of_the_peer_has_the_losses_of_one_process(text, expected, mode, processes):
    launcher = [pathlib.Path(sys.executable).with_name("torchrun"), "--nproc-per-node", processes]

    divided = losses(PEER, launcher, "--mode", mode, "--data", text, *SIZES)

    assert divided == pytest.approx(expected, rel=1e-5)


def entry(kind, begin, end, step=1, unit="root"):
    return {"ph": "X", "cat": kind, "ts": begin, "dur": end - begin, "name": f"{kind} {unit}", "args": {"step": step}}


def two_stages(step=1, begin=0):
    """1f1b with two micro-batches: a forward takes 10 us and a backward 20 us; a transfer takes 1 us."""
    def shifted(*passes):
        return [entry(kind, begin + first, begin + last, step) for kind, first, last in passes]

    first = shifted(("forward", 0, 10), ("forward", 10, 20), ("backward", 42, 62), ("backward", 73, 93))
    second = shifted(("forward", 11, 21), ("backward", 21, 41), ("forward", 41, 51), ("backward", 51, 71))
    return first, second


def test_the_idle_share_counts_all_time_between_the_first_and_the_last_pass_of_any_stage():
    first, second = two_stages()
    units = [entry("forward", 1, 5, unit="h.0"), entry("forward", 5, 9, unit="h.1")]  # parts of a pass
    warm_up, also = two_stages(step=0, begin=-1000)

    idle = pipeline_idle.idle_in([{"traceEvents": first + units + warm_up}, {"traceEvents": second + also}], 1, 2)

    assert idle.share == pytest.approx(1 - 120 / (2 * 93))
    assert idle.forward == pytest.approx([10e-6, 10e-6]) and idle.backward == pytest.approx([20e-6, 20e-6])


def test_traces_that_lack_a_pass_or_a_step_are_refused():
    first, second = two_stages()

    with pytest.raises(sides.MeasurementFailed, match="2 forward and backward passes of stage 1 in step 1"):
        pipeline_idle.idle_in([{"traceEvents": first}, {"traceEvents": second[:-1]}], 1, 2)
    with pytest.raises(sides.MeasurementFailed, match="no step 5 or later"):
        pipeline_idle.idle_in([{"traceEvents": first}, {"traceEvents": second}], 5, 2)


def test_the_simulated_share_for_equal_stages_is_that_of_the_formula():
    idle = pipeline_idle.Idle(0, [1e-2, 1e-2], [2e-2, 2e-2])

    assert pipeline_idle.simulated_share(idle, "1f1b", 8) == pytest.approx(1 / 9)


def test_every_row_has_its_measurements_and_both_sides_have_equal_steps():
    measures = model_parallel.make_measures("unused")

    for row in model_parallel.make_rows():
        assert set(row.measures) <= set(measures), row.name
    for *_, ours, other in model_parallel.RATIOS:
        shapes = [{**model_parallel.OURS, **model_parallel.PEERS}[name][0] for name in (ours, other)]
        assert shapes[0] == shapes[1], (ours, other)


def test_runs_with_different_losses_are_not_compared():
    compare = model_parallel.compare_speeds("tensor", "ddp")
    runs = {"tensor": sides.Measured(900, 0, 1, last_loss=2.5), "ddp": sides.Measured(1000, 0, 1, last_loss=2.5001)}

    assert compare(runs) == (900, 1000, 0.9)
    with pytest.raises(sides.MeasurementFailed, match="they have not trained the same model"):
        compare({**runs, "ddp": sides.Measured(1000, 0, 1, last_loss=2.6)})


def test_an_unknown_row_is_refused_with_its_name():
    done = subprocess.run([sys.executable, harness.ROOT / "bench" / "model_parallel.py", "tenser"], capture_output=True,
                          text=True, timeout=60)

    assert done.returncode == 2
    assert "unknown row: tenser" in done.stderr
