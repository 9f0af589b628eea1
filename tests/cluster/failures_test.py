"""Failures while a job trains: a killed rank, no restarts left, a corrupt checkpoint, a full disk, lost daemons."""

import os
import pathlib
import re
import shutil
import signal

import pytest

import harness
import faulty_trainers
import memory_cgroup
import mounts

LONG = harness.LONG_JOB


def checkpoints(run_folder):
    return sorted(path for path in pathlib.Path(run_folder).iterdir() if path.name.startswith("step-")
                  and "." not in path.name)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_killed_trainer_restarts_the_group_and_changes_no_loss(slow_host, tmp_path, undisturbed, rank):
    cluster = slow_host.cluster
    job = cluster.submit(run_folder=tmp_path / "run", **LONG)
    view = cluster.wait_for_step(job, 120)

    os.kill(view.pid_of(rank), signal.SIGKILL)
    slow_host.clear_faults()

    events = cluster.watch(job)
    view = cluster.get(job)
    assert view.state_name == "SUCCEEDED", view.job.reason
    assert (view.job.restarts, view.job.generation) == (1, 2)
    assert harness.metrics_steps(tmp_path / "run") == undisturbed
    steps = [event.step.step for event in events if event.HasField("step")]
    assert steps == list(range(1, LONG["train__steps"] + 1))
    assert any(event.HasField("notice") and "SIGKILL" in event.notice.text for event in events) or any(
        event.HasField("state") and "SIGKILL" in event.state.reason for event in events)


def test_a_job_without_restarts_left_fails_with_the_cause(one_host):
    job = one_host.submit(train__steps=1_000_000, recovery__max_restarts=1)
    for generation in (1, 2):
        view = one_host.wait_for_state(job, "RUNNING", "FAILED")
        view = harness.wait_until(
            lambda: (now := one_host.get(job)).job.generation == generation and now.pid_of(1)
            and now.state_name == "RUNNING"
            and now, f"generation {generation} runs")
        os.kill(view.pid_of(1), signal.SIGKILL)

    view = one_host.wait_for_end(job)

    assert view.state_name == "FAILED"
    assert view.job.restarts == 1
    assert "rank 1" in view.job.reason and "SIGKILL" in view.job.reason, view.job.reason
    assert view.job.reason in one_host.trainctl("status", job).stdout
    harness.wait_until(lambda: not harness.trainers(), "no trainer is left")


def test_resume_is_bit_equal_to_an_uninterrupted_run(slow_host, tmp_path, undisturbed):
    cluster, run = slow_host.cluster, tmp_path / "run"
    job = cluster.submit(run_folder=run, **LONG)
    cluster.wait_for_step(job, 130)
    cluster.trainctl("cancel", job)
    assert cluster.wait_for_end(job).state_name == "CANCELLED"
    assert checkpoints(run)
    slow_host.clear_faults()

    second = cluster.submit(run_folder=run, flags=["--resume"], **LONG)

    assert cluster.wait_for_end(second).state_name == "SUCCEEDED"
    assert harness.metrics_steps(run) == undisturbed


def test_a_corrupt_newest_checkpoint_is_skipped_for_the_previous_one(one_host, tmp_path, undisturbed):
    run = tmp_path / "run"
    job = one_host.submit(run_folder=run, **LONG)
    one_host.wait_for_step(job, 180)
    one_host.trainctl("cancel", job)
    one_host.wait_for_end(job)
    newest = checkpoints(run)[-1]
    shard = next(newest.glob("*.safetensors"))
    with shard.open("r+b") as file:
        file.seek(shard.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x10]))

    second = one_host.submit(run_folder=run, flags=["--resume"], **LONG)

    assert one_host.wait_for_end(second).state_name == "SUCCEEDED"
    assert harness.metrics_steps(run) == undisturbed
    assert newest.name in one_host.trainctl("logs", second).stdout


