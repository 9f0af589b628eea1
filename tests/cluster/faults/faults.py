"""Injected faults: each breaks a part of a NetCluster for a while, and then repairs it.

    FAULTS["stop"](cluster, "daemon", hold)

Targets are "coordinator", "daemon" (the one of host b), "shim" (of the rank on host b) and "all" (both daemons and the
coordinator). A fault lasts until `hold()` returns. The exception is `kill`, which does not call it: killed daemons and
coordinators are restarted after a second. Nothing else here waits for a fixed time.
"""

import errno
import os
import signal
import time

import net_cluster

# The time after which killed programs are restarted.
RESTART_AFTER_S = 1.0
LOSS = 0.1  # the share of packets that are dropped
RATE = "2mbit"  # per second

PROGRAMS = {"coordinator": ["c"], "daemon": ["b"], "all": ["c", "a", "b"]}


def _pids(cluster, target):
    if target == "shim":
        return [cluster.shim("b")]
    return [cluster.programs[name].pid for name in PROGRAMS[target]]


def _hosts(cluster, target):
    return [cluster.network.host(name) for name in PROGRAMS[target]]


def kill(cluster, target, hold):
    """kill -9; restarts daemons and coordinator a second later, as an init system would."""
    del hold
    for pid in _pids(cluster, target):
        os.kill(pid, signal.SIGKILL)
    if target == "shim":
        return
    for name in PROGRAMS[target]:
        cluster.programs[name].popen.wait(60)
    time.sleep(RESTART_AFTER_S)
    for name in PROGRAMS[target]:
        cluster.start_program(name)


def stop(cluster, target, hold):
    """SIGSTOP, and SIGCONT afterwards."""
    pids = _pids(cluster, target)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    hold()
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass  # a daemon has killed the stopped process meanwhile


def cut_control(cluster, target, hold):
    """Drops only packets of the coordinator's port, in both directions; ranks still reach each other."""
    for host in _hosts(cluster, target):
        host.drop_port(net_cluster.PORT)
    hold()
    cluster.network.heal()


def cut_host(cluster, target, hold):
    """Cuts the host's link: control and data."""
    for host in _hosts(cluster, target):
        host.link(up=False)
    hold()
    cluster.network.heal()


def lose(cluster, target, hold):
    for host in _hosts(cluster, target):
        host.lose(LOSS)
    hold()
    cluster.network.heal()


def limit_rate(cluster, target, hold):
    for host in _hosts(cluster, target):
        host.limit(RATE)
    hold()
    cluster.network.heal()


def delay(cluster, target, hold):
    """Uses the proxies, which must have been started with the cluster (NetCluster(delayed=...))."""
    proxies = cluster.proxies[1:] if target == "daemon" else cluster.proxies
    for proxy in proxies:
        proxy.signal(signal.SIGUSR1)
    hold()
    for proxy in proxies:
        proxy.signal(signal.SIGUSR2)


def fill_disk(cluster, target, hold):
    """Fills the disk of the state folder completely."""
    fillers = []
    for name in PROGRAMS[target]:
        filler = cluster.state_of(name) / "filler"
        fillers.append(filler)
        _fill(filler)
    hold()
    for filler in fillers:
        filler.unlink()


def _fill(path):
    with path.open("wb", buffering=0) as file:
        for size in (64 << 10, 4 << 10, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


FAULTS = {"kill": kill, "stop": stop, "control_cut": cut_control, "host_cut": cut_host, "loss": lose,
          "rate": limit_rate, "delay": delay, "disk_full": fill_disk}
