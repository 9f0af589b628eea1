"""Checks that other users of the host cannot call the coordinator, read tokens, impersonate the coordinator, or reach a
private cluster.

As root, the tests run programs as another user. Otherwise they run programs that do not find the token, omit the checks
that need a second user, and skip the test that consists of such checks."""

import os
import pwd
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile

import pytest

import harness
import processes
import tokens

OTHER_UID = 65534
IS_ROOT = os.geteuid() == 0

# Listens on the coordinator's port, reports that, and prints everything that it receives.
OTHER_LISTENER = """
import socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen()
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    print("connected", flush=True)
    connection.settimeout(2)
    try:
        while data := connection.recv(65536):
            print(repr(data), flush=True)
    except OSError:
        pass
    print("ended", flush=True)
"""


class OtherUser:
    """Runs programs as another user, with a home folder of its own."""

    def __init__(self, home):
        self._home = pathlib.Path(home)
        self._identity = {"user": OTHER_UID, "group": OTHER_UID, "extra_groups": []} if IS_ROOT else {}
        self._environment = {"HOME": home, "XDG_STATE_HOME": f"{home}/state", "PATH": os.environ["PATH"]}
        if IS_ROOT:
            os.chown(home, OTHER_UID, OTHER_UID)

    def start(self, command, **options):
        return subprocess.Popen([str(part) for part in command], env=self._environment, cwd=self._home, text=True,
                                stdin=subprocess.DEVNULL, **self._identity, **options)

    def run(self, *command):
        popen = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = popen.communicate(timeout=60)
        return subprocess.CompletedProcess(command, popen.returncode, out, err)

    def trainctl(self, *arguments):
        return self.run(harness.BIN / "trainctl", *arguments)

    def give(self, path):
        """Copies the file into the home of the other user, who then owns the copy. Returns its path."""
        copy = self._home / path.name
        copy.write_text(path.read_text())
        copy.chmod(0o600)
        if IS_ROOT:
            os.chown(copy, OTHER_UID, OTHER_UID)
        return copy


@pytest.fixture
def other_user():
    with tempfile.TemporaryDirectory(prefix="trainyard-other_user-") as home:
        yield OtherUser(home)


def test_another_user_may_not_submit_list_or_cancel(one_host, other_user):
    job = one_host.submit(train__steps=1_000_000)
    one_host.wait_for_step(job, 2)
    address = one_host.coordinator.address
    file = other_user.give(one_host.write_job(train__data={"text": [str(other_user.give(one_host.text))]}))

    for verb in (["list"], ["submit", file], ["cancel", job], ["watch", job], ["logs", job]):
        done = other_user.trainctl("--coordinator", address, *verb)
        assert done.returncode == 2, (verb, done.stdout, done.stderr)
        assert "--token-file" in done.stderr and "--allow-local-users" in done.stderr, done.stderr
        assert tokens.read(address) not in done.stdout + done.stderr
    assert one_host.get(job).state_name == "RUNNING"


def test_the_token_is_private_and_new_at_each_start(cluster, other_user):
    program = cluster.start_coordinator()
    path = tokens.path_of(program.address)
    first = tokens.read(program.address)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert first not in program.output()
    if IS_ROOT:
        read = other_user.run("cat", path)
        assert read.returncode != 0 and first not in read.stdout, read.stderr
    program.signal(signal.SIGTERM)
    assert program.wait() == 0
    assert not path.exists()
    cluster.start_coordinator(port=int(program.address.rpartition(":")[2]))
    assert tokens.read(program.address) not in (None, first)


def test_a_copy_of_the_token_gives_another_user_access(one_host, other_user):
    address = one_host.coordinator.address
    copy = other_user.give(tokens.path_of(address))

    done = other_user.trainctl("--coordinator", address, "--token-file", copy, "cluster")

    assert done.returncode == 0, done.stderr
    assert "h1" in done.stdout


def test_allow_local_users_gives_every_user_access(cluster, other_user):
    program = cluster.start_coordinator("--allow-local-users")

    done = other_user.trainctl("--coordinator", program.address, "list")

    assert done.returncode == 0, done.stderr


def test_a_daemon_reconnects_with_a_new_token(one_host):
    job = one_host.submit(train__steps=1_000_000)
    one_host.wait_for_step(job, 2)
    port = int(one_host.coordinator.address.rpartition(":")[2])
    one_host.coordinator.signal(signal.SIGKILL)
    one_host.coordinator.wait()
    old = tokens.read(one_host.coordinator.address)

    one_host.start_coordinator(port=port)

    assert tokens.read(one_host.coordinator.address) != old
    harness.wait_until(lambda: one_host.server_info().hosts == 1, "the daemon attaches")
    one_host.wait_for_step(job, one_host.get(job).job.last_step + 5)


def test_another_users_listener_on_the_port_gets_no_token_and_controls_nothing(one_host, other_user):
    if not IS_ROOT:
        pytest.skip("only root can run programs as another user")
    address = one_host.coordinator.address
    worker = next(program for program in one_host.programs if "worker" in program.log.name)
    one_host.coordinator.signal(signal.SIGKILL)
    one_host.coordinator.wait()
    token = tokens.read(address)
    log = one_host.folder / "other_listener.log"
    with log.open("w") as out:
        listener = other_user.start([sys.executable, "-c", OTHER_LISTENER, address.rpartition(":")[2]], stdout=out,
                                    stderr=subprocess.STDOUT)
    try:
        harness.wait_until(lambda: "listening" in log.read_text(), "the other user listens")

        done = one_host.trainctl("list", expect=3)
        harness.wait_until(lambda: "PERMISSION_DENIED" in worker.output(), "the daemon reports the listener")
        harness.wait_until(lambda: log.read_text().count("ended") >= 2, "both have checked the listener")
    finally:
        listener.kill()
        listener.wait()

    assert pwd.getpwuid(OTHER_UID).pw_name in done.stderr or str(OTHER_UID) in done.stderr, done.stderr
    received = log.read_text()
    assert token not in received and "authorization" not in received and "Attach" not in received, received
    assert worker.alive()
    one_host.start_coordinator(port=int(address.rpartition(":")[2]))
    harness.wait_until(lambda: one_host.server_info().hosts == 1, "the daemon is attached again")


def test_a_private_cluster_has_no_port_and_serves_only_its_user(cluster, other_user):
    run = cluster.start_trainctl("run", cluster.write_job(train__steps=1_000_000), "--json")
    run.wait_for_steps(1)
    daemons = {pid: line for pid, line in processes.descendants().items()
               if processes.name_of(pid) in ("trainyard-coord", "trainyard-worke")}
    assert len(daemons) == 2

    inodes = set()
    for pid in daemons:
        for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(entry))
            except FileNotFoundError:
                pass
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            listens = fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes  # 0A: TCP_LISTEN
            assert not listens, f"a private daemon listens on a port: {line}"
    (socket,) = (part for line in daemons.values() for part in line.split() if part.startswith("unix:")
                 and "--listen" in line)
    path = pathlib.Path(socket.removeprefix("unix:"))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert cluster.run_trainctl("--coordinator", socket, "list").stdout
    done = other_user.trainctl("--coordinator", socket, "list")
    assert done.returncode != 0 or not IS_ROOT, done.stdout

    run.signal(signal.SIGINT)

    assert run.wait() == 130
    assert not path.exists()
