"""Tensor and pipeline parallelism as a user runs it: each shipped job has the losses of one process, and what
`validate` and `status` say about its layout is true."""

import json
import pathlib

import harness
import pytest

JOBS = pathlib.Path(__file__).resolve().parents[2] / "configs" / "jobs"
STEPS = 3
# (stages, data ranks, tensor ranks) of each shipped job.
LAYOUTS = {"tensor": (1, 1, 2), "pipeline": (2, 1, 1), "2d": (2, 2, 1), "3d": (2, 2, 2), "3d-zero1": (2, 2, 2)}
ONE_PROCESS = ["resources.ranks=1", "parallel={data: ddp, tensor: 1, pipeline: 1}"]


def losses_of(cluster, name, *settings):
    flags = [f"train.steps={STEPS}", f"train.data.text=[{cluster.text}]", "resources.threads_per_rank=1", *settings]
    sets = [part for flag in flags for part in ("--set", flag)]
    done = cluster.run_trainctl("run", JOBS / f"{name}.yaml", "--json", *sets, timeout=300)
    lines = harness.events(done.stdout)
    assert (lines[-1]["event"], lines[-1]["state"]) == ("done", "SUCCEEDED")
    return harness.steps_of(lines)


# The README's commands, which another test runs, train each of these jobs too, without a comparison.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensor", "3d-zero1", *(pytest.param(name, marks=pytest.mark.long)
                                                          for name in ("pipeline", "2d", "3d"))])
def test_shipped_job_trains_with_the_losses_of_one_process(cluster, name):
    alone = losses_of(cluster, name, *ONE_PROCESS)

    losses = losses_of(cluster, name)

    assert sorted(losses) == list(range(1, STEPS + 1))
    assert losses[STEPS] < losses[1], "the loss did not fall, so the comparison is worthless"
    for step, loss in losses.items():
        assert loss == pytest.approx(alone[step], rel=1e-6), f"step {step}"


def test_zero1_with_offload_in_a_pipeline_has_the_losses_of_one_process(cluster):
    alone = losses_of(cluster, "2d", *ONE_PROCESS)

    losses = losses_of(cluster, "2d", "parallel.data=zero1", "parallel.offload={optimizer: true}")

    assert losses == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("name", LAYOUTS)
def test_validate_shows_the_layout_of_a_shipped_job(cluster, name):
    stages, data_ranks, tensor = LAYOUTS[name]
    flags = ["--set", f"train.data.text=[{cluster.text}]"]

    text = cluster.run_trainctl("validate", JOBS / f"{name}.yaml", *flags).stdout
    layout = json.loads(cluster.run_trainctl("validate", JOBS / f"{name}.yaml", "--json", *flags).stdout)["layout"]

    ranks = stages * data_ranks * tensor
    assert f"stages {stages} x data ranks {data_ranks} x tensor {tensor} = {ranks} ranks" in text
    assert (layout["stages"], layout["data_ranks"], layout["tensor"]) == (stages, data_ranks, tensor)
    assert [len(chunks) for chunks in layout["blocks"]] == [1] * stages
    if stages > 1:
        count = layout["micro_batches"]
        assert layout["bubble_share"] == pytest.approx((stages - 1) / (count + stages - 1))
        assert f"bubble {100 * layout['bubble_share']:.1f} %" in text
        assert f" x {count} x {data_ranks} = " in text


def test_the_map_of_ranks_has_pipelines_and_tensor_groups(cluster):
    done = cluster.run_trainctl("validate", JOBS / "3d.yaml", "--set", f"train.data.text=[{cluster.text}]")

    assert "0      embedding, blocks 0-1  0+1 | 2+3\n" in done.stdout
    assert "1      blocks 2-3, head       4+5 | 6+7\n" in done.stdout


def test_status_shows_the_stage_and_tensor_rank_of_each_rank(cluster):
    flags = [f"train.data.text=[{cluster.text}]", "train.steps=2", "resources.threads_per_rank=1"]
    cluster.start_coordinator()
    cluster.start_worker("h1", slots=8)
    job = cluster.trainctl("submit", JOBS / "3d.yaml", *[part for flag in flags for part in ("--set", flag)])
    job = job.stdout.strip()
    cluster.wait_for_end(job)

    status = json.loads(cluster.trainctl("status", job, "--json").stdout)

    assert [(rank["stage"], rank["data_rank"], rank["tensor_rank"]) for rank in status["ranks"]] == \
        [(stage, data, tensor) for stage in range(2) for data in range(2) for tensor in range(2)]
    assert status["layout"]["schedule"] == "1f1b"
