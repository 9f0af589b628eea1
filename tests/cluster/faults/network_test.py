"""Tests of the fault injection itself: measures each fault between two hosts, before, during and after it."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

import harness
import network

PORT = 5000
HERE = pathlib.Path(__file__).parent

# Echoes bytes over TCP and counts datagrams of one byte; a datagram of two bytes requests the count.
SERVER = """
import socket, threading
def echo(connection):
    while data := connection.recv(1 << 16):
        connection.sendall(data)
def count():
    udp, received = socket.socket(type=socket.SOCK_DGRAM), 0
    udp.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
    udp.bind(("0.0.0.0", PORT))
    while True:
        data, peer = udp.recvfrom(10)
        if len(data) == 2:
            try:
                udp.sendto(str(received).encode(), peer)
            except PermissionError:
                pass  # the sender gets this error for a dropped packet; the request is repeated
        received += len(data) == 1
tcp = socket.create_server(("0.0.0.0", PORT))
threading.Thread(target=count, daemon=True).start()
print("listening", flush=True)
while True:
    threading.Thread(target=echo, args=(tcp.accept()[0],), daemon=True).start()
""".replace("PORT", str(PORT))

# Prints the measured seconds, or null if there is no connection within a second.
CLIENT = """
import json, socket, sys, time
address, port, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
try:
    tcp = socket.create_connection((address, port), timeout=1)
except OSError:
    print("null")
    sys.exit()
tcp.settimeout(30)
tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
tcp.sendall(b"x"), tcp.recv(1)
began, left = time.monotonic(), size
tcp.sendall(bytes(size))
while left:
    left -= len(tcp.recv(1 << 16))
print(json.dumps(time.monotonic() - began))
"""

# Sends the given number of one-byte datagrams, then requests the count.
DATAGRAMS = """
import socket, sys
udp = socket.socket(type=socket.SOCK_DGRAM)
udp.settimeout(0.2)
for _ in range(int(sys.argv[2])):
    udp.sendto(b"x", (sys.argv[1], PORT))
while True:
    try:
        udp.sendto(b"xx", (sys.argv[1], PORT))
        print(udp.recv(100).decode())
        break
    except TimeoutError:
        pass
""".replace("PORT", str(PORT))


class Pair:
    """Two hosts with a server on b."""

    def __init__(self, folder):
        self.network = network.Network(f"{os.getpid()}-n", ["a", "b"])
        self.a, self.b = self.network.host("a"), self.network.host("b")
        self._folder = folder
        self._popens = []
        self.start(self.b, "server", sys.executable, "-c", SERVER)

    def start(self, host, name, *command):
        log = self._folder / f"{name}.log"
        with log.open("wb") as out:
            self._popens.append(subprocess.Popen([*host.prefix, *map(str, command)], stdout=out, stderr=out))
        harness.wait_until(lambda: "listening" in log.read_text(), f"{name} listens")
        return self._popens[-1]

    def run_on_a(self, script, *arguments):
        done = subprocess.run([*self.a.prefix, sys.executable, "-c", script, *map(str, arguments)], capture_output=True,
                              text=True, timeout=60, check=True)
        return json.loads(done.stdout)

    def echo_s(self, size=1, port=PORT):
        return self.run_on_a(CLIENT, self.b.address, port, size)

    def close(self):
        self.network.close()
        for popen in self._popens:
            popen.wait(60)


@pytest.fixture
def pair(tmp_path):
    pair = Pair(tmp_path)
    yield pair
    pair.close()


def test_two_networks_with_the_same_addresses_are_separate(pair):
    other = network.Network(f"{os.getpid()}-o", ["a", "b"])

    done = subprocess.run([*other.host("a").prefix, sys.executable, "-c", CLIENT, pair.b.address, str(PORT), "1"],
                          capture_output=True, text=True, timeout=60, check=True)

    other.close()
    assert done.stdout.strip() == "null"
    assert pair.echo_s() is not None


def test_a_dropped_port_is_unreachable_until_the_fault_ends_and_other_ports_are_not_affected(pair):
    pair.b.drop_port(PORT + 1)
    assert pair.echo_s() is not None
    pair.b.drop_port(PORT)
    assert pair.echo_s() is None

    pair.network.heal()

    assert pair.echo_s() is not None


def test_a_link_that_is_down_carries_nothing_until_it_is_up(pair):
    pair.b.link(up=False)
    assert pair.echo_s() is None

    pair.network.heal()

    harness.wait_until(lambda: pair.echo_s() is not None, "the link works again")


def test_the_share_of_lost_packets_is_as_requested(pair):
    pair.b.lose(0.1)
    # Both directions lose packets, so the request may be repeated; b counts what arrived.
    received = pair.run_on_a(DATAGRAMS, pair.b.address, 2000)

    pair.network.heal()

    assert 1700 < received < 1900, received
    assert pair.run_on_a(DATAGRAMS, pair.b.address, 500) == received + 500


def test_a_limited_link_has_the_requested_rate(pair):
    fast = pair.echo_s(200_000)
    pair.b.limit("2mbit")

    slow = pair.echo_s(200_000)

    pair.network.heal()
    assert 0.5 < slow < 5.0, slow  # 200 kB take 0.8 s in each direction; the directions overlap
    assert fast < 0.2 and pair.echo_s(200_000) < 0.2


def test_the_proxy_delays_each_way_and_keeps_every_byte(pair):
    proxy = pair.start(pair.a, "proxy", sys.executable, HERE / "delay_proxy.py", 7999, 60)
    pair.a.redirect(7999, "-d", pair.b.address)
    assert pair.echo_s() < 0.05
    proxy.send_signal(signal.SIGUSR1)

    slow = harness.wait_until(lambda: (seconds := pair.echo_s()) > 0.1 and seconds, "the proxy delays")

    assert 0.12 <= slow < 0.4, slow
    assert 0.12 <= pair.echo_s(3_000_000) < 3.0
    proxy.send_signal(signal.SIGUSR2)
    harness.wait_until(lambda: pair.echo_s() < 0.05, "the proxy forwards without delay")
