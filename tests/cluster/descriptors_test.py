"""A coordinator takes more connections than the shell it was started from would let it have descriptors for, and gets
over it when there are none."""

import os
import resource
import socket

import harness

# An HTTP/2 client's first words: its preface, and settings that change nothing.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
LOW = 128


def test_coordinator_takes_more_connections_than_the_soft_limit_of_its_shell(cluster):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard >= 4 * LOW, "this test needs a higher hard limit (ulimit -Hn)"
    resource.setrlimit(resource.RLIMIT_NOFILE, (LOW, hard))
    try:
        cluster.start_coordinator()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    host, _, port = cluster.coordinator.address.rpartition(":")

    connections = [socket.create_connection((host, int(port)), timeout=10) for _ in range(2 * LOW)]
    try:
        for connection in connections:
            connection.sendall(PREFACE)
        assert all(connection.recv(9) for connection in connections), "some connections were not served"
    finally:
        for connection in connections:
            connection.close()
    assert cluster._server_info().hosts == 0


def served(address):
    """A new connection to it, and whether it is answered; a connection that is turned away ends without a word."""
    connection = socket.create_connection(address, timeout=10)
    try:
        connection.sendall(PREFACE)
        return connection, bool(connection.recv(9))
    except ConnectionError:
        return connection, False


def test_coordinator_keeps_descriptors_for_itself_and_takes_connections_again_when_others_have_gone(cluster):
    program = cluster.start_coordinator()
    host, _, port = program.address.rpartition(":")
    _, hard = resource.prlimit(program.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (LOW, hard))

    crowd = [served((host, int(port))) for _ in range(LOW)]

    assert any(answered for _, answered in crowd)
    assert not crowd[-1][1], "more connections than there are descriptors for them"
    assert len(os.listdir(f"/proc/{program.pid}/fd")) <= LOW * 3 // 4
    assert cluster._server_info() is not None, "who was there before is served as before"
    for connection, _ in crowd:
        connection.close()

    def served_again():
        connection, answered = served((host, int(port)))
        connection.close()
        return answered

    harness.wait_until(served_again, "a new connection is served", 30)


def test_coordinator_without_a_descriptor_to_accept_with_hears_the_next_connection_once_there_is_one(cluster):
    program = cluster.start_coordinator()
    host, _, port = program.address.rpartition(":")
    limits = resource.prlimit(program.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(PREFACE)
        harness.wait_until(lambda: "cannot be accepted now" in program.output(), "it has no descriptor left", 30)

        resource.prlimit(program.pid, resource.RLIMIT_NOFILE, limits)

        assert connection.recv(9), "the listener is deaf"
    assert cluster._server_info() is not None
