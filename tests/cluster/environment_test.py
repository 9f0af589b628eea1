"""Coordinators and daemons keep working when the reader of their log does not read, their standard descriptors are
closed, or clients of /metrics stay silent. Ports and folders that they cannot use are refused with the reason."""

import os
import pathlib
import shutil
import socket
import urllib.request

import pytest

import harness


@pytest.fixture
def stuck_reader(tmp_path):
    """A full FIFO and the descriptor for reading it."""
    path = tmp_path / "stderr"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    for size in (4096, 1):
        try:
            while True:
                os.write(fd, b"#" * size)
        except BlockingIOError:
            pass
    yield path, fd
    os.close(fd)


def read_all(fd):
    text = b""
    try:
        while chunk := os.read(fd, 1 << 16):
            text += chunk
    except BlockingIOError:
        return text.decode()


def test_a_blocked_stderr_stops_neither_coordinator_nor_daemon(cluster, stuck_reader):
    path, fd = stuck_reader
    prefix = ["sh", "-c", 'exec "$@" 2>"$0"', path]
    cluster.start_coordinator(prefix=prefix)
    worker = cluster.start_worker("h1", 2, prefix=prefix)

    job = cluster.submit(train__steps=3)

    assert cluster.wait_for_end(job).state_name == "SUCCEEDED"
    assert job in cluster.trainctl("list").stdout
    text = ""

    def logged():
        nonlocal text
        text += read_all(fd)
        return "host h1: 2 slots" in text and f"serving on {cluster.coordinator.address}" in text

    harness.wait_until(logged, "the delayed output is written")
    assert all(" I " in line or " W " in line for line in text.lstrip("#").splitlines()), text
    worker.signal(15)
    assert worker.wait() == 0


def test_programs_started_with_closed_descriptors_do_not_write_into_their_own_files(cluster):
    prefix = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    coordinator = cluster.start_coordinator(prefix=prefix)
    worker = cluster.start_worker("h1", 2, prefix=prefix)
    job = cluster.submit(train__steps=3)
    cluster.wait_for_end(job)

    for program, state in ((coordinator, "coordinator"), (worker, "worker-h1")):
        assert [os.readlink(f"/proc/{program.pid}/fd/{fd}") for fd in (0, 1, 2)] == ["/dev/null"] * 3
        assert pathlib.Path(cluster.folder / state / "lock").read_text() == f"{program.pid} {socket.gethostname()}\n"


def test_silent_clients_of_the_metrics_port_delay_no_scrape(cluster):
    cluster.start_coordinator()
    ports = [cluster.metrics_port, harness.free_port()]
    cluster.start_worker("h1", 2, "--metrics", f"127.0.0.1:{ports[1]}")
    for port in ports:
        silent = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(100)]
        body = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=4).read()
        assert b"\ntrainyard_" in body
        for connection in silent:
            connection.close()


def test_an_explicit_port_in_use_fails_the_start(cluster):
    cluster.start_coordinator()
    address = f"127.0.0.1:{cluster.metrics_port}"
    worker = [harness.BIN / "trainyard-worker", "--coordinator", cluster.coordinator.address, "--name", "h1",
              "--state", cluster.folder / "worker-h1"]
    for flag in ("--metrics", "--health"):
        program = cluster.start("worker", [*worker, flag, address])
        assert program.wait() == 1
        assert f"port {address} is in use" in program.output() and flag in program.output()
    second = cluster.start("coordinator", [harness.BIN / "trainyard-coordinator", "--listen", "127.0.0.1:0",
                                           "--metrics", address,
                                           "--state", cluster.folder / "second"])
    assert second.wait() == 1
    assert f"port {address} is in use" in second.output()


def test_a_coordinator_whose_state_folder_is_removed_exits_with_a_message(cluster):
    program = cluster.start_coordinator()

    shutil.rmtree(cluster.folder / "coordinator")

    assert program.wait() == 1
    assert f"{cluster.folder}/coordinator/store.db was removed while this coordinator used it" in program.output()
    assert not (cluster.folder / "coordinator").exists(), "the coordinator has created its removed folder again"


def test_new_state_folders_are_private_and_existing_ones_keep_their_mode(cluster):
    cluster.start_coordinator().signal(15)
    state = cluster.folder / "coordinator"
    assert cluster.coordinator.wait() == 0
    modes = {path.name: path.stat().st_mode & 0o777 for path in [state, *state.iterdir()]}
    assert modes == {"coordinator": 0o700, "endpoint": 0o600, "lock": 0o600, "store.db": 0o600, "store.db.bak": 0o600}
    state.chmod(0o755)
    (state / "store.db").chmod(0o644)

    program = cluster.start_coordinator()

    warning = f"state folder {state} is open to other users (mode 0755)"
    harness.wait_until(lambda: warning in program.output(), "the coordinator warns about the mode")
    assert {path.stat().st_mode & 0o777 for path in state.iterdir()} == {0o600}
    cluster.start_worker("h1")
    assert (cluster.folder / "worker-h1").stat().st_mode & 0o777 == 0o700


def test_a_state_folder_that_is_in_use_or_belongs_to_another_program_is_refused_with_its_owner(cluster):
    first = cluster.start_coordinator()
    worker = cluster.start_worker("h1")
    command = [harness.BIN / "trainyard-coordinator", "--listen", "127.0.0.1:0", "--metrics", "", "--state"]
    daemon = [harness.BIN / "trainyard-worker", "--coordinator", first.address, "--name", "h2", "--state"]
    by_first = f"is locked by process {first.pid} ({harness.BIN}/trainyard-coordinator --listen"
    by_worker = f"is locked by process {worker.pid} ({harness.BIN}/trainyard-worker --coordinator"
    cases = ((command, "coordinator", 1, by_first),
             (daemon, "worker-h1", 1, by_worker),
             (command, "worker-h1", 2, "is that of a worker daemon (it holds 'ranks')"),
             (daemon, "coordinator", 2, "is that of a coordinator (it holds 'store.db')"))
    for program, state, code, message in cases:
        started = cluster.start("second", [*program, cluster.folder / state])
        assert started.wait() == code, started.output()
        assert message in started.output()
