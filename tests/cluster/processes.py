"""Tracks every process that a test starts, including those that outlive their parents, so that tests can check for
leftovers.

The test process makes itself a subreaper: a shim or trainer whose parent ends becomes its child instead of init's. A
thread reaps such children as soon as they end, as init would do. It does not reap processes that the test
itself has started through subprocess, because subprocess would report exit code 0 for a process that others reaped.
"""

import ctypes
import os
import pathlib
import signal
import subprocess
import threading
import time

PR_SET_CHILD_SUBREAPER = 36

_popen_pids = set()
_lock = threading.Lock()
_started = False


def _register_popens():
    """Makes subprocess register each process before the thread can see it."""
    unregistered = subprocess.Popen.__init__

    def registered(popen, *arguments, **options):
        with _lock:
            unregistered(popen, *arguments, **options)
            _popen_pids.add(popen.pid)

    subprocess.Popen.__init__ = registered


def _stat(pid):
    """(state, parent) of a process, or None if it has ended."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[1])
    except (OSError, IndexError):
        return None


def is_running(pid):
    """Whether a process exists and has not ended; it may be stopped."""
    stat = _stat(pid)
    return stat is not None and stat[0] != "Z"


def is_stopped(pid):
    """Whether every thread of a process is stopped by a signal."""
    try:
        states = {(thread / "stat").read_text().rpartition(")")[2].split()[0]
                  for thread in pathlib.Path(f"/proc/{pid}/task").iterdir()}
    except (OSError, IndexError):
        return False  # a thread ended meanwhile
    return states == {"T"}


def _collect_orphans():
    me = os.getpid()
    while True:
        for pid in _children(me):
            stat = _stat(pid)
            if not stat or stat[0] != "Z" or not name_of(pid).startswith("trainyard-"):
                continue
            with _lock:
                if pid not in _popen_pids:
                    try:
                        os.waitpid(pid, os.WNOHANG)
                    except ChildProcessError:
                        pass
        time.sleep(0.02)


def _children(parent):
    return [pid for pid in _all_pids() if (stat := _stat(pid)) and stat[1] == parent]


def _all_pids():
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def start_reaper():
    """Makes this process a subreaper and starts the thread that reaps orphans. Must be called before the first program
    is started."""
    global _started
    if _started:
        return
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    _register_popens()
    threading.Thread(target=_collect_orphans, name="orphans", daemon=True).start()
    _started = True


def name_of(pid):
    """Returns the first 15 characters of the name of the process, or "" if it does not exist."""
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def command_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def resident_bytes(pid):
    """The memory of a process that is in RAM."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descendants():
    """Live Trainyard processes that descend from this one: {pid: command line}."""
    parents = {pid: stat for pid in _all_pids() if (stat := _stat(pid))}
    found, frontier = {}, {os.getpid()}
    while frontier:
        frontier = {pid for pid, (state, parent) in parents.items() if parent in frontier and state != "Z"}
        found.update({pid: command_of(pid) for pid in frontier if name_of(pid).startswith("train")})
    return found


def kill_descendants():
    for pid in descendants():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
