"""Repeated kill -9 of the coordinator at random moments, with running and just submitted jobs.

Everything acknowledged is preserved, no step is lost or reported twice, no state is wrong, and a watcher sees every
event once. TRAINYARD_COORDINATOR_KILLS=1000 sets the number of kills; TRAINYARD_FAULTS_SEED repeats the moments.
"""

import os
import random
import re
import signal
import time

import pytest

import harness
import net_cluster

KILLS = int(os.environ.get("TRAINYARD_COORDINATOR_KILLS", "25"))
# Lifetime of a coordinator: some are killed before they are ready.
LIFETIME_S = (0.01, 0.8)
SAVE_EVERY = 100
SUBMIT_EVERY = 5


class Loop:
    def __init__(self, cluster, seed):
        self.cluster = cluster
        self.random = random.Random(seed)
        self.port = harness.free_port()
        self.submitted = []

    def start(self):
        self.cluster.start_coordinator(port=self.port)
        self.cluster.start_worker("h1", slots=5)

    def kill_and_restart(self):
        program = self.cluster.coordinator
        program.signal(signal.SIGKILL)
        program.wait()
        restarted = self.cluster.start("coordinator", [harness.BIN / "trainyard-coordinator", "--listen",
                                                       program.address, "--metrics", "", "--state",
                                                       self.cluster.folder / "coordinator"])
        restarted.address = program.address
        self.cluster.coordinator = restarted

    def wait_a_lifetime(self):
        time.sleep(self.random.uniform(*LIFETIME_S))

    def submit_small_job(self):
        """Submits a small job; the coordinator is killed as soon as it has answered."""
        self.cluster.server_info()
        self.submitted.append(self.cluster.submit(train__steps=5, resources__ranks=1))

    def watch(self, job):
        address = self.cluster.coordinator.address
        command = [str(harness.BIN / "trainctl"), "--coordinator", address, "watch", job, "--json"]
        return net_cluster.Watcher(command, self.cluster.folder / f"watch-{job}.log")


def check(cluster, job, run_folder, watcher):
    watcher.popen.wait(60)
    view = cluster.get(job)
    assert (view.state_name, view.job.generation, view.job.restarts) == ("CANCELLED", 1, 0), view.job.reason

    losses = harness.metrics_steps(run_folder)
    steps = watcher.lines_of("step")
    assert [line["step"] for line in steps] == list(range(1, len(losses) + 1)), "a step was lost or reported twice"
    assert {line["step"]: line["loss"] for line in steps} == losses

    saved = [line["step"] for line in watcher.lines_of("checkpoint")]
    # While no coordinator answers, complete checkpoints wait for their final names. If a third one is complete, the
    # oldest of them is removed, and a notice reports that.
    notices = "\n".join(line["text"] for line in watcher.lines_of("notice"))
    removed = {int(step) for step in re.findall(r"checkpoint of step (\d+) was removed before it was renamed", notices)}
    expected = [step for step in losses if (step % SAVE_EVERY == 0 or step == len(losses)) and step not in removed]
    assert saved == expected, "a checkpoint was not reported, or reported twice"
    states = [line["state"] for line in watcher.lines_of("state")]
    assert states == ["QUEUED", "PLACED", "STARTING", "RUNNING", "STOPPING", "CANCELLED"], states


@pytest.mark.slow
@pytest.mark.long
def test_a_coordinator_killed_again_and_again_loses_nothing(cluster):
    seed = os.environ.get("TRAINYARD_FAULTS_SEED") or str(random.SystemRandom().getrandbits(32))
    print(f"TRAINYARD_FAULTS_SEED={seed}")
    loop = Loop(cluster, seed)
    loop.start()
    folders = [cluster.folder / "run-0", cluster.folder / "run-1"]
    # Steps take so long that a daemon's store of 4,096 step reports suffices for the time without a coordinator.
    model = {"layers": 2, "heads": 4, "width": 128, "context": 64}
    jobs = [cluster.submit(run_folder=folder, train__steps=10_000_000, train__model=model,
                           checkpoint__every_steps=SAVE_EVERY) for folder in folders]
    watchers = [loop.watch(job) for job in jobs]
    for job in jobs:
        cluster.wait_for_step(job, 1)

    for count in range(KILLS):
        if count % SUBMIT_EVERY == 0:
            loop.submit_small_job()
        else:
            loop.wait_a_lifetime()
        loop.kill_and_restart()
    cluster.server_info()
    for job in loop.submitted:
        view = cluster.wait_for_end(job)
        assert (view.state_name, view.job.restarts) == ("SUCCEEDED", 0), view.job.reason
    for job in jobs:
        cluster.trainctl("cancel", job)
        cluster.wait_for_end(job)

    for job, folder, watcher in zip(jobs, folders, watchers):
        check(cluster, job, folder, watcher)
    harness.wait_until(lambda: not harness.trainers(), "no trainer is left")
