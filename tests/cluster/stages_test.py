"""Faults of ranks that have a part of the model: a pipeline stage, a tensor rank, or both.

A killed or stopped rank restarts the group, and no loss changes.
"""

import os
import signal

import pytest

import faulty_trainers
import harness
from hang_test import first_decision

STEPS = {"train__steps": 150, "checkpoint__every_steps": 20, "train__evaluate": {"every_steps": 75, "batches": 2},
         "train__batch": {"global": 8, "micro": 2}, "train__model__layers": 2}
LAYOUTS = {
    "pipeline": {"resources__ranks": 2, "parallel__pipeline__stages": 2},
    "tensor": {"resources__ranks": 2, "parallel__tensor": 2},
    "both": {"resources__ranks": 4, "parallel__pipeline__stages": 2, "parallel__tensor": 2, "parallel__data": "zero1"},
}


# The (layout, killed rank) and the layouts with a stopped rank that ./dev test runs; the others are marked long.
KILLED = {("pipeline", 1), ("tensor", 0)}
STOPPED = {"both"}


def marked(layouts):
    """Returns the test parameters for the keys of `layouts`: names of layouts, or pairs of a layout and a rank. A key
    whose value is false is marked long, so ./dev test does not run it."""
    return [pytest.param(*key if isinstance(key, tuple) else (key,), marks=() if is_short else pytest.mark.long)
            for key, is_short in layouts.items()]


@pytest.fixture(scope="module")
def layout(request, tmp_path_factory, stubs):
    """The keys of a layout, and {step: loss} of its undisturbed run."""
    keys = {**STEPS, **LAYOUTS[request.param]}
    cluster = harness.Cluster(tmp_path_factory.mktemp("undisturbed"), stubs)
    try:
        cluster.start_coordinator()
        cluster.start_worker("h1", slots=4)
        job = cluster.submit(run_folder=cluster.folder / "run", **keys)
        view = cluster.wait_for_end(job)
        assert view.state_name == "SUCCEEDED", view.job.reason
        return keys, harness.metrics_steps(cluster.folder / "run")
    finally:
        cluster.close()


@pytest.fixture
def host(cluster, tmp_path):
    """A host whose jobs cannot end before the test has acted: they are slow until it clears the faults."""
    host = faulty_trainers.FaultyHost(cluster, tmp_path)
    host.start(slots=4)
    host.slow_down()
    return host


def check_restarted_once(host, job, run_folder, expected):
    host.clear_faults()
    view = host.cluster.wait_for_end(job)
    assert view.state_name == "SUCCEEDED", view.job.reason
    assert (view.job.restarts, view.job.generation) == (1, 2)
    assert harness.metrics_steps(run_folder) == expected


@pytest.mark.slow
@pytest.mark.parametrize("layout, rank", marked({(name, rank): (name, rank) in KILLED for name in LAYOUTS
                                                  for rank in (0, 1)}), indirect=["layout"])
def test_a_killed_rank_restarts_the_group_and_changes_no_loss(host, tmp_path, layout, rank):
    keys, expected = layout
    job = host.cluster.submit(run_folder=tmp_path / "run", **keys)
    view = host.cluster.wait_for_step(job, 30)

    os.kill(view.pid_of(rank), signal.SIGKILL)

    check_restarted_once(host, job, tmp_path / "run", expected)


@pytest.mark.slow
@pytest.mark.parametrize("layout", marked({name: name in STOPPED for name in LAYOUTS}), indirect=True)
def test_a_stopped_rank_is_named_and_changes_no_loss(host, tmp_path, layout):
    keys, expected = layout
    job = host.cluster.submit(run_folder=tmp_path / "run", **keys)
    view = host.cluster.wait_for_step(job, 30)

    os.kill(view.pid_of(1), signal.SIGSTOP)
    text = first_decision(host.cluster, job)

    assert text.startswith("rank 1 on h1 is stopped (SIGSTOP, state T)"), text
    check_restarted_once(host, job, tmp_path / "run", expected)
