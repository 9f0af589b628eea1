"""Hanging groups: the rank at fault and its state are named, and the group recovers with the same losses.

A rank is stopped with SIGSTOP. A preloaded library makes it spin, block in a system call or skip a collective
(faulty_trainers.py).
"""

import os
import re
import signal

import pytest

import harness
import faulty_trainers

LONG = harness.LONG_JOB
# The length of a step, and the number of steps before a fault is injected.
STEP_MS = 100
STEADY_STEPS = 10


@pytest.fixture
def faulty_host(cluster, tmp_path):
    host = faulty_trainers.FaultyHost(cluster, tmp_path)
    host.start()
    return host


def decisions(cluster, job, rule="hang"):
    """Texts of the decisions by this rule, in order."""
    request = cluster.stubs.service.ListEventsRequest(job_id=job)
    reported = cluster.jobs.ListEvents(request, timeout=60).events
    return [event.notice.text for event in reported if event.HasField("notice") and event.notice.rule == rule]


def first_decision(cluster, job, rule="hang", seconds=60.0):
    what = f"a decision by the rule {rule} of job {job}"
    return harness.wait_until(lambda: decisions(cluster, job, rule), what, seconds)[0]


def start_steady(host, run_folder, **keys):
    """Starts a job whose steps take STEP_MS and waits until the coordinator has learned their duration.

    Returns the id of the job.
    """
    host.slow_down(STEP_MS)
    job = host.cluster.submit(run_folder=run_folder, **LONG, **keys)
    host.cluster.wait_for_step(job, STEADY_STEPS)
    return job


# Expected report on ranks in different collectives, with and without shared memory. Without shared memory, gloo
# detects the mismatch and ends the process.
MISMATCH = {"on": r"\[restart\] .* of rank \d of 2 failed: rank \d takes part in all-reduce \d+ \(.*\) "
                  r"at the same time; rank 1 is at fault: in earlier steps, all-reduce \(.*\) came next",
            "off": r"last output of rank \d on h1:(.|\n)*collective mismatch"}


def check_restarted_once(host, job, run_folder, undisturbed):
    host.clear_faults()
    view = host.cluster.wait_for_end(job)
    assert view.state_name == "SUCCEEDED", view.job.reason
    assert (view.job.restarts, view.job.generation) == (1, 2)
    assert harness.metrics_steps(run_folder) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_stopped_rank_is_named_and_changes_no_loss(faulty_host, tmp_path, undisturbed, rank):
    job = start_steady(faulty_host, tmp_path / "run")

    os.kill(faulty_host.cluster.get(job).pid_of(rank), signal.SIGSTOP)
    text = first_decision(faulty_host.cluster, job)

    assert re.match(rf"rank {rank} on h1 is stopped \(SIGSTOP, state T\) and was not seen to enter \S+ \d+ \(.*\) of "
                    r"step \d+, in which 1 rank waits; no progress for", text), text
    check_restarted_once(faulty_host, job, tmp_path / "run", undisturbed)
    assert sum("is stopped" in reported for reported in decisions(faulty_host.cluster, job)) == 1


# Two stages of one block each, with 8 micro-batches per step.
PIPELINE = {**LONG, "train__model__layers": 2, "train__batch": {"global": 16, "micro": 2},
            "parallel": {"pipeline": {"stages": 2}}}
# The neighbour of the stopped rank waits in a channel or, at the end of a step, in a collective.
WAITS = (r"(; rank {other} on h1 waits (in receive|for room for packet) \d+ \(chunk \d, micro-batch \d+\) of "
         r"(activations|gradients) \d->\d in step \d+"
         r"| and was not seen to enter \S+ \d+ \(.*\) of step \d+, in which 1 rank waits)")


@pytest.mark.parametrize("rank, shared_memory", [pytest.param(0, "off", marks=pytest.mark.long), (1, "on")])
def test_a_stopped_stage_of_a_pipeline_is_named_within_seconds(one_host, tmp_path, rank, shared_memory):
    job = one_host.submit(run_folder=tmp_path / "run", network__shared_memory=shared_memory, **PIPELINE)
    view = one_host.wait_for_step(job, 120)

    os.kill(view.pid_of(rank), signal.SIGSTOP)
    text = first_decision(one_host, job)

    waits = WAITS.format(other=1 - rank)
    assert re.match(rf"rank {rank} on h1 is stopped \(SIGSTOP, state T\){waits}; no progress for", text), text
    # A stopped rank is reported after a few seconds. The limit for a phase of unknown duration would be two minutes.
    assert float(re.search(r"no progress for ([\d.]+) s", text)[1]) < 30, text
    harness.wait_until(lambda: one_host.get(job).job.generation == 2, "the restart of the group", 60)


