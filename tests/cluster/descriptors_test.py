"""A coordinator accepts more connections than its shell's soft limit of descriptors allows, and recovers after running
out of them."""

import os
import resource
import socket

import harness

# The first bytes of an HTTP/2 client: the preface and empty settings.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
LOW_LIMIT = 128  # file descriptors


def test_coordinator_accepts_more_connections_than_the_soft_limit_of_its_shell(cluster):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= 4 * LOW_LIMIT, "this test needs a higher hard limit (ulimit -Hn)"
    resource.setrlimit(resource.RLIMIT_NOFILE, (LOW_LIMIT, hard))
    try:
        cluster.start_coordinator()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    host, _, port = cluster.coordinator.address.rpartition(":")

    connections = [socket.create_connection((host, int(port)), timeout=60) for _ in range(2 * LOW_LIMIT)]
    try:
        for connection in connections:
            connection.sendall(PREFACE)
        assert all(connection.recv(9) for connection in connections), "some connections were not served"
    finally:
        for connection in connections:
            connection.close()
    assert cluster.server_info().hosts == 0


def connect(address):
    """Opens a connection; returns it and whether it is answered. A refused connection is closed without an answer."""
    connection = socket.create_connection(address, timeout=60)
    try:
        connection.sendall(PREFACE)
        return connection, bool(connection.recv(9))
    except ConnectionError:
        return connection, False


def test_coordinator_reserves_descriptors_and_accepts_again_once_connections_close(cluster):
    program = cluster.start_coordinator()
    host, _, port = program.address.rpartition(":")
    _, hard = resource.prlimit(program.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (LOW_LIMIT, hard))

    connections = [connect((host, int(port))) for _ in range(LOW_LIMIT)]

    assert any(answered for _, answered in connections)
    assert not connections[-1][1], "more connections were accepted than there are descriptors"
    # With such a low limit, the coordinator reserves a quarter of the descriptors for the store and other files.
    assert len(os.listdir(f"/proc/{program.pid}/fd")) <= LOW_LIMIT * 3 // 4
    cluster.server_info()  # existing connections are still served
    for connection, _ in connections:
        connection.close()

    def served_again():
        connection, answered = connect((host, int(port)))
        connection.close()
        return answered

    harness.wait_until(served_again, "a new connection is served")


def test_coordinator_out_of_descriptors_accepts_again_once_its_limit_is_raised(cluster):
    program = cluster.start_coordinator()
    host, _, port = program.address.rpartition(":")
    limits = resource.prlimit(program.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(PREFACE)
        harness.wait_until(lambda: "cannot accept a connection now" in program.output(),
                           "the coordinator has no descriptor left")

        resource.prlimit(program.pid, resource.RLIMIT_NOFILE, limits)

        assert connection.recv(9), "the listener no longer accepts"
    cluster.server_info()
