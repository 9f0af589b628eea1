"""The lists of `trainctl schedule` equal those of torch.distributed.pipelining, wherever both have the schedule."""

import json
import subprocess
from types import SimpleNamespace
from unittest import mock

import harness
import pytest

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

MAX_MICRO_BATCHES = 24


def lists_of_trainctl(*arguments):
    """{micro-batches: [[action, ...] for each rank], or the error}"""
    numbers = ",".join(map(str, range(1, MAX_MICRO_BATCHES + 1)))
    done = subprocess.run([harness.BIN / "trainctl", "schedule", "--json", "--list", "--micro-batches", numbers,
                           *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {made["micro_batches"]:
            made.get("error") or [[action["action"] for action in rank] for rank in made["ranks"]]
            for made in json.loads(done.stdout)["schedules"]}


def executed_1f1b(stages, stage_index, micro_batches):
    """What Schedule1F1B executes on one stage. Runs its loop with a stage that records its calls and sends nothing."""
    calls = []
    stage = mock.MagicMock(is_first=stage_index == 0, is_last=stage_index == stages - 1, num_stages=stages,
                           stage_index=stage_index, group_size=stages)
    for name in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
        getattr(stage, name).return_value = []
    stage.forward_one_chunk.side_effect = lambda index, *_, **__: calls.append(f"F{index}")
    stage.backward_one_chunk.side_effect = lambda index, **_: calls.append(f"B{index}")
    schedule = schedules.Schedule1F1B(stage, micro_batches)
    inputs = [()] * micro_batches, [{}] * micro_batches
    with mock.patch.object(schedule, "_check_inputs", return_value=inputs), \
         mock.patch.object(schedule, "_initialize_stage"):
        schedule._step_microbatches()
    return calls


def interleaved_lists(stages, chunks, micro_batches):
    """The computations of all ranks as ScheduleInterleaved1F1B plans them on rank 0; every rank makes the same plan."""
    local = [SimpleNamespace(num_stages=stages * chunks, group_size=stages, group_rank=0, stage_index=chunk * stages,
                             is_first=False, is_last=False) for chunk in range(chunks)]
    made = schedules.ScheduleInterleaved1F1B(local, micro_batches)
    letters = {schedules.FORWARD: "F", schedules.FULL_BACKWARD: "B"}
    return [[f"{letters[action.computation_type]}{action.stage_index // stages}.{action.microbatch_index}"
             for action in made.pipeline_order[rank] if action is not None] for rank in range(stages)]


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_1f1b_is_what_torch_executes(stages):
    ours = lists_of_trainctl("--stages", stages, "--schedule", "1f1b")

    for micro_batches in range(stages, MAX_MICRO_BATCHES + 1):  # torch refuses fewer micro-batches than stages
        theirs = [executed_1f1b(stages, stage, micro_batches) for stage in range(stages)]
        assert ours[micro_batches] == theirs, f"{micro_batches} micro-batches"


@pytest.mark.parametrize("chunks", [2, 3])
@pytest.mark.parametrize("stages", [2, 3, 4, 5])
def test_interleaved_is_what_torch_plans(stages, chunks):
    ours = lists_of_trainctl("--stages", stages, "--chunks-per-rank", chunks, "--schedule", "interleaved")

    equal = 0
    for micro_batches in range(1, MAX_MICRO_BATCHES + 1):
        try:
            theirs = interleaved_lists(stages, chunks, micro_batches)
        except ValueError:  # torch cannot divide them into rounds of equal size
            assert "which do not divide" in ours[micro_batches]
            continue
        if "the links have slots for rounds of at most" in ours[micro_batches]:
            rounds = micro_batches // stages
            assert micro_batches // rounds > stages + 1, "a round of stages + 1 micro-batches fits"
            continue
        assert ours[micro_batches] == theirs, f"{micro_batches} micro-batches"
        equal += 1
    assert equal >= MAX_MICRO_BATCHES // stages + stages - 1  # all multiples of `stages`, and all below it