def test_a_run_folder_with_only_corrupt_checkpoints_is_refused_with_their_names(one_host, tmp_path):
    run = tmp_path / "run"
    job = one_host.submit(run_folder=run, train__steps=10)
    one_host.wait_for_end(job)
    (only,) = checkpoints(run)
    (only / "manifest.json").write_text("{}")

    second = one_host.submit(run_folder=run, flags=["--resume"], train__steps=10)

    view = one_host.wait_for_end(second)
    assert view.state_name == "FAILED"
    assert only.name in view.job.reason, view.job.reason
    assert view.job.restarts == 0


@pytest.fixture
def small_memory():
    """A cgroup of 1 GiB; created before the cluster, and therefore removed after it."""
    try:
        group = memory_cgroup.MemoryCgroup("memory", 1 << 30)
    except OSError as error:
        pytest.skip(f"cannot create a cgroup with a memory limit on this machine: {error}")
    with group:
        yield group


@pytest.mark.slow
def test_a_trainer_killed_for_its_memory_is_reported_with_the_limit(small_memory, cluster, tmp_path, undisturbed):
    host = faulty_trainers.FaultyHost(cluster, tmp_path)
    host.start(prefix=small_memory.prefix)
    host.slow_down()
    job = cluster.submit(run_folder=tmp_path / "run", **LONG)
    cluster.wait_for_step(job, 120)

    host.set_fault(1, "eat")

    harness.wait_until(lambda: cluster.get(job).job.generation == 2, "the group restarts")
    host.clear_faults()
    view = cluster.wait_for_end(job)
    assert view.state_name == "SUCCEEDED", view.job.reason
    assert (view.job.restarts, view.job.generation) == (1, 2)
    assert harness.metrics_steps(tmp_path / "run") == undisturbed
    report = cluster.trainctl("why", job).stdout
    assert re.search(r"rank 1 on h1 was killed by signal 9 \(SIGKILL\): out of memory: the kernel killed it "
                     r"\(cgroup \S+, limit 1024 MiB: oom_kill 0 to 1\)", report), report


def start_on_a_full_disk(cluster, tmp_path):
    """Starts a coordinator and a daemon with two slots; returns the small disk of the daemon and the file whose removal
    frees space. The disk has space for a run's small files, but not for a checkpoint."""
    disk = tmp_path / "disk"
    disk.mkdir()
    cluster.start_coordinator()
    worker = cluster.start_worker("h1", slots=2, prefix=mounts.in_namespace(mounts.tmpfs(disk, "8m")))
    filler = pathlib.Path(f"/proc/{worker.pid}/root{disk}/filler")
    filler.write_bytes(bytes((8 << 20) - (64 << 10)))
    return disk, filler


def test_a_full_disk_fails_the_save_and_not_the_training(cluster, tmp_path):
    disk, filler = start_on_a_full_disk(cluster, tmp_path)

    job = cluster.submit(run_folder=disk / "run", train__steps=3000, checkpoint__every_steps=40)
    failed = harness.wait_until(
        lambda: next((event.notice.text for event in cluster.jobs.Watch(cluster.stubs.service.WatchRequest(job_id=job))
                      if event.HasField("notice") and event.notice.level != "info"), None), "a failed save is reported")
    at_failure = cluster.get(job).job.last_step
    cluster.wait_for_step(job, at_failure + 20)
    filler.unlink()

    view = cluster.wait_for_end(job)
    assert "space" in failed.lower(), failed
    assert view.state_name == "SUCCEEDED", view.job.reason
    assert view.job.restarts == 0
    assert view.job.checkpoints[-1].step == 3000


def test_a_last_save_on_a_full_disk_is_retried_until_there_is_space(cluster, tmp_path):
    disk, filler = start_on_a_full_disk(cluster, tmp_path)
    job = cluster.submit(run_folder=disk / "run", train__steps=20)

    trying = harness.wait_until(
        lambda: next((view for view in [cluster.get(job)] if "tried again" in view.job.reason), None),
        "the save is tried again")
    filler.unlink()

    for words in ("No space left", str(disk), "bytes free"):
        assert words in trying.job.reason, trying.job.reason
    view = cluster.wait_for_end(job)
    assert (view.state_name, view.job.restarts) == ("SUCCEEDED", 0), view.job.reason
    assert view.job.checkpoints[-1].step == 20
    assert "No space left" in cluster.trainctl("why", job).stdout


