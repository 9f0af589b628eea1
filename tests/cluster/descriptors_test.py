"""A coordinator takes more connections than the shell it was started from would let it have descriptors for."""

import resource
import socket

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
