"""A small network of namespaces: hosts on one bridge, and faults of their links.

    network = Network("cell3", ["c", "a", "b"])     # 10.77.0.1, .2, .3
    subprocess.Popen([*network.host("a").prefix, program, ...])
    network.host("b").link(up=False)
    network.close()

Each host is a namespace whose `eth0` is connected to the bridge. The bridge has a namespace too, so two networks with
the same addresses are separate from each other and from the machine. Needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN),
iproute2 and iptables; `Network` raises a RuntimeError that says what is missing.
"""

import os
import pathlib
import shutil
import signal
import subprocess

SUBNET = "10.77.0"
# Connections of the delay proxy have this mark, so that they are not redirected to the proxy again.
PROXY_MARK = 7


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def require_namespaces():
    """Raises a RuntimeError with the reason if no network can be created here."""
    if os.geteuid() != 0:
        raise RuntimeError("the fault tests make network namespaces and need root; run them as root, or in a container "
                           "with CAP_NET_ADMIN and CAP_SYS_ADMIN")
    packages = {"ip": "iproute2", "tc": "iproute2", "iptables": "iptables", "nsenter": "util-linux"}
    for program, package in packages.items():
        if not shutil.which(program):
            raise RuntimeError(f"the fault tests need {program}; install {package} (./dev setup does)")


class Host:
    """One host of the network. Remembers its faults; `heal` ends them."""

    def __init__(self, namespace, switch, switch_port, address):
        self.namespace = namespace
        self.switch = switch
        self.switch_port = switch_port  # the bridge's end of the link
        self.address = address
        self.prefix = ["nsenter", f"--net=/run/netns/{namespace}"]
        self._rules = []
        self._down = False
        self._slow = False

    def iptables(self, *rule, table="filter"):
        run(*self.prefix, "iptables", "-w", "5", "-t", table, "-A", *rule)
        self._rules.append((table, rule))

    def drop_port(self, port):
        """Drops all packets of this TCP port in both directions, except on loopback."""
        self.iptables("INPUT", "-i", "eth0", "-p", "tcp", "--dport", port, "-j", "DROP")
        self.iptables("INPUT", "-i", "eth0", "-p", "tcp", "--sport", port, "-j", "DROP")
        self.iptables("OUTPUT", "-o", "eth0", "-p", "tcp", "--dport", port, "-j", "DROP")
        self.iptables("OUTPUT", "-o", "eth0", "-p", "tcp", "--sport", port, "-j", "DROP")

    def lose(self, probability):
        """Drops packets at random, each with this probability, in both directions."""
        for rule in (("INPUT", "-i", "eth0"), ("OUTPUT", "-o", "eth0")):
            self.iptables(*rule, "-m", "statistic", "--mode", "random", "--probability", probability, "-j", "DROP")

    def limit(self, rate):
        """Limits the rate of the link, such as "2mbit", in each direction."""
        for where, device in ((self.namespace, "eth0"), (self.switch, self.switch_port)):
            run("tc", "-n", where, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst",
                "16kb", "latency", "300ms")
        self._slow = True

    def link(self, up):
        # Changes the bridge's end only, so that the host keeps its addresses and routes, as when a switch fails.
        run("ip", "-n", self.switch, "link", "set", "dev", self.switch_port, "up" if up else "down")
        self._down = not up

    def redirect(self, port, *match):
        """Redirects new connections that match (iptables options) to a proxy at this port of this namespace."""
        self.iptables("OUTPUT", "-p", "tcp", *match, "-m", "mark", "!", "--mark", PROXY_MARK, "-j", "REDIRECT",
                      "--to-ports", port, table="nat")

    def heal(self):
        """Ends all faults; keeps the redirections to the proxy, which open connections need."""
        for table, rule in [rule for rule in self._rules if rule[0] == "filter"]:
            run(*self.prefix, "iptables", "-w", "5", "-t", table, "-D", *rule)
        self._rules = [rule for rule in self._rules if rule[0] != "filter"]
        if self._slow:
            for where, device in ((self.namespace, "eth0"), (self.switch, self.switch_port)):
                run("tc", "-n", where, "qdisc", "del", "dev", device, "root")
            self._slow = False
        if self._down:
            self.link(up=True)

    def pids(self):
        """{pid: name} of the running processes in this namespace."""
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
        """`name` is unique on this machine. `hosts` are short names; their addresses are 10.77.0.1, .2, ..."""
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
        namespace, switch_port = f"ty-{name}-{host}", f"port-{host}"
        self._make(namespace)
        run("ip", "link", "add", "eth0", "netns", namespace, "type", "veth", "peer", "name", switch_port,
            "netns", self.switch)
        run("ip", "-n", self.switch, "link", "set", "dev", switch_port, "master", "br0")
        run("ip", "-n", self.switch, "link", "set", "dev", switch_port, "up")
        run("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", namespace, "link", "set", "dev", device, "up")
        return Host(namespace, self.switch, switch_port, address)

    def _make(self, namespace):
        run("ip", "netns", "add", namespace)
        self._namespaces.append(namespace)

    def host(self, name):
        return self.hosts[name]

    def heal(self):
        for host in self.hosts.values():
            host.heal()

    def close(self):
        """Kills all processes in the namespaces and removes the namespaces."""
        for host in self.hosts.values():
            for pid in host.pids():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        for namespace in self._namespaces:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True)