def test_a_last_save_on_a_disk_that_stays_full_fails_the_job_and_names_the_disk(cluster, tmp_path):
    disk, _ = start_on_a_full_disk(cluster, tmp_path)

    job = cluster.submit(run_folder=disk / "run", train__steps=20, checkpoint__last_save_retry_s=1)

    view = cluster.wait_for_end(job)
    assert (view.state_name, view.job.restarts) == ("FAILED", 0), view.job.reason
    for words in ("No space left", str(disk), "bytes free"):
        assert words in view.job.reason, view.job.reason
    cluster.trainctl("watch", job, expect=1)


def test_a_pause_with_a_failed_save_keeps_training_and_a_later_pause_succeeds(cluster, tmp_path):
    disk, filler = start_on_a_full_disk(cluster, tmp_path)
    job = cluster.submit(run_folder=disk / "run", train__steps=1_000_000)
    cluster.wait_for_step(job, 20)
    trainers = set(harness.trainers())

    cluster.trainctl("pause", job)

    report = harness.wait_until(lambda: [line for line in cluster.trainctl("why", job).stdout.splitlines()
                                         if "was not paused" in line], "the failed pause is reported")
    assert "could not be saved" in report[0] and "space" in report[0].lower(), report
    view = cluster.wait_for_state(job, "RUNNING")
    cluster.wait_for_step(job, view.job.last_step + 50)
    assert (cluster.get(job).job.generation, set(harness.trainers())) == (1, trainers)
    filler.unlink()
    cluster.trainctl("pause", job)
    paused = cluster.wait_for_state(job, "PAUSED")
    assert paused.job.checkpoints[-1].step >= view.job.last_step + 50
    cluster.trainctl("cancel", job)


def test_a_job_waits_with_the_reason_if_the_only_host_does_not_share_the_run_folder(cluster, tmp_path):
    runs = tmp_path / "runs"
    for folder in (runs, tmp_path / "of-h1", tmp_path / "of-h2"):
        folder.mkdir()
    hosts = faulty_trainers.FaultyHost(cluster, tmp_path)
    hosts.slow_down()
    cluster.start_coordinator()
    for name in ("h1", "h2"):
        hosts.start_worker(name, 2, prefix=mounts.in_namespace(f"mount --bind '{tmp_path}/of-{name}' '{runs}'"))
    job = cluster.submit(run_folder=runs / "a", train__steps=400, train__model={"layers": 2, "heads": 2, "width": 64,
                                                                               "context": 64})
    cluster.wait_for_step(job, 10)

    cluster.trainctl("drain", "h1")

    reason = harness.wait_until(lambda: (text := cluster.get(job).job.reason) and "waits for slots" in text and text,
                                "the job waits")
    assert "h1 (cordoned: drained: trainctl drain)" in reason
    assert "that was recorded is not in" in reason and "as host h2 sees it" in reason
    assert cluster.get(job).job.restarts == 0
    hosts.clear_faults()
    cluster.trainctl("uncordon", "h1")
    view = cluster.wait_for_end(job)
    assert (view.state_name, view.job.restarts) == ("SUCCEEDED", 0), view.job.reason
    assert [event.step.step for event in cluster.watch(job) if event.HasField("step")] == list(range(1, 401))


def start_run_on_a_small_disk(cluster, tmp_path):
    """Starts an endless `trainctl run` and fills the disk of its store, output and run folder."""
    disk = tmp_path / "disk"
    disk.mkdir()
    job = cluster.write_job(train__steps=1_000_000, resources__ranks=1, checkpoint__dir=str(disk / "run"))
    prefix = mounts.in_namespace(mounts.tmpfs(disk, "8m"))
    run = cluster.start("trainctl", [*prefix, harness.BIN / "trainctl", "run", job, "--json"])
    run.wait_for_steps(1)
    filler = mounts.fill(run, disk)
    harness.wait_until(lambda: "cannot write to its store" in run.output(), "the output says why it makes no progress",
                       30)
    return run, filler


