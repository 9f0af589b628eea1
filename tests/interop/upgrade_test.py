"""What an earlier build of 0.1.0 left on disk (tests/golden/upgrade, made by make.py there) opens with today's
programs: jobs are visible, a paused job resumes, facts that were not acknowledged are delivered, checkpoints are
verified, sampled and resumed from."""

import fcntl
import pathlib
import shutil
import sys
import tarfile

import harness
import processes
import pytest

RELEASES = sorted(path for path in (harness.ROOT / "tests" / "golden" / "upgrade").iterdir() if path.is_dir())
FOLDER = pathlib.Path("/tmp/trainyard-upgrade-fixture")  # where make.py ran, because the records contain absolute paths
STATES = {"succeeded": "SUCCEEDED", "failed": "FAILED", "paused": "PAUSED", "queued": "QUEUED",
          "cancelled": "CANCELLED"}


@pytest.fixture(params=[path for path in RELEASES if path.name != "__pycache__"], ids=lambda path: path.name)
def upgraded(request, stubs):
    """A cluster in the state folders of an earlier release, with nothing started, and {name: job id}."""
    lock = open(f"{FOLDER}.lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX)  # another test run may be using the folder
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(mode=0o700)
    with tarfile.open(request.param / "state.tar.xz") as archive:
        archive.extractall(FOLDER, **({"filter": "tar"} if sys.version_info >= (3, 12) else {}))
    words = (FOLDER / "text.txt").read_bytes()
    processes.start_reaper()
    cluster = harness.Cluster(FOLDER, stubs)
    assert (FOLDER / "text.txt").read_bytes() == words, "harness.Cluster has replaced the recorded text.txt"
    jobs = dict(line.split() for line in (request.param / "jobs.txt").read_text().splitlines())
    try:
        yield cluster, jobs
    finally:
        cluster.close()
        shutil.rmtree(FOLDER)
        lock.close()


def events_of(cluster, job):
    return cluster.jobs.ListEvents(cluster.stubs.service.ListEventsRequest(job_id=job), timeout=60).events


def test_the_state_of_an_earlier_release_opens(upgraded):
    cluster, jobs = upgraded
    cluster.start_coordinator()

    for name, state in STATES.items():
        view = cluster.get(jobs[name])
        assert view.state_name == state, (name, view.job.reason)
        assert view.job.resource_version > 0 and cluster.trainctl("why", jobs[name]).stdout
    assert cluster.get(jobs["paused"]).job.reason.startswith("paused: for the upgrade")
    assert cluster.get(jobs["running"]).job.unconfirmed, "the job must be unconfirmed until its daemon attaches"
    events = events_of(cluster, jobs["succeeded"])
    assert events[-1].state.state == cluster.stubs.service.JOB_STATE_SUCCEEDED
    assert [event.checkpoint.step for event in events if event.HasField("checkpoint")] == [12]

    # The daemon delivers the ends of the trainers, which no coordinator has acknowledged.
    worker = cluster.start_worker("h1", 2, "--snapshots", "")
    harness.wait_until(lambda: any("was killed by signal 9" in event.notice.text + event.state.reason
                                   for event in events_of(cluster, jobs["running"])),
                       "the end of the trainers is reported")
    view = harness.wait_until(lambda: (now := cluster.get(jobs["running"])).job.generation == 2 and now,
                              "the job is restarted", 60)
    assert view.job.restarts == 1
    cluster.trainctl("cancel", jobs["running"])
    cluster.wait_for_state(jobs["running"], "CANCELLED")

    at_pause = cluster.get(jobs["paused"]).job
    newest = at_pause.checkpoints[-1]
    cluster.trainctl("resume", jobs["paused"])
    resumed = cluster.wait_for_end(jobs["paused"])
    assert (resumed.state_name, resumed.job.last_step) == ("SUCCEEDED", 600), resumed.job.reason
    losses = harness.metrics_steps(FOLDER / "runs" / "paused0001")
    assert sorted(losses) == list(range(1, 601)), "resumed after the newest step, without a gap"
    assert newest.step == at_pause.last_step
    assert worker.alive() and "damaged" not in cluster.coordinator.output()


def test_a_checkpoint_of_an_earlier_release_is_verified_sampled_and_resumed_from(upgraded):
    cluster, _ = upgraded
    run = FOLDER / "runs" / "succeeded0001"

    verified = cluster.run_trainctl("checkpoint", "verify", run)
    sampled = cluster.run_trainctl("sample", run, "--tokens", "8", "--seed", "1")
    longer = cluster.write_job("longer.yaml", name="succeeded", train__steps=16, train__evaluate={"every_steps": 6},
                               checkpoint__dir=str(run), resources__ranks=1)
    resumed = cluster.run_trainctl("run", longer, "--resume")

    assert "12" in verified.stdout and sampled.stdout
    assert "16" in resumed.stdout
    assert sorted(harness.metrics_steps(run)) == list(range(1, 17))
