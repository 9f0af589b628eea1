"""Groups that stand still: the rank that holds them up is named with how it does so, and they go on as if nothing had
been.

A rank is stopped with SIGSTOP. One that spins, or waits in a system call, is made so by a library (hang_fault.c) that
its trainer is started with: trainers themselves have no switch for that.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

import harness
import processes

# Steps short enough that the time to name a rank is that of the rule, not of the step.
LONG = {"train__steps": 1500, "checkpoint__every_steps": 50, "train__evaluate": {"every_steps": 500, "batches": 2}}
# Rule: 5 s and two steps; bar: 10 s and two steps.
BAR_S = 10.5


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, stubs):
    """{step: loss} of the long job with nothing going wrong."""
    processes.start_following()
    cluster = harness.Cluster(tmp_path_factory.mktemp("undisturbed"), stubs)
    try:
        cluster.start_coordinator()
        cluster.start_worker("h1", slots=2)
        job = cluster.submit(run_folder=cluster.folder / "run", **LONG)
        assert cluster.wait_for_end(job).state_name == "SUCCEEDED"
        return harness.metrics_steps(cluster.folder / "run")
    finally:
        cluster.close()


@pytest.fixture
def faulty_host(cluster, tmp_path):
    """A coordinator and a daemon with two slots whose rank 1 does what the file `fault` in its folder says."""
    programs = tmp_path / "programs"
    programs.mkdir()
    library = programs / "hang_fault.so"
    source = pathlib.Path(__file__).with_name("hang_fault.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", source, "-o", library, "-ldl"], check=True)
    for name in ("trainyard-worker", "trainyard-shim"):
        shutil.copy2(harness.BIN / name, programs / name)
    trainer = programs / "trainyard-trainer"
    trainer.write_text(f"""#!/bin/sh
if [ "$RANK" = 1 ]; then export LD_PRELOAD={library} HANG_FAULT={tmp_path}/fault; fi
exec {harness.BIN}/trainyard-trainer "$@"
""")
    trainer.chmod(0o755)
    cluster.start_coordinator()
    hosts = cluster._server_info().hosts
    cluster.start("worker-h1", [programs / "trainyard-worker", "--coordinator", cluster.coordinator.address,
                                "--slots", 2, "--name", "h1", "--state", tmp_path / "worker-h1", "--metrics", "",
                                "--health", ""])
    harness.wait_until(lambda: cluster._server_info().hosts > hosts, "worker h1 attaches")
    return cluster


def decisions(cluster, job, rule="hang"):
    """Texts of what was decided by this rule, in order."""
    request = cluster.stubs.service.ListEventsRequest(job_id=job)
    told = cluster.jobs.ListEvents(request, timeout=10).events
    return [event.notice.text for event in told if event.HasField("notice") and event.notice.rule == rule]


def first_decision(cluster, job, rule="hang", seconds=20.0):
    what = f"a decision by the rule {rule} of job {job}"
    return harness.wait_until(lambda: decisions(cluster, job, rule), what, seconds)[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_is_named_and_the_losses_are_those_of_an_undisturbed_run(one_host, tmp_path, undisturbed, rank):
    job = one_host.submit(run_folder=tmp_path / "run", **LONG)
    view = one_host.wait_for_step(job, 120)

    os.kill(view.pid_of(rank), signal.SIGSTOP)
    began = time.monotonic()

    text = first_decision(one_host, job)
    took = time.monotonic() - began
    assert took < BAR_S, f"named after {took:.1f} s: {text}"
    assert re.match(rf"rank {rank} on h1 is stopped \(SIGSTOP, state T\) and was not seen to enter \S+ \d+ \(.*\) of "
                    r"step \d+, in which 1 rank waits; no progress for", text), text
    view = one_host.wait_for_end(job)
    assert view.state_name == "SUCCEEDED", view.job.reason
    assert (view.job.restarts, view.job.generation) == (1, 2)
    assert harness.metrics_steps(tmp_path / "run") == undisturbed
    assert len(decisions(one_host, job)) == 1


def test_notify_leaves_a_stopped_rank_alone_and_tells_when_it_goes_on(one_host, tmp_path, undisturbed):
    job = one_host.submit(run_folder=tmp_path / "run", recovery__on_hang="notify", **LONG)
    view = one_host.wait_for_step(job, 120)

    os.kill(view.pid_of(1), signal.SIGSTOP)
    text = first_decision(one_host, job)
    assert "rank 1 on h1 is stopped" in text and "left alone" in text, text
    assert one_host.get(job).state_name == "RUNNING"
    os.kill(view.pid_of(1), signal.SIGCONT)

    view = one_host.wait_for_end(job)
    assert view.state_name == "SUCCEEDED", view.job.reason
    assert (view.job.restarts, view.job.generation) == (0, 1)
    assert harness.metrics_steps(tmp_path / "run") == undisturbed
    told = decisions(one_host, job)
    assert len(told) == 2 and "the ranks go on after" in told[1], told


@pytest.mark.parametrize("fault, how", [("spin", r"spinning \(CPU share \d\.\d\d, state R\)"),
                                        ("block", r"blocked in the system call (pause|ppoll) \(state S\)( \[.*\])?")])
def test_a_rank_that_never_enters_a_collective_is_named_with_what_it_does(faulty_host, tmp_path, undisturbed, fault,
                                                                          how):
    job = faulty_host.submit(run_folder=tmp_path / "run", **LONG)
    faulty_host.wait_for_step(job, 120)

    (tmp_path / "fault").write_text(fault)
    began = time.monotonic()
    text = first_decision(faulty_host, job)
    took = time.monotonic() - began
    (tmp_path / "fault").unlink()

    assert took < BAR_S, f"named after {took:.1f} s: {text}"
    expected = rf"rank 1 on h1 is {how} and has not entered \S+ \d+ \(.*\) of step \d+, in which 1 rank waits"
    assert re.match(expected, text), text
    view = faulty_host.wait_for_end(job)
    assert view.state_name == "SUCCEEDED", view.job.reason
    assert view.job.restarts == 1
    assert harness.metrics_steps(tmp_path / "run") == undisturbed


def test_a_straggler_is_named_and_nothing_is_done_about_it(faulty_host, tmp_path):
    (tmp_path / "fault").write_text("slow")
    job = faulty_host.submit(train__steps=1_000_000)

    text = first_decision(faulty_host, job, "straggler", seconds=90)

    assert text.startswith("rank 1 on h1 is slow: "), text
    view = faulty_host.get(job)
    assert [rank.straggler for rank in view.job.ranks] == [False, True]
    assert view.state_name == "RUNNING" and view.job.restarts == 0
    faulty_host.trainctl("cancel", job)
    faulty_host.wait_for_end(job)


def test_what_hosts_decide_is_told_with_the_job(one_host):
    job = one_host.submit(train__steps=20, resources={"ranks": 2, "device": "cpu"})
    view = one_host.wait_for_end(job)

    told = {decision.key: decision for decision in view.job.decisions}
    assert told["resources.threads_per_rank"].value.isdigit()
    assert re.match(r"\d+ cores for 2 ranks", told["resources.threads_per_rank"].reason)
    assert told["resources.mkl_avx512"].value in ("on", "off")
    assert told["network.interface"].value == "lo"