def test_a_run_with_a_full_disk_reports_it_and_continues_when_there_is_space(cluster, tmp_path):
    run, filler = start_run_on_a_small_disk(cluster, tmp_path)

    filler.unlink()

    harness.wait_until(lambda: "can write to its store again" in run.output(), "the run continues by itself")
    run.wait_for_steps(len(run.steps()) + 1)
    run.signal(signal.SIGINT)
    assert run.wait() == 130, run.output()


def test_a_run_with_a_full_disk_ends_immediately_on_ctrl_c(cluster, tmp_path):
    run, _ = start_run_on_a_small_disk(cluster, tmp_path)

    run.signal(signal.SIGINT)

    assert run.wait() == 130, run.output()
    assert "ended without the coordinator" in run.output()
    harness.assert_nothing_runs()


def test_a_full_disk_at_the_start_of_a_rank_moves_the_job_to_another_host(cluster, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    cluster.start_coordinator()
    full = cluster.start_worker("h1", 2, "--metrics", "", "--health", "", state=disk / "state",
                                prefix=mounts.in_namespace(mounts.tmpfs(disk, "4m")))
    mounts.fill(full, disk)
    cluster.start_worker("h2", 2, "--metrics", "", "--health", "")

    view = cluster.wait_for_end(cluster.submit(train__steps=5))

    assert (view.state_name, view.job.restarts) == ("SUCCEEDED", 0), "a full disk does not use up a restart"
    assert {rank.host for rank in view.job.ranks} == {"h2"}
    report = cluster.trainctl("why", view.job.job_id).stdout
    assert re.search(r"rank \d on h1 could not be started: .*[Nn]o space left", report), report


def test_a_killed_daemon_leaves_its_trainers_running_and_its_successor_adopts_them(one_host):
    job = one_host.submit(train__steps=1_000_000)
    one_host.wait_for_step(job, 3)
    before = set(harness.trainers())
    worker = next(program for program in one_host.programs if "worker" in program.log.name)

    worker.signal(signal.SIGKILL)
    worker.wait()
    at_kill = one_host.get(job).job.last_step
    one_host.start("worker-h1", [harness.BIN / "trainyard-worker", "--coordinator", one_host.coordinator.address,
                                 "--slots", 2,
                                 "--name", "h1", "--state", one_host.folder / "worker-h1"])

    one_host.wait_for_step(job, at_kill + 50)
    assert one_host.get(job).job.generation == 1
    assert set(harness.trainers()) == before
    one_host.trainctl("cancel", job)
    assert one_host.wait_for_end(job).state_name == "CANCELLED"


def remove(folder):
    """Removes a folder in which a daemon may create files meanwhile."""
    def is_removed():
        try:
            shutil.rmtree(folder)
        except OSError:
            return False
        return True

    harness.wait_until(is_removed, f"{folder} is removed")


def test_removing_the_state_folder_causes_no_restart(one_host):
    state = one_host.folder / "worker-h1"
    job = one_host.submit(train__steps=1_000_000)
    one_host.wait_for_step(job, 3)
    before = set(harness.trainers())

    remove(state)

    harness.wait_until(lambda: (state / "worker.sock").exists(), "the daemon has created its state folder again")
    one_host.wait_for_step(job, one_host.get(job).job.last_step + 50)
    assert set(harness.trainers()) == before
    one_host.trainctl("cancel", job)
    assert one_host.wait_for_end(job).state_name == "CANCELLED"
    remove(state)
    view = one_host.wait_for_end(one_host.submit(train__steps=5))
    assert (view.state_name, view.job.restarts) == ("SUCCEEDED", 0), view.job.reason


def test_a_restarted_coordinator_completes_the_job_with_the_same_losses(one_host, tmp_path, undisturbed):
    job = one_host.submit(run_folder=tmp_path / "run", **LONG)
    one_host.wait_for_step(job, 60)
    port = int(one_host.coordinator.address.rpartition(":")[2])

    one_host.coordinator.signal(signal.SIGKILL)
    one_host.coordinator.wait()
    one_host.start_coordinator(port=port)

    view = one_host.wait_for_end(job)
    assert view.state_name == "SUCCEEDED", view.job.reason
    assert view.job.restarts == 0
    assert harness.metrics_steps(tmp_path / "run") == undisturbed
