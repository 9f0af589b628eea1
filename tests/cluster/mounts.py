"""Programs in a mount namespace of their own, with file systems that are small or read-only."""

import os
import pathlib
import subprocess

import pytest


def in_namespace(script):
    """A command prefix that runs a program in a mount namespace of its own, after this shell script."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    unshare += ["--propagation", "private"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("cannot create a mount namespace on this machine")
    return [*unshare, "sh", "-c", f'set -e\n{script}\nexec "$@"', "sh"]


def tmpfs(mount_point, size):
    return f"mount -t tmpfs -o size={size} tmpfs '{mount_point}'"


def fill(program, folder):
    """Fills the volume that a program sees at this folder, and returns the file whose removal frees the space."""
    filler = pathlib.Path(f"/proc/{program.pid}/root{folder}/filler")
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                pass
    return filler
