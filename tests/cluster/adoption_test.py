"""A daemon that is killed at any moment: its successor adopts running trainers, reports ended ones, and loses no
fact."""

import os
import signal

import harness
import pytest

LONG = {"train__steps": 2000, "checkpoint__every_steps": 100}


def worker_of(cluster):
    return next(program for program in reversed(cluster.programs) if "worker" in program.log.name)


def kill_worker(cluster):
    worker = worker_of(cluster)
    worker.signal(signal.SIGKILL)
    worker.wait()


def start_worker(cluster, *flags, name="h1", state="worker-h1"):
    command = [harness.BIN / "trainyard-worker", "--coordinator", cluster.coordinator.address, "--slots", 2,
               "--name", name, "--state", cluster.folder / state, "--metrics", "127.0.0.1:0",
               "--health", "127.0.0.1:0", *flags]
    return cluster.start("worker-h1", command)


def rank_files(cluster, job, generation, name):
    ranks = cluster.folder / "worker-h1" / "ranks"
    return [path for rank in (0, 1) if (path := ranks / f"{job}.g{generation}.r{rank}" / name).exists()]


def last_step_on_disk(run_folder):
    try:
        return max(harness.metrics_steps(run_folder, running=True), default=0)
    except FileNotFoundError:
        return 0


def test_killing_a_daemon_while_the_group_forms_causes_no_restart(one_host, tmp_path):
    job = one_host.submit(run_folder=tmp_path / "run", train__steps=30)
    harness.wait_until(lambda: len(rank_files(one_host, job, 1, "pid")) == 2, "both shims have started their trainers")

    kill_worker(one_host)
    start_worker(one_host)

    view = one_host.wait_for_end(job)
    assert view.state_name == "SUCCEEDED", view.job.reason
    assert (view.job.generation, view.job.restarts) == (1, 0)


@pytest.mark.slow
def test_an_exit_while_no_daemon_runs_is_reported_with_its_cause(cluster, slow_host, tmp_path):
    job = cluster.submit(run_folder=tmp_path / "run", **LONG)
    view = cluster.wait_for_step(job, 150)

    kill_worker(cluster)
    os.kill(view.pid_of(1), signal.SIGKILL)
    harness.wait_until(lambda: len(rank_files(cluster, job, 1, "exit")) == 2, "both ranks have ended")
    start_worker(cluster)

    view = cluster.wait_for_end(job)
    assert view.state_name == "SUCCEEDED", view.job.reason
    assert (view.job.generation, view.job.restarts) == (2, 1)
    assert any(event.HasField("state") and "SIGKILL" in event.state.reason for event in cluster.watch(job)) or any(
        event.HasField("notice") and "SIGKILL" in event.notice.text for event in cluster.watch(job))


def test_saves_and_steps_made_while_no_daemon_runs_are_reported_by_the_next_daemon(cluster, slow_host, tmp_path):
    job = cluster.submit(run_folder=tmp_path / "run", **LONG)
    cluster.wait_for_step(job, 50)

    kill_worker(cluster)
    slow_host.clear_faults()
    harness.wait_until(lambda: last_step_on_disk(tmp_path / "run") > 350, "the ranks continue on their own", 60)
    before = cluster.get(job).job.last_step
    start_worker(cluster)

    steps = [event.step.step for event in cluster.watch(job) if event.HasField("step")]
    view = cluster.get(job)
    assert before < 350
    assert view.state_name == "SUCCEEDED", view.job.reason
    assert (view.job.generation, view.job.restarts) == (1, 0)
    assert steps == list(range(1, LONG["train__steps"] + 1))
    assert [checkpoint.step for checkpoint in view.job.checkpoints][-1] == LONG["train__steps"]


def test_the_end_of_a_job_without_daemon_and_coordinator_is_reported_by_their_successors(one_host, tmp_path):
    job = one_host.submit(run_folder=tmp_path / "run", train__steps=600)
    one_host.wait_for_step(job, 20)
    port = int(one_host.coordinator.address.rpartition(":")[2])

    one_host.coordinator.signal(signal.SIGKILL)
    one_host.coordinator.wait()
    harness.wait_until(lambda: last_step_on_disk(tmp_path / "run") == 600, "all steps are done", 60)
    kill_worker(one_host)
    start_worker(one_host)
    one_host.start_coordinator(port=port)

    view = one_host.wait_for_end(job)
    assert view.state_name == "SUCCEEDED", view.job.reason
    assert (view.job.generation, view.job.restarts) == (1, 0)


def test_a_daemon_with_the_name_or_state_of_another_is_refused(one_host):
    by_name = start_worker(one_host, state="worker-other")
    by_state = start_worker(one_host, name="h2")

    assert by_name.wait() == 1
    assert by_state.wait() == 1
    assert "another daemon named h1 is attached" in by_name.output() and "--name" in by_name.output()
    assert "belongs to another worker daemon" in by_state.output() and "--state" in by_state.output()


def test_trainers_of_another_cluster_are_stopped_only_with_adopt_cluster(one_host):
    job = one_host.submit(train__steps=1_000_000)
    one_host.wait_for_step(job, 3)
    trainers = set(harness.trainers())
    one_host.coordinator.signal(signal.SIGKILL)
    one_host.coordinator.wait()
    kill_worker(one_host)

    one_host.start_coordinator(state=one_host.folder / "another-cluster")
    waiting = start_worker(one_host)
    harness.wait_until(lambda: "--adopt-cluster" in waiting.output(), "the daemon says what to do")
    assert set(harness.trainers()) == trainers
    kill_worker(one_host)
    adopting = start_worker(one_host, "--adopt-cluster")

    harness.wait_until(lambda: not trainers & set(harness.trainers()), "the other cluster's trainers have ended")
    assert "belongs to another cluster" in adopting.output()
    after = one_host.submit(train__steps=20)
    assert one_host.wait_for_end(after).state_name == "SUCCEEDED"
