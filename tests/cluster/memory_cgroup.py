"""A cgroup (v1 or v2) with a memory limit for processes that a test starts.

    with MemoryCgroup("oom", 1 << 30) as group:      # raises OSError if it cannot be created
        cluster.start_worker("h1", prefix=group.prefix)
"""

import os
import pathlib

import harness


def _mount_point(kind, option):
    """The mount point of the hierarchy, from /proc/self/mountinfo."""
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        file_system, _, options = right.split(" ", 2)
        if file_system == kind and option in options.split(","):
            return pathlib.Path(left.split(" ")[4])
    return None


def _own_folder():
    """Returns (the folder of this process's cgroup, the name of the file that contains the limit)."""
    paths = {}
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update({name: path.lstrip("/") for name in controllers.split(",")})
    old = _mount_point("cgroup", "memory")
    if "memory" in paths and old:
        return old / paths["memory"], "memory.limit_in_bytes"
    new = _mount_point("cgroup2", "rw")
    if new is None:
        raise OSError("no cgroup hierarchy with the memory controller is mounted")
    folder = new / paths.get("", "")
    # Fails unless this cgroup is the root: no other cgroup may contain processes and enable controllers for children.
    (folder / "cgroup.subtree_control").write_text("+memory")
    return folder, "memory.max"


class MemoryCgroup:
    def __init__(self, name, limit_bytes):
        parent, limit = _own_folder()
        self._folder = parent / f"trainyard-test-{os.getpid()}-{name}"
        self._folder.mkdir()
        try:
            (self._folder / limit).write_text(str(limit_bytes))
        except OSError:
            self._folder.rmdir()
            raise
        # The prefixed command and its descendants run in the cgroup.
        self.prefix = ["sh", "-c", f"echo $$ > '{self._folder}/cgroup.procs' && exec \"$@\"", "sh"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        harness.wait_until(lambda: not (self._folder / "cgroup.procs").read_text(), "the cgroup is empty")
        self._folder.rmdir()
