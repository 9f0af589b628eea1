"""Deployments with a fault: a full volume, a root that is read-only as in Kubernetes, no /dev/shm or a tiny one, a
missing GPU, two coordinators on one volume. The real programs run in mount namespaces of their own."""

import os
import re
import shutil
import signal
import subprocess
import urllib.request

import pytest

import harness
import mounts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount file systems")


def metric(cluster, name):
    text = urllib.request.urlopen(f"http://127.0.0.1:{cluster.metrics_port}/metrics", timeout=60).read().decode()
    return float(re.search(rf"^{name} (\S+)$", text, re.M)[1])


def wait_until_nothing_is_stored(cluster):
    """Returns when ten scrapes in a row, each after another round of the coordinator's loop, show no new record."""
    records = []

    def is_quiet():
        records.append(metric(cluster, "trainyard_store_records_total"))
        return len(records) >= 10 and len(set(records[-10:])) == 1

    harness.wait_until(is_quiet, "the coordinator stores nothing")


def lines_with(program, text):
    return [line for line in program.output().splitlines() if text in line]


def test_a_coordinator_on_a_full_volume_refuses_changes_and_continues_when_there_is_space(cluster):
    state = cluster.folder / "volume"
    state.mkdir()
    coordinator = cluster.start_coordinator("--lease-ms", "60000", state=state / "coordinator",
                                            prefix=mounts.in_namespace(mounts.tmpfs(state, "4m")))
    worker = cluster.start_worker("h1", 1, "--metrics", "", "--health", "")
    job = cluster.submit(run_folder=cluster.folder / "run", train__steps=1_000_000, resources__ranks=1)
    cluster.wait_for_step(job, 5)
    # While the daemon is stopped, its job causes no change in the store.
    worker.signal(signal.SIGSTOP)
    wait_until_nothing_is_stored(cluster)
    filler = mounts.fill(coordinator, state)

    # The first change that finds no space waits for its commit, and later ones are refused.
    waiting = cluster.start_trainctl("--coordinator", coordinator.address, "submit",
                                     cluster.write_job("waiting.yaml", train__steps=2, resources__ranks=1))
    harness.wait_until(lambda: metric(cluster, "trainyard_store_stalled") == 1, "the store refuses records")
    worker.signal(signal.SIGCONT)
    refused = cluster.trainctl("submit", cluster.write_job(train__steps=2, resources__ranks=1), expect=None)
    assert refused.returncode == 3 and "full" in refused.stderr, refused.stderr
    assert job in cluster.trainctl("list").stdout, "reads must be answered while the volume is full"
    run = cluster.folder / "run"
    before = max(harness.metrics_steps(run, running=True))
    harness.wait_until(lambda: max(harness.metrics_steps(run, running=True)) > before + 50, "training continues")
    assert 1 <= len(lines_with(coordinator, "No space left")) + len(lines_with(coordinator, "disk is full")) <= 3

    filler.unlink()
    harness.wait_until(lambda: metric(cluster, "trainyard_store_stalled") == 0, "the store accepts records again")
    assert waiting.wait() == 0, waiting.output()
    queued = cluster.submit(train__steps=2, resources__ranks=1)
    cluster.trainctl("cancel", job)
    assert cluster.wait_for_end(queued).state_name == "SUCCEEDED"
    assert coordinator.alive()


def test_a_daemon_on_a_full_volume_ends_no_training_and_reports_the_disk(cluster):
    state = cluster.folder / "volume"
    state.mkdir()
    cluster.start_coordinator()
    worker = cluster.start_worker("h1", 1, "--health", "", "--metrics", "",
                                  prefix=mounts.in_namespace(mounts.tmpfs(state, "4m")),
                                  state=state / "worker")
    job = cluster.submit(train__steps=1_000_000, resources__ranks=1)
    cluster.wait_for_step(job, 5)
    filler = mounts.fill(worker, state)

    reached = cluster.get(job).job.last_step
    cluster.wait_for_step(job, reached + 100)
    notices = harness.wait_until(
        lambda: [line for line in cluster.trainctl("events").stdout.splitlines() if "is full" in line],
        "the full disk is reported")
    filler.unlink()

    assert "h1" in notices[0] and len(notices) == 1, notices
    assert cluster.get(job).job.restarts == 0 and worker.alive()


# The root as a container with readOnlyRootFilesystem has it: only volumes can be written.
READ_ONLY_ROOT = """
mount --bind '{folder}' '{folder}'
mount -t tmpfs tmpfs /run
mount -o remount,bind,ro /
! touch /read-only 2>/dev/null
"""