@pytest.mark.slow
def test_on_hang_notify_reports_a_stopped_rank_without_a_restart_and_again_when_it_continues(
        faulty_host, tmp_path, undisturbed):
    cluster = faulty_host.cluster
    job = start_steady(faulty_host, tmp_path / "run", recovery__on_hang="notify")
    pid = cluster.get(job).pid_of(1)

    os.kill(pid, signal.SIGSTOP)
    text = first_decision(cluster, job)
    assert "rank 1 on h1 is stopped" in text and "left running" in text, text
    assert cluster.get(job).state_name == "RUNNING"
    faulty_host.clear_faults()
    os.kill(pid, signal.SIGCONT)

    view = cluster.wait_for_end(job)
    assert view.state_name == "SUCCEEDED", view.job.reason
    assert (view.job.restarts, view.job.generation) == (0, 1)
    assert harness.metrics_steps(tmp_path / "run") == undisturbed
    reported = decisions(cluster, job)
    assert len(reported) == 2 and "the ranks continue after" in reported[1], reported


@pytest.mark.slow
@pytest.mark.parametrize("fault, how", [
    pytest.param("spin", r"spinning \(CPU share \d\.\d\d, state R\)", marks=pytest.mark.long),
    ("block", r"blocked in the system call (pause|ppoll) \(state S\)( \[.*\])?")])
def test_a_rank_that_does_not_enter_a_collective_is_named_with_its_process_state(faulty_host, tmp_path, undisturbed,
                                                                                 fault, how):
    job = start_steady(faulty_host, tmp_path / "run")

    faulty_host.set_fault(1, fault)
    text = first_decision(faulty_host.cluster, job)

    expected = rf"rank 1 on h1 is {how} and has not entered \S+ \d+ \(.*\) of step \d+, in which 1 rank waits"
    assert re.match(expected, text), text
    (stack,) = harness.wait_until(lambda: decisions(faulty_host.cluster, job)[1:], "its stack is reported")
    assert stack.startswith("stack of rank 1 on h1:\n") and "trainyard::Trainer::Run()" in stack, stack
    check_restarted_once(faulty_host, job, tmp_path / "run", undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("shared_memory", ["on", pytest.param("off", marks=pytest.mark.long)])
def test_a_rank_that_skips_a_collective_is_reported_immediately_with_its_actual_collective(faulty_host, tmp_path,
                                                                                           undisturbed,
                                                                                           shared_memory):
    job = start_steady(faulty_host, tmp_path / "run", network__shared_memory=shared_memory)

    faulty_host.set_fault(1, "skip")
    first_decision(faulty_host.cluster, job, "restart")

    check_restarted_once(faulty_host, job, tmp_path / "run", undisturbed)
    reported = faulty_host.cluster.trainctl("why", job).stdout
    assert re.search(MISMATCH[shared_memory], reported), reported


# With fsdp, the other rank waits within its passes, which must not count as computing.
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.long)])
def test_a_straggler_is_named_and_not_restarted(faulty_host, strategy):
    faulty_host.set_fault(1, "slow 20")
    job = faulty_host.cluster.submit(train__steps=1_000_000, parallel={"data": strategy})

    text = first_decision(faulty_host.cluster, job, "straggler", seconds=240)

    assert text.startswith("rank 1 on h1 is slow: "), text
    view = faulty_host.cluster.get(job)
    assert [rank.straggler for rank in view.job.ranks] == [False, True]
    assert view.state_name == "RUNNING" and view.job.restarts == 0
    faulty_host.cluster.trainctl("cancel", job)
    faulty_host.cluster.wait_for_end(job)


def test_decisions_made_by_hosts_are_listed_with_the_job(one_host):
    job = one_host.submit(train__steps=20, resources={"ranks": 2, "device": "cpu"})
    view = one_host.wait_for_end(job)

    reported = {decision.key: decision for decision in view.job.decisions}
    assert reported["resources.threads_per_rank"].value.isdigit()
    assert re.match(r"\d+ cores for 2 ranks", reported["resources.threads_per_rank"].reason)
    assert reported["resources.product_kernels"].value in ("mkl_intel", "mkl")
    assert "no measurement can be used" not in reported["resources.product_kernels"].reason
    assert reported["network.interface"].value == "lo"
