"""The snapshots that trainers copy for a save are in shared memory, outlive the trainers, and are removed when a later
generation has saved or the job has ended."""

import contextlib
import os
import signal
import struct

import harness
import pytest

SLOW = {"train__steps": 1_000_000, "train__model": {"layers": 2, "heads": 2, "width": 64, "context": 64},
        "train__batch": {"global": 8, "micro": 2}, "checkpoint__every_steps": 5}
COMPLETE = 2  # the mark of a complete snapshot: kComplete in checkpoint/snapshot_format.h


def snapshots_of(cluster, daemon):
    """{name: whether it is complete} of this daemon's snapshots; None: the daemon has no folder in shared memory."""
    folders = [folder for folder in harness.memory_folders(cluster.folder) if harness.state_of(folder).endswith(daemon)]
    assert len(folders) < 2, folders
    if not folders:
        return None
    found = {}
    for path in folders[0].glob("*.g*"):
        try:
            with path.open("rb") as file:
                head = file.read(16)
        except FileNotFoundError:  # a save of the next generation may be removing it
            continue
        found[path.name] = head[:6] == b"TYSNAP" and struct.unpack_from("<I", head, 12)[0] == COMPLETE
    return found


def generations(snapshots):
    return {int(name.split(".")[1][1:]) for name in snapshots}


def kill_trainers(*ids):
    for pid, line in harness.trainers().items():
        if not ids or any(each in line for each in ids):
            with contextlib.suppress(ProcessLookupError):  # its group ends when another rank has died
                os.kill(pid, signal.SIGKILL)


def test_a_killed_group_leaves_complete_snapshots_until_the_next_one_has_saved(cluster, tmp_path, monkeypatch):
    rules, gate = tmp_path / "rules", tmp_path / "gate"
    rules.write_text("")
    monkeypatch.setenv("TRAINYARD_FAULT_POINTS", f"@{rules}")
    cluster.start_coordinator()
    cluster.start_worker("h1", 2)
    job = cluster.submit(**SLOW, resources__ranks=2)
    harness.wait_until(lambda: cluster.get(job).job.checkpoints, "a step is saved")
    first = {f"{job}.g1.r{rank}.{buffer}" for rank in (0, 1) for buffer in "ab"}
    assert set(snapshots_of(cluster, "worker-h1")) == first

    # Rank 0 of the next group waits in its first save.
    rules.write_text(f"rank=0,point=snapshot,nth=1,do=wait:{gate}")
    kill_trainers()
    harness.wait_until(lambda: gate.with_suffix(".reached").exists(), "the next group saves")
    both = snapshots_of(cluster, "worker-h1")
    assert generations(both) == {1, 2} and first < set(both)
    for rank in (0, 1):
        complete = both[f"{job}.g1.r{rank}.a"] or both[f"{job}.g1.r{rank}.b"]
        assert complete, f"rank {rank} has no complete snapshot: {both}"
    gate.touch()

    harness.wait_until(lambda: generations(snapshots_of(cluster, "worker-h1")) == {2}, "the next group has saved", 60)
    cluster.trainctl("cancel", job)
    assert cluster.wait_for_end(job).state_name == "CANCELLED"
    harness.wait_until(lambda: snapshots_of(cluster, "worker-h1") == {}, "the snapshots of an ended job are removed")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_restarted_daemon_keeps_the_snapshots_of_running_jobs_and_removes_others(cluster, end):
    cluster.start_coordinator()
    daemon = cluster.start_worker("h1", 2)
    job, other = (cluster.submit(**SLOW, resources__ranks=1) for _ in range(2))
    for each in (job, other):
        harness.wait_until(lambda: cluster.get(each).job.checkpoints, "a step is saved")
    daemon.signal(end)
    daemon.wait()
    kill_trainers(other)
    assert len(snapshots_of(cluster, "worker-h1")) == 4
    cluster.trainctl("cancel", other)

    cluster.start_worker("h1", 2)

    assert cluster.wait_for_end(other).state_name == "CANCELLED"
    harness.wait_until(lambda: len(snapshots_of(cluster, "worker-h1")) < 4, "the others are removed")
    assert set(snapshots_of(cluster, "worker-h1")) == {f"{job}.g1.r0.a", f"{job}.g1.r0.b"}
    cluster.trainctl("cancel", job)
    assert cluster.wait_for_end(job).state_name == "CANCELLED"


def test_a_host_keeps_no_snapshots_of_a_job_that_has_moved_to_another_host(cluster):
    cluster.start_coordinator()
    cluster.start_worker("h1", 1)
    job = cluster.submit(**SLOW, resources__ranks=1)
    harness.wait_until(lambda: cluster.get(job).job.checkpoints, "a step is saved")
    cluster.start_worker("h2", 1)
    for pid in harness.trainers():
        harness.stop_process(pid)  # so that the trainer cannot remove its own snapshots
    cluster.trainctl("drain", "h1", "--now")

    harness.wait_until(lambda: snapshots_of(cluster, "worker-h1") == {}, "h1 has no snapshots")
    harness.wait_until(lambda: snapshots_of(cluster, "worker-h2"), "h2 has snapshots")
    cluster.trainctl("cancel", job)
    assert cluster.wait_for_end(job).state_name == "CANCELLED"


def test_run_leaves_nothing_in_memory_however_it_ends(cluster, tmp_path):
    path = cluster.write_job(train__steps=20, checkpoint__every_steps=5, checkpoint__dir=str(tmp_path / "run"))
    cluster.run_trainctl("run", path, "--json")
    assert harness.memory_folders(cluster.folder) == []

    endless = cluster.write_job("endless.yaml", **SLOW, checkpoint__dir=str(tmp_path / "endless"))
    program = cluster.start_trainctl("run", endless, "--json")
    harness.wait_until(lambda: '"event":"checkpoint"' in program.output().replace(" ", ""), "a step is saved")
    assert len(harness.memory_folders(cluster.folder)) == 1
    program.signal(signal.SIGKILL)
    program.wait()
    harness.wait_until(lambda: harness.memory_folders(cluster.folder) == [],
                       "the private daemon has removed its folder in memory")


def test_a_job_runs_without_a_snapshot_folder_in_shared_memory(cluster, tmp_path):
    cluster.start_coordinator()
    without_memory = cluster.start_worker("h1", 1, "--snapshots", "/proc")
    cluster.start_worker("h2", 1, "--snapshots", "")
    job = cluster.submit(run_folder=tmp_path / "run", resources__ranks=2, train__steps=10, checkpoint__every_steps=5)

    assert cluster.wait_for_end(job).state_name == "SUCCEEDED"
    assert "are lost when their trainer ends: /proc is not on a file system in memory" in without_memory.output()
    assert harness.memory_folders(cluster.folder) == []