def test_all_programs_run_with_a_read_only_root_and_writable_volumes(cluster):
    prefix = mounts.in_namespace(READ_ONLY_ROOT.format(folder=cluster.folder))
    token = cluster.folder / "token"
    token.write_text("a-token-for-tests-0123456789\n")
    token.chmod(0o600)
    variables = ["env", "-u", "XDG_STATE_HOME", "-u", "XDG_RUNTIME_DIR", "HOME=/nonexistent",
                 f"TMPDIR={cluster.folder}"]

    port = harness.free_port()
    address = f"127.0.0.1:{port}"
    coordinator = cluster.start("coordinator", [
        *prefix, *variables, harness.BIN / "trainyard-coordinator", "--listen", address, "--metrics", "", "--state",
        cluster.folder / "coordinator", "--token-file", token])
    worker = cluster.start("worker", [
        *prefix, *variables, harness.BIN / "trainyard-worker", "--coordinator", address, "--slots", 2, "--name", "h1",
        "--state", cluster.folder / "worker", "--token-file", token, "--metrics", "", "--health", ""])

    def trainctl(*arguments, expect=0):
        done = subprocess.run([*map(str, prefix), *variables, harness.BIN / "trainctl", "--coordinator", address,
                               "--token-file", token, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                              cwd=cluster.folder)
        assert expect is None or done.returncode == expect, done.stdout + done.stderr
        return done.stdout

    def attached():
        assert coordinator.alive() and worker.alive(), coordinator.output() + worker.output()
        return '"attached":true' in trainctl("cluster", "--json", expect=None)

    harness.wait_until(attached, "the daemon is attached")
    job = cluster.write_job(train__steps=6, checkpoint__every_steps=2, checkpoint__dir=str(cluster.folder / "run"))
    identity = harness.job_id_of(trainctl("submit", job, "--json"))
    assert "SUCCEEDED" in trainctl("watch", identity)
    assert sorted(path.name for path in (cluster.folder / "run").glob("step-*"))[-1].endswith("6")
    for program in (worker, coordinator):
        program.signal(signal.SIGTERM)
        assert program.wait() == 0, program.output()
    assert not lines_with(coordinator, "Read-only") and not lines_with(worker, "Read-only"), worker.output()


def test_a_coordinator_whose_volume_is_read_only_says_so(cluster):
    state = cluster.folder / "volume"
    state.mkdir()
    program = cluster.start("coordinator", [
        *mounts.in_namespace(f"mount --bind '{state}' '{state}'\nmount -o remount,bind,ro '{state}'"),
        harness.BIN / "trainyard-coordinator", "--listen", "127.0.0.1:0", "--metrics", "", "--state", state / "here"])

    assert program.wait() in (1, 2)
    assert "Read-only file system" in program.output() and str(state) in program.output()


# Mounts a /dev with what a container runtime puts into it, except shm. It does not just remove /dev/shm, because all
# namespaces share that folder.
DEV = """
mkdir -p '{folder}/dev'
mount -t tmpfs tmpfs '{folder}/dev'
for name in null zero full random urandom tty; do
  touch '{folder}/dev/'$name
  mount --bind /dev/$name '{folder}/dev/'$name
done
ln -s /proc/self/fd '{folder}/dev/fd'
{shm}
mount --rbind '{folder}/dev' /dev
"""


@pytest.mark.parametrize("shm, text", [
    ("", "are lost when their trainer ends"),
    ("mkdir '{folder}/dev/shm'\nmount -t tmpfs -o ro tmpfs '{folder}/dev/shm'", "are lost when their trainer ends"),
    ("mkdir '{folder}/dev/shm'\nmount -t tmpfs -o size=64k tmpfs '{folder}/dev/shm'", "")],
    ids=["absent", "read-only", "tiny"])
def test_a_job_trains_and_saves_without_or_with_a_tiny_dev_shm(cluster, shm, text):
    cluster.start_coordinator()
    script = DEV.format(folder=cluster.folder, shm=shm.format(folder=cluster.folder))
    worker = cluster.start_worker("h1", 2, "--metrics", "", "--health", "", prefix=mounts.in_namespace(script))
    job = cluster.submit(run_folder=cluster.folder / "run", train__steps=10, checkpoint__every_steps=2)

    view = cluster.wait_for_end(job)

    assert view.state_name == "SUCCEEDED", view.job.reason
    assert view.job.restarts == 0 and view.job.checkpoints[-1].step == 10
    assert len(lines_with(worker, "snapshots: ")) <= 1 and text in worker.output()


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has a GPU")
def test_a_job_for_gpus_waits_while_no_host_has_one_and_says_why(cluster):
    cluster.start_coordinator()
    worker = cluster.start_worker("h1", "auto", "--metrics", "", "--health", "")
    assert lines_with(worker, "no GPU: ")

    job = cluster.submit(resources__device="cuda", resources__ranks=1)

    view = cluster.get(job)
    assert view.state_name == "QUEUED" and "resources.device is cuda" in view.job.reason, view.job.reason


def test_a_second_coordinator_on_the_same_volume_is_refused_and_the_first_continues(cluster):
    first = cluster.start_coordinator()
    cluster.start_worker("h1", 1, "--metrics", "", "--health", "")
    job = cluster.submit(train__steps=1_000_000, resources__ranks=1)
    cluster.wait_for_step(job, 5)
    command = [harness.BIN / "trainyard-coordinator", "--listen", "127.0.0.1:0", "--metrics", "", "--state",
               cluster.folder / "coordinator"]

    second = cluster.start("coordinator", command)

    assert second.wait() == 1, second.output()
    assert "another coordinator uses this state folder" in second.output()
    reached = cluster.get(job).job.last_step
    cluster.wait_for_step(job, reached + 10)
    assert first.alive()

    # The third coordinator uses another mount of the same volume, as another pod on the node would.
    other = cluster.folder / "other"
    other.mkdir()
    third = cluster.start("coordinator", [
        *mounts.in_namespace(f"mount --bind '{cluster.folder}/coordinator' '{other}'"), *command[:-1], other])
    assert third.wait() == 1 and "another coordinator uses this state folder" in third.output()

    first.signal(signal.SIGKILL)
    first.wait()
    port = int(first.address.rpartition(":")[2])
    cluster.start_coordinator(port=port)
    cluster.wait_for_step(job, reached + 20)
