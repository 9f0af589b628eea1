"""Procedures of docs/operators.md that need no root, with real programs: restore of a backup, a new token."""

import contextlib
import signal
import sqlite3

import harness

GUIDE = harness.ROOT / "docs" / "operators.md"
FOREVER = {"train__steps": 1_000_000}


def back_up(source, target):
    """What the guide's command does: `sqlite3 SOURCE "VACUUM INTO 'TARGET'"`."""
    assert f'sqlite3 /var/lib/trainyard/coordinator/{source.name} "VACUUM INTO ' in GUIDE.read_text()
    with contextlib.closing(sqlite3.connect(source)) as store:
        store.execute("VACUUM INTO ?", (str(target),))


def test_a_backup_of_a_running_coordinator_is_restored_and_newer_jobs_are_listed(one_host):
    cluster = one_host
    store = cluster.folder / "coordinator" / "store.db"
    known = cluster.submit(train__steps=5)
    cluster.wait_for_end(known)
    back_up(store, cluster.folder / "backup.db")
    newer = cluster.submit(**FOREVER)
    cluster.wait_for_step(newer, 5)

    cluster.coordinator.signal(signal.SIGTERM)
    assert cluster.coordinator.wait() == 0
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        (store.parent / name).unlink(missing_ok=True)
    (cluster.folder / "backup.db").rename(store)
    store.chmod(0o600)
    cluster.start_coordinator(port=int(cluster.coordinator.address.rpartition(":")[2]))

    def listed():
        text = cluster.trainctl("cluster").stdout
        return "does not know" in text and newer in text

    harness.wait_until(listed, "the newer job is listed as unknown")
    assert cluster.get(known).state_name == "SUCCEEDED"
    assert harness.trainers()
    cluster.trainctl("cancel", newer, expect=None)
    harness.wait_until(lambda: not harness.trainers(), "the newer job has ended")


def test_a_new_token_takes_effect_when_the_coordinator_restarts_and_daemons_and_trainers_continue(cluster):
    token = cluster.folder / "token"
    token.write_text("the-first-token-0123456789\n")
    token.chmod(0o640)
    named = ("--token-file", token)
    port = harness.free_port()

    def start():
        program = cluster.start("coordinator", [harness.BIN / "trainyard-coordinator", "--listen", f"127.0.0.1:{port}",
                                                "--state", cluster.folder / "coordinator", "--metrics", "", *named])
        program.address = f"127.0.0.1:{port}"
        cluster.coordinator = program
        return program

    def start_daemon():
        return cluster.start("worker", [harness.BIN / "trainyard-worker", "--coordinator", f"127.0.0.1:{port}",
                                        "--slots", "2", "--name", "h1", "--state", cluster.folder / "worker",
                                        "--metrics", "", "--health", "", *named])

    def status(job):
        done = cluster.trainctl(*named, "status", job, "--json", expect=None)
        return done.stdout if done.returncode == 0 else ""

    coordinator, daemon = start(), start_daemon()
    harness.wait_until(lambda: cluster.trainctl(*named, "cluster", "--json", expect=None).stdout, "the host attaches")
    job = harness.job_id_of(cluster.trainctl(*named, "submit", cluster.write_job(**FOREVER), "--json").stdout)
    harness.wait_until(lambda: "RUNNING" in status(job), "the job runs")
    before = set(harness.trainers())

    token.write_text("the-second-token-0123456789\n")
    coordinator.signal(signal.SIGTERM)
    assert coordinator.wait() == 0
    start()

    def attached():
        hosts = harness.events(cluster.trainctl(*named, "cluster", "--json", expect=None).stdout)
        return any(host.get("attached") for host in hosts) and "RUNNING" in status(job)

    harness.wait_until(attached, "the daemon has the new token, and the job runs")
    assert set(harness.trainers()) == before and len(before) == 2 and daemon.alive()
    token.write_text("the-first-token-0123456789\n")
    assert "wrong token" in cluster.trainctl(*named, "list", expect=None).stderr
