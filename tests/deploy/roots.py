"""Programs in a root file system of their own, with their own processes and /dev/shm, as in a container or on another
machine, but with the network of this host. Needs root."""

import os
import pathlib
import shutil
import signal
import subprocess

import pytest

import harness

# Mounts what every container has, and becomes the given command as process 1 of a new PID namespace.
_ENTER = """
set -e
root=$1 user=$2
shift 2
mkdir -p "$root/proc" "$root/dev"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
for pair in $BINDS; do mkdir -p "$root/${pair#*:}"; mount --bind "${pair%%:*}" "$root/${pair#*:}"; done
unset BINDS
exec /usr/sbin/chroot --userspec="$user" "$root" "$@"
"""


def require(*programs):
    """Skips the test with the reason unless it can make root file systems here."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount file systems")
    missing = [name for name in programs if not (shutil.which(name) or shutil.which(name, path="/usr/sbin"))]
    if missing:
        pytest.skip(f"needs the Debian packages of {', '.join(missing)}")


def command(root, arguments, user="0:0"):
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, "sh", str(root), user,
            *map(str, arguments)]


def environment(binds=(), **variables):
    """The environment of a command in a root. `binds`: [(folder of this host, folder in the root)]."""
    return {"PATH": "/opt/trainyard/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8",
            "BINDS": " ".join(f"{outside}:{inside}" for outside, inside in binds), **variables}


def run(root, arguments, user="0:0", expect=0, timeout=600, **options):
    """Runs a command in a root until it ends. Returns its output, both streams together."""
    done = subprocess.run(command(root, arguments, user), env=environment(**options), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout,
                          stdin=subprocess.DEVNULL)
    assert expect is None or done.returncode == expect, f"{arguments} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def dev(*arguments, timeout=1800):
    """Runs ./dev and returns its output."""
    done = subprocess.run([harness.ROOT / "dev", *map(str, arguments)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout
    return done.stdout


def stop(program):
    """Sends SIGTERM to process 1 of a started command, as container runtimes do."""
    children = pathlib.Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    assert len(children) == 1, children
    os.kill(int(children[0]), signal.SIGTERM)
