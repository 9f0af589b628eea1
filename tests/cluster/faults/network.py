"""A small network of namespaces: hosts on one bridge, and what can be done to their wires.

    network = Network("cell3", ["c", "a", "b"])     # 10.77.0.1, .2, .3
    processes.start([*network.host("a").prefix, program, ...])
    network.host("b").link(up=False)
    network.close()

Each host is a namespace with `eth0` at the bridge, which has a namespace of its own; so two networks with the same
addresses do not see each other, nor anything else of the machine. Needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN),
iproute2 and iptables; `Network` raises a RuntimeError that says what is missing.
"""

import os
import pathlib
import shutil
import signal
import subprocess

SUBNET = "10.77.0"
# Connections of the delay proxy carry this mark, so that they are not sent to the proxy again.
PROXY_MARK = 7


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def require_namespaces():
    """Says in one sentence why no network can be made here, or returns."""
    if os.geteuid() != 0:
        raise RuntimeError("the fault tests make network namespaces and need root; run them as root, or in a container "
                           "with CAP_NET_ADMIN and CAP_SYS_ADMIN")
    packages = {"ip": "iproute2", "tc": "iproute2", "iptables": "iptables", "nsenter": "util-linux"}
    for program, package in packages.items():
        if not shutil.which(program):
            raise RuntimeError(f"the fault tests need {program}; install {package} (./dev setup does)")


class Host:
    """One namespace. Rules that a fault adds are remembered, and `heal` takes them away."""

    def __init__(self, namespace, switch, port, address):
        self.namespace = namespace
        self.switch = switch
        self.port = port
        self.address = address
        self.prefix = ["nsenter", f"--net=/run/netns/{namespace}"]
        self._rules = []
        self._down = False
        self._slow = False

    def iptables(self, *rule, table="filter"):
        run(*self.prefix, "iptables", "-w", "5", "-t", table, "-A", *rule)
        self._rules.append((table, rule))

    def drop_port(self, port):
        """Nothing of this TCP port gets through, either way, whoever listens; loopback is spared."""
        self.iptables("INPUT", "-i", "eth0", "-p", "tcp", "--dport", port, "-j", "DROP")
        self.iptables("INPUT", "-i", "eth0", "-p", "tcp", "--sport", port, "-j", "DROP")
        self.iptables("OUTPUT", "-o", "eth0", "-p", "tcp", "--dport", port, "-j", "DROP")
        self.iptables("OUTPUT", "-o", "eth0", "-p", "tcp", "--sport", port, "-j", "DROP")

    def lose(self, share):
        """This share of the packets is lost, both ways."""
        for rule in (("INPUT", "-i", "eth0"), ("OUTPUT", "-o", "eth0")):
            self.iptables(*rule, "-m", "statistic", "--mode", "random", "--probability", share, "-j", "DROP")

    def limit(self, bits_per_s):
        """The link carries so much, each way."""
        for where, device in ((self.namespace, "eth0"), (self.switch, self.port)):
            run("tc", "-n", where, "qdisc", "replace", "dev", device, "root", "tbf", "rate", bits_per_s, "burst",
                "16kb", "latency", "300ms")
        self._slow = True

    def link(self, up):
        # The bridge's end: so this host's own addresses and routes stay as they are, as when a switch dies.
        run("ip", "-n", self.switch, "link", "set", "dev", self.port, "up" if up else "down")
        self._down = not up

    def redirect(self, port, *match):
        """New connections that match (iptables' words) go to a proxy at this port of this namespace."""
        self.iptables("OUTPUT", "-p", "tcp", *match, "-m", "mark", "!", "--mark", PROXY_MARK, "-j", "REDIRECT",
                      "--to-ports", port, table="nat")

    def heal(self):
        """Takes away what faults have put there; a redirection stays, for its connections live by it."""
        for table, rule in [kept for kept in self._rules if kept[0] == "filter"]:
            run(*self.prefix, "iptables", "-w", "5", "-t", table, "-D", *rule)
        self._rules = [kept for kept in self._rules if kept[0] != "filter"]
        if self._slow:
            for where, device in ((self.namespace, "eth0"), (self.switch, self.port)):
                run("tc", "-n", where, "qdisc", "del", "dev", device, "root")
            self._slow = False
        if self._down:
            self.link(up=True)

    def pids(self):
        """{pid: name} of the live processes in this namespace."""
        found = {}
        try:
            inode = os.stat(f"/run/netns/{self.namespace}").st_ino
        except FileNotFoundError:
            return found
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if os.stat(entry / "ns" / "net").st_ino == inode:
                    found[int(entry.name)] = (entry / "comm").read_text().strip()
            except OSError:
                continue  # it has ended meanwhile
        return found


class Network:
    def __init__(self, name, hosts):
        """`name` is unique on this machine. `hosts` are short words; their addresses are 10.77.0.1 and on, in order."""
        require_namespaces()
        self.switch = f"ty-{name}-sw"
        self.hosts = {}
        self._namespaces = []
        try:
            self._make(self.switch)
            run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
            run("ip", "-n", self.switch, "link", "set", "br0", "up")
            for number, host in enumerate(hosts, 1):
                self.hosts[host] = self._add(name, host, f"{SUBNET}.{number}")
        except RuntimeError:
            self.close()
            raise

    def _add(self, name, host, address):
        namespace, port = f"ty-{name}-{host}", f"port-{host}"
        self._make(namespace)
        run("ip", "link", "add", "eth0", "netns", namespace, "type", "veth", "peer", "name", port, "netns", self.switch)
        run("ip", "-n", self.switch, "link", "set", "dev", port, "master", "br0")
        run("ip", "-n", self.switch, "link", "set", "dev", port, "up")
        run("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", namespace, "link", "set", "dev", device, "up")
        return Host(namespace, self.switch, port, address)

    def _make(self, namespace):
        run("ip", "netns", "add", namespace)
        self._namespaces.append(namespace)

    def host(self, name):
        return self.hosts[name]

    def heal(self):
        for host in self.hosts.values():
            host.heal()

    def close(self):
        """Ends whatever still runs in there, and takes the namespaces away."""
        for host in self.hosts.values():
            for pid in host.pids():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        for namespace in self._namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)
