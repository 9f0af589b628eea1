"""A host whose trainers can be given faults through a preloaded library; trainers themselves have no option for that.

    host = FaultyHost(cluster, tmp_path)
    host.start()
    host.slow_down()  # so that the job cannot end before the test has acted
    job = cluster.submit(...)
    host.set_fault(1, "spin")  # rank 1, from its next step on; trainer_fault.c lists the faults
    host.clear_faults()
"""

import functools
import re
import shutil
import subprocess

import harness

# Finds the function that the fault `skip` replaces, in the output of nm. Its result must be void (trainer_fault.c).
SKIPPED = r"^([0-9a-f]+) [tT] .*::Trainer::StartAgreement\(.*\)$"
RANKS = range(8)  # that can have a fault


class FaultyHost:
    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.folder = folder
        self.programs = folder / "programs"

    def start(self, slots=2, prefix=()):
        """Starts a coordinator, and a daemon whose trainers preload the fault library."""
        self.cluster.start_coordinator()
        self.start_worker("h1", slots, prefix=prefix)

    def start_worker(self, name, slots, prefix=()):
        """Starts such a daemon. The ranks of all of them have the same faults."""
        if not self.programs.exists():
            self._make_programs()
        return self.cluster.start_worker(name, slots, "--metrics", "", "--health", "", prefix=prefix,
                                         binary=self.programs / "trainyard-worker")

    def _make_programs(self):
        self.programs.mkdir()
        library = self.programs / "trainer_fault.so"
        source = harness.ROOT / "tests" / "cluster" / "trainer_fault.c"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", source, "-o", library, "-ldl"], check=True)
        for name in ("trainyard-worker", "trainyard-shim"):
            shutil.copy2(harness.BIN / name, self.programs / name)
        trainer = self.programs / "trainyard-trainer"
        trainer.write_text(f"""#!/bin/sh
export LD_PRELOAD={library} TRAINER_FAULT={self.folder}/fault.$RANK TRAINER_FAULT_SKIPS={_skipped_function()}
exec {harness.BIN}/trainyard-trainer "$@"
""")
        trainer.chmod(0o755)

    def _file(self, rank):
        return self.folder / f"fault.{rank}"

    def set_fault(self, rank, what):
        """Writes the fault atomically: trainers may read the file at any time."""
        partial = self._file(rank).with_suffix(".partial")
        partial.write_text(what)
        partial.replace(self._file(rank))

    def slow_down(self, ms=10):
        """Makes each micro-batch take this much longer until the faults are cleared."""
        for rank in RANKS:
            self.set_fault(rank, f"slow {ms}")

    def clear_faults(self):
        for rank in RANKS:
            self._file(rank).unlink(missing_ok=True)


@functools.cache
def _skipped_function():
    symbols = subprocess.run(["nm", "-C", harness.BIN / "trainyard-trainer"], check=True, capture_output=True,
                             text=True)
    found = re.search(SKIPPED, symbols.stdout, re.MULTILINE)
    assert found, f"the trainer has no function {SKIPPED}; choose another that starts a collective"
    return found[1]
