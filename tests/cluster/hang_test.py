"""Groups that stand still: the rank that holds them up is named with how it does so, and they go on as if nothing had
been.

A rank is stopped with SIGSTOP. One that spins, waits in a system call or leaves a collective out is made so by a library
that its trainer is started with (ill_trainers.py).
"""

import os
import os
import re
import signal
import time

import pytest

import harness
import ill_trainers

LONG = harness.LONG_JOB
# How long a step takes when a rank falls ill, for this many steps before.
STEP_MS = 100
STEADY_STEPS = 10


@pytest.fixture
def ill_host(cluster, tmp_path):
    host = ill_trainers.IllHost(cluster, tmp_path)
    host.start()
    return host


def decisions(cluster, job, rule="hang"):
    """Texts of what was decided by this rule, in order."""
    request = cluster.stubs.service.ListEventsRequest(job_id=job)
    told = cluster.jobs.ListEvents(request, timeout=10).events
    return [event.notice.text for event in told if event.HasField("notice") and event.notice.rule == rule]


def first_decision(cluster, job, rule="hang", seconds=60.0):
    what = f"a decision by the rule {rule} of job {job}"
    return harness.wait_until(lambda: decisions(cluster, job, rule), what, seconds)[0]


def start_steady(host, run_folder, **keys):
    """A job of which every step takes STEP_MS, once that has been learned. Returns its id."""
    host.let_all(f"slow {STEP_MS}")
    job = host.cluster.submit(run_folder=run_folder, **LONG, **keys)
    host.cluster.wait_for_step(job, STEADY_STEPS)
    return job


# What is told of ranks that take part in different operations, by whether they share memory; else gloo notices it, and
# ends the process.
MISMATCH = {"on": r"\[restart\] .* of rank \d of 2 failed: rank \d takes part in all-reduce \d+ \(.*\) at the same time; rank 1 "
                  r"is at fault: in earlier steps, all-reduce \(.*\) came next",
            "off": r"last output of rank \d on h1:(.|\n)*collective mismatch"}


def check_restarted_once(host, job, run_folder, undisturbed):
    host.heal()
    view = host.cluster.wait_for_end(job)
    assert view.state_name == "SUCCEEDED", view.job.reason
    assert (view.job.restarts, view.job.generation) == (1, 2)
    assert harness.metrics_steps(run_folder) == undisturbed


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_is_named_and_the_losses_are_those_of_an_undisturbed_run(ill_host, tmp_path, undisturbed, rank):
    job = start_steady(ill_host, tmp_path / "run")

    os.kill(ill_host.cluster.get(job).pid_of(rank), signal.SIGSTOP)
    text = first_decision(ill_host.cluster, job)

    assert re.match(rf"rank {rank} on h1 is stopped \(SIGSTOP, state T\) and was not seen to enter \S+ \d+ \(.*\) of "
                    r"step \d+, in which 1 rank waits; no progress for", text), text
    check_restarted_once(ill_host, job, tmp_path / "run", undisturbed)
    assert sum("is stopped" in told for told in decisions(ill_host.cluster, job)) == 1


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
def test_a_rank_that_never_enters_a_collective_is_named_with_what_it_does(ill_host, tmp_path, undisturbed, fault, how):
    job = start_steady(ill_host, tmp_path / "run")

    ill_host.let(1, fault)
    text = first_decision(ill_host.cluster, job)

    expected = rf"rank 1 on h1 is {how} and has not entered \S+ \d+ \(.*\) of step \d+, in which 1 rank waits"
    assert re.match(expected, text), text
    (stack,) = harness.wait_until(lambda: decisions(ill_host.cluster, job)[1:], "its stack is told")
    assert stack.startswith("stack of rank 1 on h1:\n") and "trainyard::Trainer::Run()" in stack, stack
    check_restarted_once(ill_host, job, tmp_path / "run", undisturbed)


@pytest.mark.parametrize("shared_memory", MISMATCH)
def test_a_rank_that_skips_a_collective_is_told_at_once_with_what_it_takes_part_in_instead(ill_host, tmp_path, undisturbed,
                                                                                    shared_memory):
    job = start_steady(ill_host, tmp_path / "run", network__shared_memory=shared_memory)

    ill_host.let(1, "skip")
    first_decision(ill_host.cluster, job, "restart")

    check_restarted_once(ill_host, job, tmp_path / "run", undisturbed)
    told = ill_host.cluster.trainctl("why", job).stdout
    assert re.search(MISMATCH[shared_memory], told), told


def test_a_straggler_is_named_and_nothing_is_done_about_it(ill_host, tmp_path):
    ill_host.let(1, "slow 20")
    job = ill_host.cluster.submit(train__steps=1_000_000)

    text = first_decision(ill_host.cluster, job, "straggler", seconds=90)

    assert text.startswith("rank 1 on h1 is slow: "), text
    view = ill_host.cluster.get(job)
    assert [rank.straggler for rank in view.job.ranks] == [False, True]
    assert view.state_name == "RUNNING" and view.job.restarts == 0
    ill_host.cluster.trainctl("cancel", job)
    ill_host.cluster.wait_for_end(job)


def test_what_hosts_decide_is_told_with_the_job(one_host):
    job = one_host.submit(train__steps=20, resources={"ranks": 2, "device": "cpu"})
    view = one_host.wait_for_end(job)

    told = {decision.key: decision for decision in view.job.decisions}
    assert told["resources.threads_per_rank"].value.isdigit()
    assert re.match(r"\d+ cores for 2 ranks", told["resources.threads_per_rank"].reason)
    assert told["resources.mkl_avx512"].value in ("on", "off")
    assert "not measured" not in told["resources.mkl_avx512"].reason
    assert told["network.interface"].value == "lo"
