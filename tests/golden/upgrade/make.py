"""Makes tests/golden/upgrade/VERSION: what a release leaves on disk, which every later one must open
(tests/interop/upgrade_test.py).

    TRAINYARD_BIN=/path/to/the/release/bin .deps/python/bin/python tests/golden/upgrade/make.py

Run it once for each release, with the programs of that release, and commit the folder. It holds a coordinator's state
with jobs in several states, a daemon's state with facts that no coordinator has acknowledged, and run folders with
checkpoints. The records contain absolute paths, so everything is made at FOLDER, and the test puts it there again.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "cluster"))
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import harness
import processes
import stubs as stub_maker

FOLDER = pathlib.Path("/tmp/trainyard-upgrade-fixture")
KEPT = ("coordinator", "worker-h1", "runs", "text.txt")


def run_job(cluster, job_id, **keys):
    path = cluster.write_job(f"{job_id}.yaml", name=job_id[:-4], checkpoint__dir=str(FOLDER / "runs" / job_id),
                             resources__ranks=keys.pop("ranks", 1), **keys)
    return cluster.submit_file(path)


def make(cluster):
    """Returns the id of each job, by the name that the test uses."""
    cluster.start_coordinator()
    worker = cluster.start_worker("h1", 2, "--snapshots", "")
    jobs = {"succeeded": run_job(cluster, "succeeded0001", train__steps=12, train__evaluate={"every_steps": 6})}
    cluster.wait_for_state(jobs["succeeded"], "SUCCEEDED")
    jobs["failed"] = run_job(cluster, "failed0001", train__steps=1_000_000, recovery__max_restarts=0)
    os.kill(cluster.wait_for_step(jobs["failed"], 2).pid_of(0), signal.SIGKILL)
    cluster.wait_for_state(jobs["failed"], "FAILED")
    jobs["paused"] = run_job(cluster, "paused0001", train__steps=600, checkpoint__every_steps=20, checkpoint__keep=2)
    cluster.wait_for_step(jobs["paused"], 10)
    cluster.trainctl("pause", jobs["paused"], "--reason", "for the upgrade")
    cluster.wait_for_state(jobs["paused"], "PAUSED")
    jobs["queued"] = run_job(cluster, "queued0001", ranks=8)
    jobs["cancelled"] = run_job(cluster, "cancelled0001", ranks=8)
    cluster.trainctl("cancel", jobs["cancelled"])
    jobs["running"] = run_job(cluster, "running0001", ranks=2, train__steps=1_000_000)
    pids = [cluster.wait_for_step(jobs["running"], 5).pid_of(rank) for rank in (0, 1)]

    # The coordinator is killed before the trainers, so the daemon keeps the facts about their ends.
    cluster.coordinator.signal(signal.SIGKILL)
    cluster.coordinator.wait()
    outbox = FOLDER / "worker-h1" / "outbox"
    size = size_of(outbox)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    harness.wait_until(lambda: size_of(outbox) > size + 100, "the outbox has the ends of the trainers")
    worker.signal(signal.SIGKILL)
    worker.wait()
    return jobs


def size_of(folder):
    return sum(file.stat().st_size for file in [folder, *folder.rglob("*")] if file.is_file())


def keep(member):
    """Leaves out sockets and pipes, and does not record who made the files."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member if member.isfile() or member.isdir() else None


def main():
    assert os.environ.get("TRAINYARD_BIN"), "set TRAINYARD_BIN to the programs of the release"
    version = subprocess.run([harness.BIN / "trainyard-coordinator", "--version"], capture_output=True, text=True,
                             check=True).stdout.split()[-1]
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    processes.start_reaper()
    with tempfile.TemporaryDirectory() as stubs:
        cluster = harness.Cluster(FOLDER, stub_maker.make(stubs))
        try:
            jobs = make(cluster)
        finally:
            cluster.close()
    target = HERE / version
    target.mkdir(exist_ok=True)
    (target / "jobs.txt").write_text("".join(f"{name} {job}\n" for name, job in jobs.items()))
    with tarfile.open(target / "state.tar.xz", "w:xz", preset=9) as archive:
        for name in KEPT:
            archive.add(FOLDER / name, name, filter=keep)
    shutil.rmtree(FOLDER)
    print(f"{target}: {sum(f.stat().st_size for f in target.iterdir())} bytes")


if __name__ == "__main__":
    main()
